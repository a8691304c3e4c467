-- name: list_messages
-- Messages with ids in [:first_id, :end_id), newest first. Filters on the message: tenant, class,
-- kind, tag, part of the sender; on at least one of its deliveries: states, part of the recipient,
-- provider, reason; null matches any. Walks the primary key: limit the ids to bound the work.
SELECT m.id, m.created_at, t.name AS tenant, m.class, m.kind, m.lane, m.sender,
  m.class IN (SELECT name FROM pillarbox.classes WHERE secret) AS secret, m.subject, m.tags,
  d.recipients, d.states,
  d.attempts, d.next_attempt_at, d.reasons, d.providers
FROM pillarbox.messages m
JOIN pillarbox.tenants t ON t.id = m.tenant_id
JOIN LATERAL (
  SELECT array_agg(d.recipient ORDER BY d.n) AS recipients,
    array_agg(d.state::text ORDER BY d.n) AS states,
    max(d.attempts) AS attempts,
    min(d.next_attempt_at) FILTER (WHERE d.state IN ('pending', 'queued')) AS next_attempt_at,
    array_agg(DISTINCT d.reason) FILTER (WHERE d.reason IS NOT NULL) AS reasons,
    array_agg(DISTINCT p.name) FILTER (WHERE p.name IS NOT NULL) AS providers,
    bool_or((:states::text[] IS NULL OR d.state::text = ANY (:states))
      AND (:recipient::text IS NULL OR strpos(lower(d.recipient), lower(:recipient)) > 0)
      AND (:provider::text IS NULL OR p.name = :provider)
      AND (:reason::text IS NULL OR d.reason = :reason)) AS fits
  FROM pillarbox.deliveries d LEFT JOIN pillarbox.providers p ON p.id = d.provider_id
  WHERE d.message_id = m.id
) d ON d.fits
WHERE m.id >= :first_id AND m.id < :end_id
  AND (:tenant::text IS NULL OR t.name = :tenant)
  AND (:class_name::text IS NULL OR m.class = :class_name)
  AND (:kind::text IS NULL OR m.kind = :kind)
  AND (:tag::text IS NULL OR :tag = ANY (m.tags))
  AND (:sender::text IS NULL OR strpos(lower(m.sender), lower(:sender)) > 0)
ORDER BY m.id DESC
LIMIT :limit

-- name: list_unfinished
-- As list_messages, for states that have their own index (pending, queued, processing, failed,
-- held): the work is bounded by the number of deliveries in them, however long the history is.
WITH found AS (
  SELECT message_id FROM pillarbox.deliveries WHERE state = 'pending'
    AND 'pending' = ANY (:states::text[])
  UNION SELECT message_id FROM pillarbox.deliveries
    WHERE state = 'queued' AND attempts = 0 AND 'queued' = ANY (:states::text[])
  UNION SELECT message_id FROM pillarbox.deliveries
    WHERE state = 'queued' AND attempts > 0 AND 'queued' = ANY (:states::text[])
  UNION SELECT message_id FROM pillarbox.deliveries
    WHERE state = 'processing' AND 'processing' = ANY (:states::text[])
  UNION SELECT message_id FROM pillarbox.deliveries
    WHERE state IN ('failed', 'held') AND state::text = ANY (:states::text[])
)
SELECT m.id, m.created_at, t.name AS tenant, m.class, m.kind, m.lane, m.sender,
  m.class IN (SELECT name FROM pillarbox.classes WHERE secret) AS secret, m.subject, m.tags,
  d.recipients, d.states,
  d.attempts, d.next_attempt_at, d.reasons, d.providers
FROM (SELECT message_id FROM found WHERE message_id >= :first_id AND message_id < :end_id
  ORDER BY message_id DESC) f
JOIN pillarbox.messages m ON m.id = f.message_id
JOIN pillarbox.tenants t ON t.id = m.tenant_id
JOIN LATERAL (
  SELECT array_agg(d.recipient ORDER BY d.n) AS recipients,
    array_agg(d.state::text ORDER BY d.n) AS states,
    max(d.attempts) AS attempts,
    min(d.next_attempt_at) FILTER (WHERE d.state IN ('pending', 'queued')) AS next_attempt_at,
    array_agg(DISTINCT d.reason) FILTER (WHERE d.reason IS NOT NULL) AS reasons,
    array_agg(DISTINCT p.name) FILTER (WHERE p.name IS NOT NULL) AS providers,
    bool_or(d.state::text = ANY (:states) AND (:recipient::text IS NULL
      OR strpos(lower(d.recipient), lower(:recipient)) > 0)
      AND (:provider::text IS NULL OR p.name = :provider)
      AND (:reason::text IS NULL OR d.reason = :reason)) AS fits
  FROM pillarbox.deliveries d LEFT JOIN pillarbox.providers p ON p.id = d.provider_id
  WHERE d.message_id = m.id
) d ON d.fits
WHERE (:tenant::text IS NULL OR t.name = :tenant)
  AND (:class_name::text IS NULL OR m.class = :class_name)
  AND (:kind::text IS NULL OR m.kind = :kind)
  AND (:tag::text IS NULL OR :tag = ANY (m.tags))
  AND (:sender::text IS NULL OR strpos(lower(m.sender), lower(:sender)) > 0)
ORDER BY m.id DESC
LIMIT :limit

-- name: page
-- A tenant's messages with ids in [:first_id, :end_id), newest first. Filters on the message:
-- class, kind, tag, part of the sender, part of the subject (never matches a secret one); on at
-- least one of its deliveries: states, part of the recipient, provider; null matches any. Walks
-- messages_tenant: with filters, limit the ids by page_end to bound the work.
SELECT m.id, m.created_at, m.class, coalesce(k.secret, false) AS secret, m.kind, m.lane, m.sender,
  m.subject, m.tags,
  d.recipients, d.roles, d.states, d.reasons, d.providers, d.next_attempts
FROM pillarbox.messages m
LEFT JOIN pillarbox.classes k ON k.name = m.class
JOIN LATERAL (
  SELECT array_agg(d.recipient ORDER BY d.n) AS recipients,
    array_agg(d.role::text ORDER BY d.n) AS roles,
    array_agg(d.state::text ORDER BY d.n) AS states, array_agg(d.reason ORDER BY d.n) AS reasons,
    array_agg(p.name ORDER BY d.n) AS providers, array_agg(d.next_attempt_at
      ORDER BY d.n) AS next_attempts,
    bool_or((:states::text[] IS NULL OR d.state::text = ANY (:states))
      AND (:recipient::text IS NULL OR strpos(lower(d.recipient), lower(:recipient)) > 0)
      AND (:provider::text IS NULL OR p.name = :provider)) AS fits
  FROM pillarbox.deliveries d LEFT JOIN pillarbox.providers p ON p.id = d.provider_id
  WHERE d.message_id = m.id
) d ON d.fits
WHERE m.tenant_id = :tenant_id AND m.id >= :first_id AND m.id < :end_id
  AND (:class_name::text IS NULL OR m.class = :class_name)
  AND (:kind::text IS NULL OR m.kind = :kind)
  AND (:tag::text IS NULL OR :tag = ANY (m.tags))
  AND (:sender::text IS NULL OR strpos(lower(m.sender), lower(:sender)) > 0)
  AND (:subject::text IS NULL OR (strpos(lower(m.subject), lower(:subject)) > 0
  AND k.secret IS NOT TRUE))
ORDER BY m.id DESC
LIMIT :limit

-- name: page_end
-- The :position-th of a tenant's messages with ids in [:first_id, :end_id), from the newest: a
-- page reads no further. No row if there are fewer.
SELECT id FROM pillarbox.messages WHERE tenant_id = :tenant_id AND id >= :first_id AND id < :end_id
  ORDER BY id DESC OFFSET :position::int - 1 LIMIT 1

-- name: find_messages
-- The ids in [:first_id, :last_id], at most a few: completes the beginning of an id.
SELECT id FROM pillarbox.messages WHERE id BETWEEN :first_id AND :last_id ORDER BY id LIMIT 5

-- name: find_recent
-- The ids among the newest :newest that end with :ending (lower case, no dashes), at most a few.
-- Reads the primary key only.
SELECT id FROM (SELECT id FROM pillarbox.messages ORDER BY id DESC LIMIT :newest::int) newest
WHERE right(replace(id::text, '-', ''), length(:ending)) = :ending LIMIT 5

-- name: oldest_recent
-- The oldest of the newest :position ids. No row if there are fewer.
SELECT id FROM pillarbox.messages ORDER BY id DESC OFFSET :position::int - 1 LIMIT 1

-- name: message
-- One message as accepted, and the sizes of its content; with :tenant_id only if it is that
-- tenant's.
SELECT m.id, m.created_at, (SELECT name FROM pillarbox.tenants WHERE id = m.tenant_id) AS tenant,
  m.class,
  coalesce(k.secret, false) AS secret, m.kind, m.lane, m.sender, m."to", m.cc, m.reply_to,
  m.subject, m.headers, m.tags,
  m.metadata, m.size, m.send_at, m.expires_at, m.max_attempts,
  (SELECT i.key FROM pillarbox.idempotency_keys i
    WHERE i.message_id = m.id LIMIT 1) AS idempotency_key,
  k.retry, k.unknown, k.max_wait, c.message_id IS NOT NULL AS has_content,
  octet_length(c.text) AS text_size, octet_length(c.html) AS html_size,
  octet_length(c.raw) AS raw_size,
  jsonb_array_length(c.attachments) AS attachment_count
FROM pillarbox.messages m
LEFT JOIN pillarbox.classes k ON k.name = m.class
LEFT JOIN pillarbox.contents c ON c.message_id = m.id
WHERE m.id = :id AND (:tenant_id::int IS NULL OR m.tenant_id = :tenant_id)

-- name: content
-- The content of one message, and whether its class is secret; no row when retention dropped it.
SELECT c.text, c.html, c.raw, c.attachments, coalesce(k.secret, false) AS secret
FROM pillarbox.contents c
JOIN pillarbox.messages m ON m.id = c.message_id
LEFT JOIN pillarbox.classes k ON k.name = m.class
WHERE c.message_id = :message_id

-- name: deliveries
-- The deliveries of one message; with :tenant_id only if it is that tenant's.
SELECT d.n, d.recipient, d.role::text AS role, d.state::text AS state, d.attempts,
  d.next_attempt_at, d.claimed_at,
  d.settled_at, d.reason, d.retry, p.name AS provider, p.removed_at IS NOT NULL AS provider_removed,
  d.claim, d.worker, d.waiting_since
FROM pillarbox.deliveries d LEFT JOIN pillarbox.providers p ON p.id = d.provider_id
WHERE d.message_id = :message_id AND (:tenant_id::int IS NULL OR d.tenant_id = :tenant_id)
  ORDER BY d.n

-- name: attempts
-- The attempts at one message, one row per attempt and recipient, with transcripts (redacted).
SELECT a.claim, a.step, a.n, a.started_at, a.ended_at, p.name AS provider,
  p.removed_at IS NOT NULL AS provider_removed, coalesce(w.name, a.worker::text) AS worker,
  a.verdict,
  a.reason, a.code, a.reply, a.provider_message_id, c.lines AS conversation
FROM pillarbox.attempts a
LEFT JOIN pillarbox.providers p ON p.id = a.provider_id
LEFT JOIN pillarbox.workers w ON w.id = a.worker
LEFT JOIN pillarbox.conversations c ON c.message_id = a.message_id AND c.claim = a.claim
WHERE a.message_id = :message_id ORDER BY a.claim, a.step, a.n

-- name: events
-- The events of one message, in order.
SELECT at, n, kind, data FROM pillarbox.events WHERE message_id = :message_id ORDER BY id

-- name: states
-- The deliveries of these messages, counted by state.
SELECT state::text AS state, count(*) AS count FROM pillarbox.deliveries
  WHERE message_id = ANY (:message_ids::uuid[]) GROUP BY state

-- name: deferrals
-- The deferred deliveries of these messages: of one message by recipient, of several by reason.
SELECT CASE WHEN cardinality(:message_ids::uuid[]) = 1
  THEN d.recipient END AS recipient, d.reason, count(*) AS count,
  max(d.attempts) AS attempts, min(d.next_attempt_at) AS next_attempt_at
FROM pillarbox.deliveries d
WHERE d.message_id = ANY (:message_ids) AND d.state::text IN ('pending', 'queued')
  AND d.reason IS NOT NULL
GROUP BY 1, 2 ORDER BY 1, 2

-- name: select_deliveries
-- Up to :limit deliveries in these states (of pending, queued, failed, held) of messages with ids
-- in [:first_id, :end_id) that match tenant, class, kind, reason and provider (null matches any);
-- with :sendable_only only those that can be sent.
SELECT d.message_id, d.n
FROM (
  SELECT message_id, n, tenant_id, reason, provider_id FROM pillarbox.deliveries
  WHERE state = 'pending' AND 'pending' = ANY (:states::text[])
  UNION ALL SELECT message_id, n, tenant_id, reason, provider_id FROM pillarbox.deliveries
  WHERE state = 'queued' AND attempts = 0 AND 'queued' = ANY (:states::text[])
  UNION ALL SELECT message_id, n, tenant_id, reason, provider_id FROM pillarbox.deliveries
  WHERE state = 'queued' AND attempts > 0 AND 'queued' = ANY (:states::text[])
  UNION ALL SELECT message_id, n, tenant_id, reason, provider_id FROM pillarbox.deliveries
  WHERE state IN ('failed', 'held') AND state::text = ANY (:states::text[])
) d
JOIN LATERAL (SELECT class, kind, expires_at FROM pillarbox.messages
  WHERE id = d.message_id LIMIT 1) m ON true
JOIN pillarbox.tenants t ON t.id = d.tenant_id
LEFT JOIN pillarbox.providers p ON p.id = d.provider_id
WHERE d.message_id >= :first_id AND d.message_id < :end_id
  AND (:tenant::text IS NULL OR t.name = :tenant)
  AND (:class_name::text IS NULL OR m.class = :class_name)
  AND (:kind::text IS NULL OR m.kind = :kind)
  AND (:reason::text IS NULL OR d.reason = :reason)
  AND (:provider::text IS NULL OR p.name = :provider)
  AND (NOT :sendable_only::bool OR ((m.expires_at IS NULL OR m.expires_at > now())
                         AND EXISTS (SELECT FROM pillarbox.contents c
                           WHERE c.message_id = d.message_id)))
LIMIT :limit

-- name: requeue
-- Queue deliveries in these states again, and write an event. Earlier attempts do not count any
-- more. With :keep_attempts they do, but at least one attempt is left: :max_attempts are the
-- limits of :policies. They leave through :provider_id; null: by the routes.
WITH changed AS (
  UPDATE pillarbox.deliveries d
  SET state = 'queued', next_attempt_at = now(), settled_at = NULL, claimed_at = NULL,
    reason = NULL, waiting_since = NULL, via = :provider_id::int4,
    attempts = CASE WHEN :keep_attempts::bool THEN least(d.attempts, coalesce(
      m.max_attempts, (SELECT p.most FROM unnest(:policies::text[],
      :max_attempts::int2[]) AS p(name, most) WHERE p.name = coalesce(d.retry, k.retry)),
      (SELECT min(most) FROM unnest(:max_attempts::int2[]) AS most)) - 1) ELSE 0 END,
    retry = CASE WHEN :keep_attempts THEN d.retry END
  FROM (SELECT DISTINCT * FROM unnest(:message_ids::uuid[],
    :recipient_numbers::int2[]) AS r(message_id, n)) r
  LEFT JOIN LATERAL (SELECT max_attempts, class FROM pillarbox.messages
    WHERE id = r.message_id LIMIT 1) m ON true
  LEFT JOIN pillarbox.classes k ON k.name = m.class
  WHERE d.message_id = r.message_id AND d.n = r.n AND d.state::text = ANY (:states::text[])
  RETURNING d.message_id, d.n
), told AS (
  INSERT INTO pillarbox.events (message_id, n, kind, data)
    SELECT message_id, n, :event::text, :data::jsonb FROM changed
)
SELECT message_id, n FROM changed

-- name: finish
-- End deliveries in these states, write an event, and notify customers. Contents of secret classes
-- are dropped when nothing of the message is left to send.
WITH changed AS (
  UPDATE pillarbox.deliveries d
  SET state = :new_state::text::pillarbox.state, reason = :reason::text, settled_at = now(),
    waiting_since = NULL
  FROM (SELECT DISTINCT * FROM unnest(:message_ids::uuid[],
    :recipient_numbers::int2[]) AS r(message_id, n)) r
  WHERE d.message_id = r.message_id AND d.n = r.n AND d.state::text = ANY (:states::text[])
  RETURNING d.message_id, d.n, d.tenant_id, d.attempts
), told AS (
  INSERT INTO pillarbox.events (message_id, n, kind, data)
    SELECT message_id, n, :event::text, :data::jsonb FROM changed
), customers AS (
  SELECT pillarbox._tell_customers(
    array_agg(c.message_id), array_agg(c.n), array_agg('message.' || :new_state::text),
    array_agg(now()),
    array_agg(jsonb_build_object('state', :new_state::text, 'reason', :reason::text, 'attempt',
    c.attempts)))
  FROM changed c
  WHERE EXISTS (SELECT FROM pillarbox.webhook_endpoints e
    WHERE e.enabled AND e.tenant_id = c.tenant_id)
  HAVING count(*) > 0
), dropped AS (
  SELECT pillarbox._drop_secret_contents(ARRAY(SELECT DISTINCT message_id FROM changed))
)
SELECT message_id, n FROM changed
-- so that both are carried out
WHERE (SELECT count(*) FROM customers) >= 0 AND (SELECT count(*) FROM dropped) >= 0

-- name: reschedule
-- Schedule the untried ones of these deliveries, or queue them if the time has passed; write an
-- event. (`state::text` keeps the planner on the primary key, off the partial indexes.)
WITH changed AS (
  UPDATE pillarbox.deliveries d
  SET state = CASE WHEN :send_at::timestamptz > now() THEN 'pending'
    ELSE 'queued' END::pillarbox.state,
    next_attempt_at = greatest(now(), :send_at), waiting_since = NULL
  WHERE d.message_id = :message_id AND d.n = ANY (:recipient_numbers::int2[])
    AND d.state::text IN ('pending', 'queued') AND d.attempts = 0
  RETURNING d.message_id, d.n
), told AS (
  INSERT INTO pillarbox.events (message_id, n, kind, data)
  SELECT message_id, n, 'rescheduled', :data::jsonb FROM changed
)
SELECT n FROM changed

-- name: record_event
-- Write an event of a whole message.
INSERT INTO pillarbox.events (message_id, kind, data) VALUES (:message_id, :kind, :data::jsonb)

-- name: drop_secret_contents
-- Drop the contents of secret classes of these messages if nothing of them is left to send.
SELECT pillarbox._drop_secret_contents(:message_ids)

-- name: wake
-- Send the wake-up hint to the workers.
SELECT pg_notify('pillarbox_wake', '')

-- name: depth_by_tenant
-- Unfinished and failed deliveries by tenant and state, with the age in seconds of the oldest due
-- one.
SELECT tenant, state, count, oldest FROM pillarbox._depth_by_tenant()

-- name: recent
-- What was settled in the last :seconds and in the last minute, for a tenant (null: all). Sent
-- deliveries are searched among messages with ids from :first_id on, so that the work does not
-- grow with the history.
SELECT sent, failed, sent_last_minute, failed_last_minute
  FROM pillarbox._recent(:first_id, :seconds, :tenant)

-- name: workers
-- Workers whose claims were not reaped, with the number of claimed deliveries.
SELECT w.id, w.name, w.started_at, extract(epoch FROM w.lease_until - now())::float8 AS lease_left,
  (SELECT count(*) FROM pillarbox.deliveries d WHERE d.state = 'processing'
    AND d.worker = w.id) AS holds
FROM pillarbox.workers w WHERE w.reaped_at IS NULL ORDER BY w.id

-- name: provider_names
-- Providers in the order in which they were added.
SELECT name, kind, enabled FROM pillarbox.providers WHERE removed_at IS NULL ORDER BY id
