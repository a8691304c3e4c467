-- Documented views.

-- One row per delivery, with the columns of the delivery log that integrations expect.
-- `updated_at` also moves with feedback and events. `message_id` is text: an index has it as
-- text.
CREATE OR REPLACE VIEW pillarbox.delivery_logs AS
SELECT
  (d.seq << 7) | d.n AS id,
  m.id::varchar(255) AS message_id,
  t.name::varchar(255) AS tenant_id,
  d.state::varchar(50) AS status,
  p.name::varchar(50) AS provider,
  last.provider_message_id::varchar(255) AS provider_message_id,
  greatest(d.attempts - 1, 0)::int AS retry_count,
  CASE WHEN last.verdict <> 'accepted'
    THEN concat_ws(' ', last.reason, last.code, last.reply) END AS last_error,
  m.created_at,
  greatest(m.created_at, d.claimed_at, d.settled_at, last.ended_at, d.waiting_since,
    -- a time that has come
    CASE WHEN d.state <> 'pending' AND d.attempts = 0 THEN least(d.next_attempt_at, now()) END,
    (SELECT max(e.at) FROM pillarbox.events e WHERE e.message_id = d.message_id
      AND (e.n = d.n OR e.n IS NULL)),
    (SELECT max(f.heard_at) FROM pillarbox.feedback f
      WHERE f.message_id = d.message_id AND f.n = d.n AND NOT f.waiting)
  ) AS updated_at
FROM pillarbox.messages m
JOIN pillarbox.deliveries d ON d.message_id = m.id
JOIN pillarbox.tenants t ON t.id = d.tenant_id
LEFT JOIN pillarbox.providers p ON p.id = d.provider_id
LEFT JOIN LATERAL (
  SELECT a.* FROM pillarbox.attempts a WHERE a.message_id = d.message_id AND a.n = d.n
    ORDER BY a.claim DESC, a.step DESC LIMIT 1
) last ON true;
COMMENT ON VIEW pillarbox.delivery_logs IS
  'One row per delivery (message × recipient), in the columns of a classic delivery log.';
