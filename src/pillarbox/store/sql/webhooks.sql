-- name: new_id
-- A new id of an endpoint or a call.
SELECT pillarbox._new_id()

-- name: add_endpoint
-- Add an endpoint; no row if the tenant has :max_endpoints already. The id is given, since the
-- sealed secret is bound to it.
INSERT INTO pillarbox.webhook_endpoints (id, tenant_id, url, kinds, secret)
SELECT :id, :tenant_id, :url, :kinds, :secret
  WHERE (SELECT count(*) FROM pillarbox.webhook_endpoints
  WHERE tenant_id = :tenant_id) < :max_endpoints::int
RETURNING id

-- name: endpoints
-- Endpoints in the order in which they were added, of a tenant and with an id; null matches any.
SELECT e.id, e.tenant_id, t.name AS tenant, e.url, e.kinds, e.enabled, e.disabled_at,
  e.disabled_reason, e.failing_since,
  e.created_at, CASE WHEN e.old_secret_until > now()
    THEN e.old_secret_until END AS old_secret_until,
  (SELECT count(*) FROM (SELECT FROM pillarbox.webhook_calls c
    WHERE c.endpoint_id = e.id AND c.state = 'waiting' LIMIT :count_limit) one) AS waiting
FROM pillarbox.webhook_endpoints e JOIN pillarbox.tenants t ON t.id = e.tenant_id
WHERE (:tenant_id::int IS NULL OR e.tenant_id = :tenant_id) AND (:id::uuid IS NULL OR e.id = :id)
ORDER BY e.created_at, e.id

-- name: find_endpoints
-- The ids of endpoints with this beginning, of a tenant (null: any); two are enough to show that
-- there are several.
SELECT id FROM pillarbox.webhook_endpoints WHERE id::text LIKE :beginning || '%'
  AND (:tenant_id::int IS NULL OR tenant_id = :tenant_id) LIMIT 2

-- name: change_endpoint
-- Set the URL and the kinds (null: all) of an endpoint; no row if the tenant has none of this id.
UPDATE pillarbox.webhook_endpoints SET url = :url, kinds = :kinds
  WHERE id = :id AND tenant_id = :tenant_id RETURNING id

-- name: enable_endpoint
-- Enable an endpoint; no row if the tenant has none of this id.
WITH enabled AS (
  UPDATE pillarbox.webhook_endpoints SET enabled = true, disabled_at = NULL, disabled_reason = NULL,
    failing_since = NULL
  WHERE id = :id AND tenant_id = :tenant_id RETURNING id
)
SELECT id, pg_notify('pillarbox_webhooks', '') FROM enabled

-- name: hasten
-- Make up to :limit waiting calls due now; returns how many.
WITH due AS (
  UPDATE pillarbox.webhook_calls SET next_at = now()
  WHERE id = ANY (ARRAY(SELECT id FROM pillarbox.webhook_calls
                        WHERE endpoint_id = :endpoint_id AND state = 'waiting' AND claim IS NULL
                          AND next_at > now() LIMIT :limit))
    AND state = 'waiting' AND claim IS NULL RETURNING 1
)
SELECT count(*) FROM due

-- name: disable_endpoint
-- Disable an endpoint at a person's request; no row if the tenant has none of this id.
UPDATE pillarbox.webhook_endpoints
SET enabled = false, disabled_at = coalesce(disabled_at, now()),
  disabled_reason = coalesce(disabled_reason, 'person')
WHERE id = :id AND tenant_id = :tenant_id RETURNING id

-- name: rotate_endpoint
-- Set a new secret; the current one signs, too, for :grace. No row if the tenant has none of this
-- id.
UPDATE pillarbox.webhook_endpoints SET old_secret = secret,
  old_secret_until = now() + :grace::interval, secret = :secret
WHERE id = :id AND tenant_id = :tenant_id RETURNING id

-- name: remove_endpoint
-- Delete an endpoint and its secrets; no row if the tenant has none of this id.
DELETE FROM pillarbox.webhook_endpoints WHERE id = :id AND tenant_id = :tenant_id RETURNING id

-- name: drop_calls
-- Delete up to :limit calls of a deleted endpoint.
DELETE FROM pillarbox.webhook_calls WHERE id = ANY (ARRAY(
  SELECT * FROM (SELECT id FROM pillarbox.webhook_calls
    WHERE endpoint_id = :endpoint_id LIMIT :limit) dropped LIMIT 5000))

-- name: sealed_secrets
-- All stored secrets.
SELECT id, secret, old_secret FROM pillarbox.webhook_endpoints FOR UPDATE

-- name: reseal
-- Replace the sealed secrets of an endpoint.
UPDATE pillarbox.webhook_endpoints SET secret = :secret, old_secret = :old_secret WHERE id = :id

-- name: claim
-- Claim due calls for :lease seconds: at most :limit, and per endpoint at most :per_endpoint minus
-- the caller's current calls (:busy_endpoints, :busy_counts), or one at a time while it fails. Of
-- a message's calls only the first that waits. The first calls of all endpoints come before any
-- second one. Jumps from endpoint to endpoint in the index: the work is bounded by the number of
-- endpoints with waiting calls. `next_at` is the end of the lease: if the dispatcher dies, the
-- call is due then. Each ORDER BY keeps the planner on the index with this order, whatever the
-- statistics say. CASE, BETWEEN and LIMIT 200, the maximum of :per_endpoint, keep the estimated
-- cost independent of the number of calls (ADR 0018).
WITH RECURSIVE waiting AS (
  (SELECT c.endpoint_id FROM pillarbox.webhook_calls c WHERE c.state = 'waiting'
    ORDER BY c.endpoint_id LIMIT 1)
  UNION ALL
  SELECT next.endpoint_id FROM waiting s CROSS JOIN LATERAL (
    SELECT c.endpoint_id FROM pillarbox.webhook_calls c
      WHERE c.state = 'waiting' AND c.endpoint_id > s.endpoint_id
    ORDER BY c.endpoint_id LIMIT 1) next
), open AS MATERIALIZED (
  SELECT e.id, e.url, e.secret, CASE WHEN e.old_secret_until > now()
    THEN e.old_secret END AS old_secret,
    CASE WHEN e.failing_since IS NULL THEN :per_endpoint::int
      ELSE 1 END - coalesce(b.count, 0) AS room
  FROM waiting s
  JOIN pillarbox.webhook_endpoints e ON e.id = s.endpoint_id AND e.enabled
  LEFT JOIN unnest(:busy_endpoints::uuid[], :busy_counts::int[]) AS b(id, count) ON b.id = e.id
), due AS MATERIALIZED (
  SELECT c.id, row_number() OVER (PARTITION BY o.id ORDER BY c.next_at) AS nth
  FROM (SELECT * FROM open WHERE room BETWEEN 1 AND 1000000) o CROSS JOIN LATERAL (SELECT * FROM (
    SELECT c.id, c.next_at FROM pillarbox.webhook_calls c
    WHERE c.endpoint_id = o.id AND c.state = 'waiting' AND c.next_at <= now()
      AND CASE c.seq WHEN (SELECT b.seq FROM pillarbox.webhook_calls b
                           WHERE b.endpoint_id = c.endpoint_id AND b.message_id = c.message_id
                             AND b.state = 'waiting'
                           ORDER BY b.endpoint_id, b.message_id, b.seq LIMIT 1) THEN true
                             ELSE false END
    ORDER BY c.next_at LIMIT o.room FOR UPDATE SKIP LOCKED) locked LIMIT 200) c
), claimed AS (
  UPDATE pillarbox.webhook_calls c
  SET next_at = now() + :lease::float8 * interval '1 second',
    claim = nextval('pillarbox.webhook_claim_seq')
  WHERE c.id = ANY (ARRAY(SELECT id FROM due ORDER BY nth LIMIT :limit)) AND c.state = 'waiting'
  RETURNING c.*
)
SELECT c.id, c.claim, c.endpoint_id, c.kind, c.at, c.payload, c.attempts, o.url, o.secret,
  o.old_secret
FROM claimed c JOIN open o ON o.id = c.endpoint_id ORDER BY c.seq

-- name: due_in
-- Seconds until the next call of an enabled endpoint is due; null if no call waits.
WITH RECURSIVE waiting AS (
  (SELECT c.endpoint_id, c.next_at FROM pillarbox.webhook_calls c WHERE c.state = 'waiting'
    ORDER BY c.endpoint_id, c.next_at LIMIT 1)
  UNION ALL
  SELECT next.endpoint_id, next.next_at FROM waiting s CROSS JOIN LATERAL (
    SELECT c.endpoint_id, c.next_at FROM pillarbox.webhook_calls c
      WHERE c.state = 'waiting' AND c.endpoint_id > s.endpoint_id
    ORDER BY c.endpoint_id, c.next_at LIMIT 1) next
)
SELECT extract(epoch FROM min(s.next_at) - now())::float8
FROM waiting s JOIN pillarbox.webhook_endpoints e ON e.id = s.endpoint_id AND e.enabled

-- name: settle_call
-- Store the result of a try (delivered, failed, or waiting for :delay seconds), if the claim is
-- still held. Later calls of the message may be made now, or wait as long. The endpoint is
-- disabled when it is gone, or when it has only failed for :disable_after seconds; then the reason
-- is returned.
WITH settled AS (
  UPDATE pillarbox.webhook_calls
  SET state = :state, attempts = attempts + 1, claim = NULL, ended_at = now(),
    took = :took::float8 * interval '1 second',
      next_at = CASE WHEN :state = 'waiting' THEN now() + :delay::float8 * interval '1 second'
        ELSE now() END, status = :status, error = :error
  WHERE id = :id AND claim = :claim
  RETURNING endpoint_id, message_id, seq, next_at
), followers AS (
  UPDATE pillarbox.webhook_calls c SET next_at = s.next_at
  FROM settled s
  WHERE c.id = ANY (ARRAY(
      SELECT b.id FROM settled s CROSS JOIN LATERAL (
        SELECT b.id FROM pillarbox.webhook_calls b
        WHERE b.endpoint_id = s.endpoint_id AND b.message_id = s.message_id AND b.state = 'waiting'
          AND b.seq > s.seq
        ORDER BY b.endpoint_id, b.message_id, b.seq LIMIT 1000) b))
    AND c.state = 'waiting' AND c.claim IS NULL AND c.attempts = 0
), well AS (
  UPDATE pillarbox.webhook_endpoints e SET failing_since = NULL
  FROM settled s WHERE e.id = s.endpoint_id AND :state = 'delivered' AND e.failing_since IS NOT NULL
), ill AS (
  UPDATE pillarbox.webhook_endpoints e
  SET failing_since = coalesce(e.failing_since, now()), enabled = NOT past.is_over,
      disabled_at = CASE WHEN past.is_over THEN now() END,
      disabled_reason = CASE WHEN :gone::bool THEN 'gone' WHEN past.is_over THEN 'failing' END
  FROM settled s
  JOIN LATERAL (SELECT :gone::bool
    OR coalesce(i.failing_since < now() - :disable_after::float8 * interval '1 second',
    false) AS is_over
                FROM pillarbox.webhook_endpoints i WHERE i.id = s.endpoint_id) past ON true
  WHERE e.id = s.endpoint_id AND :state <> 'delivered' AND e.enabled
    AND (e.failing_since IS NULL OR past.is_over)
  RETURNING e.tenant_id, e.disabled_reason
)
SELECT true AS settled, (SELECT tenant_id FROM ill) AS tenant_id,
  (SELECT disabled_reason FROM ill) AS disabled FROM settled

-- name: release_call
-- Release a call that was not made.
UPDATE pillarbox.webhook_calls SET claim = NULL, next_at = now() WHERE id = :id AND claim = :claim

-- name: add_test
-- Store a test call, claimed by the caller; no row if there is no such endpoint. It counts as
-- failed until it is settled, and is never repeated.
WITH tested AS (
  INSERT INTO pillarbox.webhook_calls (id, endpoint_id, kind, at, payload, state, next_at, claim,
    error)
  SELECT :id, e.id, :kind::text, now(), :payload::jsonb, 'failed', now(),
    nextval('pillarbox.webhook_claim_seq'), 'the test did not end'
  FROM pillarbox.webhook_endpoints e WHERE e.id = :endpoint_id AND e.tenant_id = :tenant_id
  RETURNING *
)
SELECT c.id, c.claim, c.endpoint_id, c.kind, c.at, c.payload, c.attempts, e.url, e.secret,
  CASE WHEN e.old_secret_until > now() THEN e.old_secret END AS old_secret
FROM tested c JOIN pillarbox.webhook_endpoints e ON e.id = c.endpoint_id

-- name: settle_test
-- Store the result of a test call: it does not change the endpoint's health and is not repeated.
UPDATE pillarbox.webhook_calls
SET state = :state, attempts = 1, claim = NULL, ended_at = now(), status = :status, error = :error,
  took = :took::float8 * interval '1 second'
WHERE id = :id AND claim = :claim

-- name: calls
-- The calls of an endpoint of a tenant in these states, newest first, before :before (null: from
-- the newest). (BETWEEN instead of = leaves only the index of the log with this order, so that the
-- planner does not read all calls for the few failed ones.)
SELECT c.id, c.message_id, c.n, c.kind, c.at, c.payload, c.state, c.attempts, c.replays, c.status,
  c.error, c.ended_at,
  extract(epoch FROM c.took)::float8 AS took, CASE
    WHEN c.state = 'waiting' THEN c.next_at END AS next_at, c.claim IS NOT NULL AS in_hand
FROM unnest(:states::text[]) AS s(state) CROSS JOIN LATERAL (
  SELECT * FROM pillarbox.webhook_calls c
  WHERE c.endpoint_id = :endpoint_id AND c.state BETWEEN s.state AND s.state
    AND (:before::uuid IS NULL OR c.id < :before)
    AND EXISTS (SELECT FROM pillarbox.webhook_endpoints e
      WHERE e.id = :endpoint_id AND e.tenant_id = :tenant_id)
  ORDER BY c.state DESC, c.id DESC LIMIT :limit) c
ORDER BY c.id DESC LIMIT :limit

-- name: replay
-- Make calls of an endpoint due now, as if they had not been made: those in these states with ids
-- from :first_id (or after :after) to before :end_id, oldest first. Claimed and due calls and
-- tests are not changed. Returns how many, and the last one read: with it as :after no call is
-- replayed twice, however quickly it is delivered.
WITH chosen AS MATERIALIZED (
  SELECT c.id FROM unnest(:states::text[]) AS s(state) CROSS JOIN LATERAL (
    SELECT c.id FROM pillarbox.webhook_calls c
    WHERE c.endpoint_id = :endpoint_id AND c.state BETWEEN s.state AND s.state
      AND c.message_id IS NOT NULL AND c.claim IS NULL
      AND c.id >= :first_id AND c.id < :end_id AND (:after::uuid IS NULL OR c.id > :after)
      AND (c.state <> 'waiting' OR c.next_at > now())
    ORDER BY c.state, c.id LIMIT :limit) c
  ORDER BY c.id LIMIT :limit
), replayed AS (
  UPDATE pillarbox.webhook_calls c SET state = 'waiting', attempts = 0,
    replays = least(c.replays, 32766) + 1, next_at = now()
  WHERE c.id = ANY (ARRAY(SELECT id FROM chosen)) AND c.claim IS NULL RETURNING 1
)
SELECT count(*)::int AS replayed, pg_notify('pillarbox_webhooks', ''),
  (SELECT id FROM chosen OFFSET :limit - 1) AS last FROM replayed

-- name: replay_these
-- As replay, for these calls.
WITH replayed AS (
  UPDATE pillarbox.webhook_calls c SET state = 'waiting', attempts = 0,
    replays = least(c.replays, 32766) + 1, next_at = now()
  WHERE c.id = ANY (:ids::uuid[]) AND c.endpoint_id = :endpoint_id AND c.message_id IS NOT NULL
    AND c.claim IS NULL RETURNING 1
)
SELECT count(*)::int AS replayed, pg_notify('pillarbox_webhooks', '') FROM replayed

-- name: count_waiting
-- Waiting calls of enabled endpoints, counted up to :limit.
SELECT count(*) FROM (
  SELECT FROM pillarbox.webhook_endpoints e
  JOIN pillarbox.webhook_calls c ON c.endpoint_id = e.id AND c.state = 'waiting'
    WHERE e.enabled LIMIT :limit) one

-- name: purge_calls
-- Delete up to :limit calls older than :age that will not be made any more.
DELETE FROM pillarbox.webhook_calls WHERE id = ANY (ARRAY(
  SELECT * FROM (SELECT c.id FROM pillarbox.webhook_calls c
  WHERE c.id < encode(overlay('\x00000000000000000000000000000000'::bytea PLACING
      substring(int8send((extract(epoch FROM now() - :age::interval) * 1000)::bigint) FROM 3)
        FROM 1 FOR 6), 'hex')::uuid
    AND (c.state <> 'waiting' OR NOT EXISTS (SELECT FROM pillarbox.webhook_endpoints e
      WHERE e.id = c.endpoint_id AND e.enabled))
  ORDER BY c.id LIMIT :limit) old LIMIT 10000))
