-- name: dead_letters
-- Failed deliveries of messages with ids in [:first_id, :end_id) of a tenant (null: all), newest
-- messages first. Filters on the message: class, kind, tag, part of the sender, part of the
-- subject (never matches a secret one); on the delivery: part of the recipient, provider, reason;
-- null matches any. Limit the ids by dead_end to bound the work.
SELECT d.message_id, d.n, d.reason, p.name AS provider
FROM pillarbox.tenants t
CROSS JOIN LATERAL (
  SELECT d.message_id, d.n, d.reason, d.provider_id, d.recipient FROM pillarbox.deliveries d
  WHERE d.tenant_id = t.id AND d.state = 'failed' AND d.message_id >= :first_id
    AND d.message_id < :end_id
    AND (:recipient::text IS NULL OR strpos(lower(d.recipient), lower(:recipient)) > 0)
    AND (:reason::text IS NULL OR d.reason = :reason)
  ORDER BY d.message_id DESC, d.n) d
JOIN LATERAL (SELECT class, kind, tags, sender, subject FROM pillarbox.messages
  WHERE id = d.message_id LIMIT 1) m ON true
LEFT JOIN pillarbox.classes k ON k.name = m.class
LEFT JOIN pillarbox.providers p ON p.id = d.provider_id
WHERE (:tenant_id::int IS NULL OR t.id = :tenant_id)
  AND (:class_name::text IS NULL OR m.class = :class_name)
  AND (:kind::text IS NULL OR m.kind = :kind)
  AND (:tag::text IS NULL OR :tag = ANY (m.tags))
  AND (:sender::text IS NULL OR strpos(lower(m.sender), lower(:sender)) > 0)
  AND (:subject::text IS NULL OR (strpos(lower(m.subject), lower(:subject)) > 0
  AND k.secret IS NOT TRUE))
  AND (:provider::text IS NULL OR p.name = :provider)
ORDER BY d.message_id DESC, d.n
LIMIT :limit

-- name: dead_end
-- The message of the :position-th failed delivery in [:first_id, :end_id), from the newest: one
-- statement reads no further. No row if there are fewer.
SELECT d.message_id
FROM pillarbox.tenants t
CROSS JOIN LATERAL (
  SELECT d.message_id FROM pillarbox.deliveries d
  WHERE d.tenant_id = t.id AND d.state = 'failed' AND d.message_id >= :first_id
    AND d.message_id < :end_id
  ORDER BY d.message_id DESC LIMIT :position) d
WHERE :tenant_id::int IS NULL OR t.id = :tenant_id
ORDER BY d.message_id DESC OFFSET :position::int - 1 LIMIT 1

-- name: dead_of
-- The failed deliveries of these messages, of a tenant (null: any). (`state::text` keeps the
-- planner on the primary key.)
SELECT d.message_id, d.n, d.reason, NULL::text AS provider FROM pillarbox.deliveries d
WHERE d.message_id = ANY (:message_ids::uuid[]) AND d.state::text = 'failed'
  AND (:tenant_id::int IS NULL OR d.tenant_id = :tenant_id)
ORDER BY d.message_id DESC, d.n

-- name: resend_obstacles
-- Why deliveries cannot be sent again (`content_purged`, `expired`; null: they can), and whether
-- their recipients are suppressed; in the order given.
SELECT CASE WHEN c.message_id IS NULL THEN 'content_purged'
  WHEN m.expires_at <= now() THEN 'expired' END AS blocked,
  (SELECT coalesce(s.expires_at > now(), true) FROM pillarbox.suppressions s
   WHERE s.tenant_id = d.tenant_id AND s.address = lower(d.recipient) LIMIT 1) IS TRUE AS suppressed
FROM unnest(:message_ids::uuid[], :recipient_numbers::int2[])
  WITH ORDINALITY AS r(message_id, n, place)
LEFT JOIN LATERAL (SELECT tenant_id, recipient FROM pillarbox.deliveries
  WHERE message_id = r.message_id AND n = r.n LIMIT 1) d ON true
LEFT JOIN LATERAL (SELECT expires_at FROM pillarbox.messages WHERE id = r.message_id LIMIT 1) m
  ON true
LEFT JOIN LATERAL (SELECT message_id FROM pillarbox.contents
  WHERE message_id = r.message_id LIMIT 1) c ON true
ORDER BY r.place

-- name: outgoing_envelopes
-- The sender, the recipient and the first :max_bytes bytes of the raw mail of deliveries, and
-- whether the raw mail is longer; in the order given.
SELECT m.sender, d.recipient, substr(c.raw, 1, :max_bytes) AS raw,
  octet_length(c.raw) > :max_bytes AS cut
FROM unnest(:message_ids::uuid[], :recipient_numbers::int2[])
  WITH ORDINALITY AS r(message_id, n, place)
LEFT JOIN LATERAL (SELECT recipient FROM pillarbox.deliveries
  WHERE message_id = r.message_id AND n = r.n LIMIT 1) d ON true
LEFT JOIN LATERAL (SELECT sender FROM pillarbox.messages WHERE id = r.message_id LIMIT 1) m ON true
LEFT JOIN LATERAL (SELECT raw FROM pillarbox.contents WHERE message_id = r.message_id LIMIT 1) c
  ON true
ORDER BY r.place

-- name: dead_messages
-- Messages, newest first.
SELECT m.id, m.created_at, t.name AS tenant, m.class, coalesce(k.secret, false) AS secret, m.kind,
  m.lane, m.sender, m.subject, m.tags,
  m.size, m.expires_at, CASE WHEN NOT EXISTS (SELECT FROM pillarbox.contents c
    WHERE c.message_id = m.id) THEN 'content_purged'
                             WHEN m.expires_at <= now() THEN 'expired' END AS blocked
FROM pillarbox.messages m
JOIN pillarbox.tenants t ON t.id = m.tenant_id
LEFT JOIN pillarbox.classes k ON k.name = m.class
WHERE m.id = ANY (:message_ids::uuid[]) ORDER BY m.id DESC

-- name: dead_deliveries
-- The failed ones of these deliveries, newest messages first.
SELECT d.message_id, d.n, d.recipient, d.role::text AS role, d.reason, d.attempts AS attempts_made,
  d.settled_at AS failed_at, p.name AS provider
FROM unnest(:message_ids::uuid[], :recipient_numbers::int2[]) AS r(message_id, n)
JOIN pillarbox.deliveries d ON d.message_id = r.message_id AND d.n = r.n
  AND d.state::text = 'failed'
LEFT JOIN pillarbox.providers p ON p.id = d.provider_id
ORDER BY d.message_id DESC, d.n

-- name: dead_attempts
-- The attempts at these deliveries, in order. Texts are redacted.
SELECT a.message_id, a.n, a.started_at, a.ended_at, p.name AS provider, a.verdict, a.reason, a.code,
  a.reply
FROM unnest(:message_ids::uuid[], :recipient_numbers::int2[]) AS r(message_id, n)
JOIN pillarbox.attempts a ON a.message_id = r.message_id AND a.n = r.n
LEFT JOIN pillarbox.providers p ON p.id = a.provider_id
ORDER BY a.message_id, a.n, a.claim, a.step

-- name: usable_provider
-- The provider of this name if it is enabled; for a tenant (null: a person chooses) not if only
-- other tenants' routes name it.
SELECT p.id FROM pillarbox.providers p
WHERE p.name = :name AND p.enabled AND p.removed_at IS NULL
  AND (:tenant_id::int IS NULL
    OR EXISTS (SELECT FROM pillarbox.routes r WHERE p.id = ANY (r.providers)
    AND coalesce(r.tenant_id, :tenant_id) = :tenant_id)
    OR NOT EXISTS (SELECT FROM pillarbox.routes r WHERE p.id = ANY (r.providers)))
