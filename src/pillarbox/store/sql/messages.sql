-- name: list_messages
-- Messages newest first, with ids in [$1, $2): at most $3. A message fits when its own columns fit $4 tenant, $5 class,
-- $6 kind, $7 tag and $8 part of the sender, and one of its deliveries fits all of $9 states, $10 part of the recipient,
-- $11 provider and $12 reason; null means any. Walks the primary key: narrow the ids to bound the work.
SELECT m.id, m.created_at, t.name AS tenant, m.class, m.kind, m.lane, m.sender,
  m.class IN (SELECT name FROM pillarbox.classes WHERE secret) AS secret, m.subject, m.tags, d.recipients, d.states,
  d.attempts, d.next_attempt_at, d.reasons, d.providers
FROM pillarbox.messages m
JOIN pillarbox.tenants t ON t.id = m.tenant_id
JOIN LATERAL (
  SELECT array_agg(d.recipient ORDER BY d.n) AS recipients, array_agg(d.state::text ORDER BY d.n) AS states,
    max(d.attempts) AS attempts, min(d.next_attempt_at) FILTER (WHERE d.state IN ('pending', 'queued')) AS next_attempt_at,
    array_agg(DISTINCT d.reason) FILTER (WHERE d.reason IS NOT NULL) AS reasons,
    array_agg(DISTINCT p.name) FILTER (WHERE p.name IS NOT NULL) AS providers,
    bool_or(($9::text[] IS NULL OR d.state::text = ANY ($9)) AND ($10::text IS NULL OR strpos(lower(d.recipient), lower($10)) > 0)
      AND ($11::text IS NULL OR p.name = $11) AND ($12::text IS NULL OR d.reason = $12)) AS fits
  FROM pillarbox.deliveries d LEFT JOIN pillarbox.providers p ON p.id = d.provider_id
  WHERE d.message_id = m.id
) d ON d.fits
WHERE m.id >= $1 AND m.id < $2
  AND ($4::text IS NULL OR t.name = $4) AND ($5::text IS NULL OR m.class = $5) AND ($6::text IS NULL OR m.kind = $6)
  AND ($7::text IS NULL OR $7 = ANY (m.tags)) AND ($8::text IS NULL OR strpos(lower(m.sender), lower($8)) > 0)
ORDER BY m.id DESC
LIMIT $3

-- name: list_unfinished
-- As list_messages, for $9 states that have an index of their own (pending, queued, processing, failed, held): the work
-- is bounded by how many deliveries are in them, however long the history is.
WITH found AS (
  SELECT message_id FROM pillarbox.deliveries WHERE state = 'pending' AND 'pending' = ANY ($9::text[])
  UNION SELECT message_id FROM pillarbox.deliveries WHERE state = 'queued' AND attempts = 0 AND 'queued' = ANY ($9::text[])
  UNION SELECT message_id FROM pillarbox.deliveries WHERE state = 'queued' AND attempts > 0 AND 'queued' = ANY ($9::text[])
  UNION SELECT message_id FROM pillarbox.deliveries WHERE state = 'processing' AND 'processing' = ANY ($9::text[])
  UNION SELECT message_id FROM pillarbox.deliveries WHERE state IN ('failed', 'held') AND state::text = ANY ($9::text[])
)
SELECT m.id, m.created_at, t.name AS tenant, m.class, m.kind, m.lane, m.sender,
  m.class IN (SELECT name FROM pillarbox.classes WHERE secret) AS secret, m.subject, m.tags, d.recipients, d.states,
  d.attempts, d.next_attempt_at, d.reasons, d.providers
FROM (SELECT message_id FROM found WHERE message_id >= $1 AND message_id < $2 ORDER BY message_id DESC) f
JOIN pillarbox.messages m ON m.id = f.message_id
JOIN pillarbox.tenants t ON t.id = m.tenant_id
JOIN LATERAL (
  SELECT array_agg(d.recipient ORDER BY d.n) AS recipients, array_agg(d.state::text ORDER BY d.n) AS states,
    max(d.attempts) AS attempts, min(d.next_attempt_at) FILTER (WHERE d.state IN ('pending', 'queued')) AS next_attempt_at,
    array_agg(DISTINCT d.reason) FILTER (WHERE d.reason IS NOT NULL) AS reasons,
    array_agg(DISTINCT p.name) FILTER (WHERE p.name IS NOT NULL) AS providers,
    bool_or(d.state::text = ANY ($9) AND ($10::text IS NULL OR strpos(lower(d.recipient), lower($10)) > 0)
      AND ($11::text IS NULL OR p.name = $11) AND ($12::text IS NULL OR d.reason = $12)) AS fits
  FROM pillarbox.deliveries d LEFT JOIN pillarbox.providers p ON p.id = d.provider_id
  WHERE d.message_id = m.id
) d ON d.fits
WHERE ($4::text IS NULL OR t.name = $4) AND ($5::text IS NULL OR m.class = $5) AND ($6::text IS NULL OR m.kind = $6)
  AND ($7::text IS NULL OR $7 = ANY (m.tags)) AND ($8::text IS NULL OR strpos(lower(m.sender), lower($8)) > 0)
ORDER BY m.id DESC
LIMIT $3

-- name: page
-- A tenant's ($1) messages newest first, with ids in [$2, $3): at most $4. A message fits when its own columns fit $5 class,
-- $6 kind, $7 tag, $8 part of the sender and $9 part of the subject (a secret one fits no part), and one of its deliveries
-- fits all of $10 states, $11 part of the recipient and $12 provider; null means any. Walks messages_tenant: with filters,
-- narrow the ids by page_end to bound the work.
SELECT m.id, m.created_at, m.class, coalesce(k.secret, false) AS secret, m.kind, m.lane, m.sender, m.subject, m.tags,
  d.recipients, d.roles, d.states, d.reasons, d.providers, d.next_attempts
FROM pillarbox.messages m
LEFT JOIN pillarbox.classes k ON k.name = m.class
JOIN LATERAL (
  SELECT array_agg(d.recipient ORDER BY d.n) AS recipients, array_agg(d.role::text ORDER BY d.n) AS roles,
    array_agg(d.state::text ORDER BY d.n) AS states, array_agg(d.reason ORDER BY d.n) AS reasons,
    array_agg(p.name ORDER BY d.n) AS providers, array_agg(d.next_attempt_at ORDER BY d.n) AS next_attempts,
    bool_or(($10::text[] IS NULL OR d.state::text = ANY ($10))
      AND ($11::text IS NULL OR strpos(lower(d.recipient), lower($11)) > 0) AND ($12::text IS NULL OR p.name = $12)) AS fits
  FROM pillarbox.deliveries d LEFT JOIN pillarbox.providers p ON p.id = d.provider_id
  WHERE d.message_id = m.id
) d ON d.fits
WHERE m.tenant_id = $1 AND m.id >= $2 AND m.id < $3
  AND ($5::text IS NULL OR m.class = $5) AND ($6::text IS NULL OR m.kind = $6)
  AND ($7::text IS NULL OR $7 = ANY (m.tags)) AND ($8::text IS NULL OR strpos(lower(m.sender), lower($8)) > 0)
  AND ($9::text IS NULL OR (strpos(lower(m.subject), lower($9)) > 0 AND k.secret IS NOT TRUE))
ORDER BY m.id DESC
LIMIT $4

-- name: page_end
-- The $4-th of a tenant's ($1) messages with ids in [$2, $3), from the newest: a page looks no further. No row: there are fewer.
SELECT id FROM pillarbox.messages WHERE tenant_id = $1 AND id >= $2 AND id < $3 ORDER BY id DESC OFFSET $4::int - 1 LIMIT 1

-- name: find_messages
-- The ids of messages in [$1, $2], at most a few: to complete the beginning of an id.
SELECT id FROM pillarbox.messages WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT 5

-- name: find_recent
-- The ids among the newest $2 that end with $1 (lower case, no dashes), at most a few. Reads the primary key alone.
SELECT id FROM (SELECT id FROM pillarbox.messages ORDER BY id DESC LIMIT $2::int) newest
WHERE right(replace(id::text, '-', ''), length($1)) = $1 LIMIT 5

-- name: oldest_recent
-- The oldest of the newest $1 ids. No row: there are fewer.
SELECT id FROM pillarbox.messages ORDER BY id DESC OFFSET $1::int - 1 LIMIT 1

-- name: message
-- One message as accepted, and what is left of its content; with $2 only if it is that tenant's.
SELECT m.id, m.created_at, (SELECT name FROM pillarbox.tenants WHERE id = m.tenant_id) AS tenant, m.class,
  coalesce(k.secret, false) AS secret, m.kind, m.lane, m.sender, m."to", m.cc, m.reply_to, m.subject, m.headers, m.tags,
  m.metadata, m.size, m.send_at, m.expires_at, m.max_attempts,
  (SELECT i.key FROM pillarbox.idempotency_keys i WHERE i.message_id = m.id LIMIT 1) AS idempotency_key,
  k.retry, k.unknown, k.max_wait, c.message_id IS NOT NULL AS has_content,
  octet_length(c.text) AS text_size, octet_length(c.html) AS html_size, octet_length(c.raw) AS raw_size,
  jsonb_array_length(c.attachments) AS attachment_count
FROM pillarbox.messages m
LEFT JOIN pillarbox.classes k ON k.name = m.class
LEFT JOIN pillarbox.contents c ON c.message_id = m.id
WHERE m.id = $1 AND ($2::int IS NULL OR m.tenant_id = $2)

-- name: content
-- The content of one message, and whether its class is secret; no row when retention dropped it.
SELECT c.text, c.html, c.raw, c.attachments, coalesce(k.secret, false) AS secret
FROM pillarbox.contents c
JOIN pillarbox.messages m ON m.id = c.message_id
LEFT JOIN pillarbox.classes k ON k.name = m.class
WHERE c.message_id = $1

-- name: deliveries
-- The deliveries of one message; with $2 only if it is that tenant's.
SELECT d.n, d.recipient, d.role::text AS role, d.state::text AS state, d.attempts, d.next_attempt_at, d.claimed_at,
  d.settled_at, d.reason, d.retry, p.name AS provider, p.removed_at IS NOT NULL AS provider_removed, d.claim, d.worker, d.waiting_since
FROM pillarbox.deliveries d LEFT JOIN pillarbox.providers p ON p.id = d.provider_id
WHERE d.message_id = $1 AND ($2::int IS NULL OR d.tenant_id = $2) ORDER BY d.n

-- name: attempts
-- The attempts at one message, one row per attempt and recipient, with what was said (redacted).
SELECT a.claim, a.step, a.n, a.started_at, a.ended_at, p.name AS provider, p.removed_at IS NOT NULL AS provider_removed, coalesce(w.name, a.worker::text) AS worker, a.verdict,
  a.reason, a.code, a.reply, a.provider_message_id, c.lines AS conversation
FROM pillarbox.attempts a
LEFT JOIN pillarbox.providers p ON p.id = a.provider_id
LEFT JOIN pillarbox.workers w ON w.id = a.worker
LEFT JOIN pillarbox.conversations c ON c.message_id = a.message_id AND c.claim = a.claim
WHERE a.message_id = $1 ORDER BY a.claim, a.step, a.n

-- name: events
-- The events of one message, in order.
SELECT at, n, kind, data FROM pillarbox.events WHERE message_id = $1 ORDER BY id

-- name: states
-- How many deliveries of these messages are in which state.
SELECT state::text AS state, count(*) AS count FROM pillarbox.deliveries WHERE message_id = ANY ($1::uuid[]) GROUP BY state

-- name: deferrals
-- What deliveries of messages $1 wait for again, and why: those of one message each, those of several by reason.
SELECT CASE WHEN cardinality($1::uuid[]) = 1 THEN d.recipient END AS recipient, d.reason, count(*) AS count,
  max(d.attempts) AS attempts, min(d.next_attempt_at) AS next_attempt_at
FROM pillarbox.deliveries d
WHERE d.message_id = ANY ($1) AND d.state::text IN ('pending', 'queued') AND d.reason IS NOT NULL
GROUP BY 1, 2 ORDER BY 1, 2

-- name: select_deliveries
-- Up to $2 deliveries in $1 states (of pending, queued, failed, held) of messages with ids in [$3, $4) that fit $5 tenant,
-- $6 class, $7 kind, $8 reason and $9 provider; with $10 only those that can be sent (again).
SELECT d.message_id, d.n
FROM (
  SELECT message_id, n, tenant_id, reason, provider_id FROM pillarbox.deliveries
  WHERE state = 'pending' AND 'pending' = ANY ($1::text[])
  UNION ALL SELECT message_id, n, tenant_id, reason, provider_id FROM pillarbox.deliveries
  WHERE state = 'queued' AND attempts = 0 AND 'queued' = ANY ($1::text[])
  UNION ALL SELECT message_id, n, tenant_id, reason, provider_id FROM pillarbox.deliveries
  WHERE state = 'queued' AND attempts > 0 AND 'queued' = ANY ($1::text[])
  UNION ALL SELECT message_id, n, tenant_id, reason, provider_id FROM pillarbox.deliveries
  WHERE state IN ('failed', 'held') AND state::text = ANY ($1::text[])
) d
JOIN LATERAL (SELECT class, kind, expires_at FROM pillarbox.messages WHERE id = d.message_id LIMIT 1) m ON true
JOIN pillarbox.tenants t ON t.id = d.tenant_id
LEFT JOIN pillarbox.providers p ON p.id = d.provider_id
WHERE d.message_id >= $3 AND d.message_id < $4
  AND ($5::text IS NULL OR t.name = $5) AND ($6::text IS NULL OR m.class = $6) AND ($7::text IS NULL OR m.kind = $7)
  AND ($8::text IS NULL OR d.reason = $8) AND ($9::text IS NULL OR p.name = $9)
  AND (NOT $10::bool OR ((m.expires_at IS NULL OR m.expires_at > now())
                         AND EXISTS (SELECT FROM pillarbox.contents c WHERE c.message_id = d.message_id)))
LIMIT $2

-- name: requeue
-- Queue deliveries that are in $3 states, with all their attempts before them again, and tell it as event $4 with $5 as
-- its data. Who asked for it decides: attempts made before do not count any more. With $7 they do, but one is left at least:
-- $9 are how many the policies $8 allow. They leave through provider $6; null: as the routes say.
WITH changed AS (
  UPDATE pillarbox.deliveries d
  SET state = 'queued', next_attempt_at = now(), settled_at = NULL, claimed_at = NULL, reason = NULL, waiting_since = NULL, via = $6::int4,
    attempts = CASE WHEN $7::bool THEN least(d.attempts, coalesce(
      m.max_attempts, (SELECT p.most FROM unnest($8::text[], $9::int2[]) AS p(name, most) WHERE p.name = coalesce(d.retry, k.retry)),
      (SELECT min(most) FROM unnest($9::int2[]) AS most)) - 1) ELSE 0 END,
    retry = CASE WHEN $7 THEN d.retry END
  FROM (SELECT DISTINCT * FROM unnest($1::uuid[], $2::int2[]) AS r(message_id, n)) r
  LEFT JOIN LATERAL (SELECT max_attempts, class FROM pillarbox.messages WHERE id = r.message_id LIMIT 1) m ON true
  LEFT JOIN pillarbox.classes k ON k.name = m.class
  WHERE d.message_id = r.message_id AND d.n = r.n AND d.state::text = ANY ($3::text[])
  RETURNING d.message_id, d.n
), told AS (
  INSERT INTO pillarbox.events (message_id, n, kind, data) SELECT message_id, n, $4::text, $5::jsonb FROM changed
)
SELECT message_id, n FROM changed

-- name: finish
-- End deliveries that are in $3 states as $4, for reason $5 (null: none), and tell it as event $6 with $7 as its data; and
-- tell customers with webhooks. Contents of secret classes are dropped when nothing of the message is left to send.
WITH changed AS (
  UPDATE pillarbox.deliveries d
  SET state = $4::text::pillarbox.state, reason = $5::text, settled_at = now(), waiting_since = NULL
  FROM (SELECT DISTINCT * FROM unnest($1::uuid[], $2::int2[]) AS r(message_id, n)) r
  WHERE d.message_id = r.message_id AND d.n = r.n AND d.state::text = ANY ($3::text[])
  RETURNING d.message_id, d.n, d.tenant_id, d.attempts
), told AS (
  INSERT INTO pillarbox.events (message_id, n, kind, data) SELECT message_id, n, $6::text, $7::jsonb FROM changed
), customers AS (
  SELECT pillarbox._tell_customers(
    array_agg(c.message_id), array_agg(c.n), array_agg('message.' || $4::text), array_agg(now()),
    array_agg(jsonb_build_object('state', $4::text, 'reason', $5::text, 'attempt', c.attempts)))
  FROM changed c
  WHERE EXISTS (SELECT FROM pillarbox.webhook_endpoints e WHERE e.enabled AND e.tenant_id = c.tenant_id)
  HAVING count(*) > 0
), dropped AS (
  SELECT pillarbox._drop_secret_contents(ARRAY(SELECT DISTINCT message_id FROM changed))
)
SELECT message_id, n FROM changed
WHERE (SELECT count(*) FROM customers) >= 0 AND (SELECT count(*) FROM dropped) >= 0  -- so that both are carried out

-- name: reschedule
-- Let deliveries $2 of message $1 that were not tried yet wait until $3, or go at once if that has passed; tell it as an event
-- with $4 as its data. (`state::text`: found by their key, not by a partial index walked whole.)
WITH changed AS (
  UPDATE pillarbox.deliveries d
  SET state = CASE WHEN $3::timestamptz > now() THEN 'pending' ELSE 'queued' END::pillarbox.state,
    next_attempt_at = greatest(now(), $3), waiting_since = NULL
  WHERE d.message_id = $1 AND d.n = ANY ($2::int2[]) AND d.state::text IN ('pending', 'queued') AND d.attempts = 0
  RETURNING d.message_id, d.n
), told AS (
  INSERT INTO pillarbox.events (message_id, n, kind, data)
  SELECT message_id, n, 'rescheduled', $4::jsonb FROM changed
)
SELECT n FROM changed

-- name: tell
-- Record an event of a whole message: its kind, its data.
INSERT INTO pillarbox.events (message_id, kind, data) VALUES ($1, $2, $3::jsonb)

-- name: drop_secret_contents
-- Drop the bodies of secret classes among these messages once nothing of them is left to send.
SELECT pillarbox._drop_secret_contents($1)

-- name: wake
-- Hint to the workers that something was queued.
SELECT pg_notify('pillarbox_wake', '')

-- name: depth_by_tenant
-- Unfinished and dead-letter deliveries by tenant and state; the oldest of each that is due, as its age in seconds.
SELECT tenant, state, count, oldest FROM pillarbox._depth_by_tenant()

-- name: recent
-- What was settled in the last $2 seconds and in the last minute, for $3 tenant (null: all). Sent ones are looked for
-- among messages with ids from $1 on, so that the work does not grow with the history.
SELECT sent, failed, sent_last_minute, failed_last_minute FROM pillarbox._recent($1, $2, $3)

-- name: workers
-- Workers whose lease was not taken away, with what they hold.
SELECT w.id, w.name, w.started_at, extract(epoch FROM w.lease_until - now())::float8 AS lease_left,
  (SELECT count(*) FROM pillarbox.deliveries d WHERE d.state = 'processing' AND d.worker = w.id) AS holds
FROM pillarbox.workers w WHERE w.reaped_at IS NULL ORDER BY w.id

-- name: provider_names
-- Providers in the order in which they were added.
SELECT name, kind, enabled FROM pillarbox.providers WHERE removed_at IS NULL ORDER BY id
