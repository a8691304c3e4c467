-- What people and other systems read.

-- Deliveries with their words instead of numbers.
CREATE VIEW pillarbox.delivery_logs AS
SELECT
  (d.seq << 7) | d.n AS id,
  d.message_id::varchar(255) AS message_id,
  t.name::varchar(255) AS tenant_id,
  d.state::varchar(50) AS status,
  p.name::varchar(50) AS provider,
  last.provider_message_id::varchar(255) AS provider_message_id,
  greatest(d.attempts - 1, 0)::int AS retry_count,
  CASE WHEN last.verdict <> 'accepted' THEN concat_ws(' ', last.reason, last.code, last.reply) END AS last_error,
  m.created_at,
  greatest(m.created_at, d.claimed_at, d.settled_at, last.ended_at) AS updated_at
FROM pillarbox.deliveries d
JOIN pillarbox.messages m ON m.id = d.message_id
JOIN pillarbox.tenants t ON t.id = d.tenant_id
LEFT JOIN pillarbox.providers p ON p.id = d.provider_id
LEFT JOIN LATERAL (
  SELECT a.* FROM pillarbox.attempts a WHERE a.message_id = d.message_id AND a.n = d.n ORDER BY a.claim DESC LIMIT 1
) last ON true;

COMMENT ON VIEW pillarbox.delivery_logs IS 'One row per delivery (message × recipient), in the columns of a classic delivery log.';
