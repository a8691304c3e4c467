-- name: count
-- How many tokens can be taken now, and how many of them are urgent; counted up to :limit.
-- (Ordered, so that the index is used: the table may be full of dead rows.)
SELECT (SELECT count(*) FROM (SELECT FROM {schema}.waiting WHERE held IS NULL
  ORDER BY lane, token LIMIT :limit::int) w)::int AS ready,
  (SELECT count(*) FROM (
    SELECT FROM {schema}.waiting WHERE held IS NULL AND lane = 0
      ORDER BY lane, token LIMIT :limit::int) w)::int AS urgent

-- name: take
-- Lock up to :limit tokens in lanes up to :max_lane (0: urgent only) until the transaction ends,
-- with everything that a mail needs and a verdict: null if it is to be mailed. Skips tokens that
-- other collectors have locked. (LIMIT 1 keeps the look-ups on keys, whatever the statistics say.
-- LIMIT 10000, the maximum of :limit, and a condition that is always true and has no statistics
-- (`+ 0`) keep the estimated cost independent of the number of tokens, ADR 0018.)
WITH taken AS MATERIALIZED (SELECT * FROM (
  SELECT token, lane FROM {schema}.waiting WHERE held IS NULL AND lane <= :max_lane::int2
  ORDER BY lane, token LIMIT :limit::int FOR UPDATE SKIP LOCKED) locked LIMIT 10000
)
SELECT w.token, t.account, t.action::text AS action, c.number, c.path, c.with_code, t.secret,
  t.code, t.expires_at, t.created_at,
  a.email, a.login, a.name, a.portal, a.locale, c.template, w.lane, a.data AS account_data,
  t.data AS token_data,
  CASE
    WHEN a.id IS NULL OR c.name IS NULL THEN 'gone'
    WHEN t.consumed_at IS NOT NULL THEN 'consumed'
    WHEN t.expires_at <= extract(epoch FROM now()) THEN 'expired'
    WHEN EXISTS (SELECT FROM {schema}.tokens n WHERE n.account = t.account AND n.action = t.action
      AND n.id > t.id) THEN 'superseded'
    WHEN a.status <> ALL (c.eligible) THEN 'account'
  END AS verdict
FROM (SELECT * FROM taken WHERE token + 0 BETWEEN 1 AND 9223372036854775806) w
LEFT JOIN LATERAL (SELECT * FROM {schema}.tokens WHERE id = w.token LIMIT 1) t ON true
LEFT JOIN LATERAL (SELECT * FROM {schema}.accounts WHERE id = t.account LIMIT 1) a ON true
LEFT JOIN {schema}.actions c ON c.name = t.action::text
ORDER BY w.lane, w.token

-- name: settle
-- End tokens with their outcomes and messages. The row :queue of jobs shows the progress, unless
-- another collector is updating it.
WITH settled AS (
  DELETE FROM {schema}.waiting WHERE token = ANY (:tokens::bigint[])
), told AS (
  INSERT INTO {schema}.collected (token, outcome, message_id)
  SELECT * FROM unnest(:tokens::bigint[], :outcomes::text[], :message_ids::uuid[])
  ON CONFLICT (token) DO UPDATE SET at = now(), outcome = EXCLUDED.outcome,
  message_id = EXCLUDED.message_id
)
UPDATE {schema}.jobs SET last_seq = (SELECT max(token) FROM unnest(:tokens::bigint[]) AS token)
WHERE job_type IN (SELECT job_type FROM {schema}.jobs
  WHERE job_type::text = :queue FOR UPDATE SKIP LOCKED)
  AND coalesce(last_seq, 0) < (SELECT max(token) FROM unnest(:tokens::bigint[]) AS token)

-- name: hold
-- Hold tokens for a reason (account, rendering) and problem: `rendering` for :seconds; `account`
-- until they expire, but at most for a minute, or for their age if that is longer: a status change
-- that was not committed yet did not release them.
UPDATE {schema}.waiting w SET held = g.held, problem = left(g.problem, 1000),
  tries = w.tries + CASE g.held WHEN 'rendering' THEN 1 ELSE 0 END,
  held_until = CASE g.held WHEN 'rendering' THEN now() + g.seconds * interval '1 second'
    ELSE coalesce((
      SELECT least(to_timestamp(t.expires_at),
        now() + greatest(interval '1 minute', now() - to_timestamp(t.created_at)))
      FROM {schema}.tokens t WHERE t.id = w.token), now()) END
FROM unnest(:tokens::bigint[], :reasons::text[], :problems::text[], :seconds::float8[]) AS g(token,
  held, problem, seconds)
WHERE w.token = g.token

-- name: release_due
-- Release up to :limit tokens whose hold has ended.
WITH due AS (
  SELECT token FROM {schema}.waiting WHERE held IS NOT NULL AND held_until <= now()
  ORDER BY held_until LIMIT :limit::int FOR UPDATE SKIP LOCKED
), released AS (
  UPDATE {schema}.waiting SET held = NULL, held_until = NULL
    WHERE token = ANY (ARRAY(SELECT token FROM due)) RETURNING token
)
SELECT count(*)::int FROM released

-- name: await_older
-- Wait for collectors that have locked older tokens of the same accounts and actions, so that
-- their mails are visible.
SELECT w.token FROM {schema}.waiting w
WHERE w.token = ANY (ARRAY(
  SELECT o.id FROM unnest(:tokens::bigint[]) AS given(id)
  JOIN LATERAL (SELECT account, action FROM {schema}.tokens WHERE id = given.id LIMIT 1) t ON true
  JOIN LATERAL (SELECT id FROM {schema}.tokens WHERE account = t.account AND action = t.action
    AND id < given.id
                ORDER BY id DESC LIMIT :limit::int) o ON true
))
ORDER BY w.token FOR UPDATE

-- name: supersede
-- Cancel unsent mails of older tokens (at most :limit for each) of the same accounts and actions;
-- write events and notify customers. Returns the message of each cancelled delivery.
WITH older AS MATERIALIZED (
  SELECT given.id AS newer, o.id FROM unnest(:tokens::bigint[]) AS given(id)
  JOIN LATERAL (SELECT account, action FROM {schema}.tokens WHERE id = given.id LIMIT 1) t ON true
  JOIN LATERAL (SELECT id FROM {schema}.tokens WHERE account = t.account AND action = t.action
    AND id < given.id
                ORDER BY id DESC LIMIT :limit::int) o ON true
), mails AS MATERIALIZED (
  SELECT c.message_id, max(older.newer) AS newer
  FROM older JOIN LATERAL (SELECT message_id FROM {schema}.collected
    WHERE token = older.id LIMIT 1) c ON c.message_id IS NOT NULL
  GROUP BY c.message_id
), changed AS (
  UPDATE pillarbox.deliveries d SET state = 'cancelled', reason = 'cancelled', settled_at = now()
  WHERE d.message_id = ANY (ARRAY(SELECT message_id FROM mails))
    AND d.state::text IN ('pending', 'queued', 'held')
  RETURNING d.message_id, d.n, d.tenant_id, d.attempts
), told AS (
  INSERT INTO pillarbox.events (message_id, n, kind, data)
  SELECT c.message_id, c.n, 'cancelled',
    jsonb_build_object('who', 'lifecycle', 'superseded_by', m.newer)
  FROM changed c JOIN mails m ON m.message_id = c.message_id
), customers AS (
  SELECT pillarbox._tell_customers(
    array_agg(c.message_id), array_agg(c.n), array_agg('message.cancelled'::text), array_agg(now()),
    array_agg(jsonb_build_object(
      'state', 'cancelled', 'reason', 'cancelled', 'attempt', c.attempts)))
  FROM changed c
  WHERE EXISTS (SELECT FROM pillarbox.webhook_endpoints e
    WHERE e.enabled AND e.tenant_id = c.tenant_id)
  HAVING count(*) > 0
)
SELECT message_id FROM changed
WHERE (SELECT count(*) FROM customers) >= 0  -- so that `customers` is executed

-- name: set_aside
-- Up to :limit tokens that are set aside, with ids after :after, oldest first.
SELECT w.token, t.account, t.action::text AS action, a.portal, c.template, w.tries, w.problem,
  t.created_at, t.expires_at,
  greatest(0, extract(epoch FROM w.held_until - now()))::float8 AS again_in
FROM {schema}.waiting w
LEFT JOIN {schema}.tokens t ON t.id = w.token
LEFT JOIN {schema}.accounts a ON a.id = t.account
LEFT JOIN {schema}.actions c ON c.name = t.action::text
WHERE w.held = 'rendering' AND w.token > :after::bigint
ORDER BY w.token LIMIT :limit::int

-- name: count_set_aside
-- How many tokens are set aside, counted up to :limit.
SELECT count(*)::int FROM (SELECT FROM {schema}.waiting WHERE held = 'rendering'
  ORDER BY token LIMIT :limit::int) w

-- name: retry_set_aside
-- Release tokens that are set aside (null: all), and notify the collectors.
WITH released AS (
  UPDATE {schema}.waiting SET held = NULL, held_until = NULL
  WHERE held = 'rendering' AND (:tokens::bigint[] IS NULL OR token = ANY (:tokens)) RETURNING token
)
SELECT (SELECT count(*) FROM released)::int AS count, pg_notify('token_insert', '')

-- name: consume
-- Use a token, with a code that may be wrong :max_tries times. Null if the code is wrong.
SELECT {schema}.consume_token(:secret::bytea, :action::text::{schema}.token_action, :code::text,
  :max_tries::int)

-- name: reserve
-- Reserve a token for :lasts; no row if it was used or is reserved.
UPDATE {schema}.tokens SET hook_until = clock_timestamp() + :lasts::interval
WHERE secret = :secret::bytea AND action::text = :action::text AND consumed_at IS NULL
  AND (hook_until IS NULL OR hook_until < clock_timestamp())
RETURNING id

-- name: let_go
-- End a reservation.
UPDATE {schema}.tokens SET hook_until = NULL WHERE secret = :secret::bytea
  AND action::text = :action::text

-- name: look
-- The state of a token whose code may be wrong :max_tries times, with its account and action.
SELECT
  CASE
    WHEN t.consumed_at IS NOT NULL THEN 'used'
    WHEN t.expires_at <= extract(epoch FROM clock_timestamp()) THEN 'expired'
    WHEN EXISTS (SELECT FROM {schema}.tokens n WHERE n.account = t.account AND n.action = t.action
      AND n.id > t.id) THEN 'superseded'
    WHEN t.wrong_codes >= :max_tries::int THEN 'void'
    ELSE 'good'
  END AS state,
  t.id AS token, t.account, t.action::text AS action, c.with_code, t.expires_at, t.wrong_codes,
  a.login, a.name, a.portal,
  a.locale, a.email, a.status::text AS status
FROM {schema}.tokens t
JOIN {schema}.accounts a ON a.id = t.account
JOIN {schema}.actions c ON c.name = t.action::text
WHERE t.secret = :secret::bytea AND t.action::text = :action::text

-- name: find_account
-- The account with this address, ignoring the case of ASCII letters; of several, the one spelled
-- the same first.
SELECT id, email, login, name, status::text AS status, portal, locale, data FROM {schema}.accounts
WHERE lower(email COLLATE "C") = lower(:email::text COLLATE "C")
  ORDER BY email = :email::text DESC, id LIMIT 1

-- name: account
-- The account with this id.
SELECT id, email, login, name, status::text AS status, portal, locale, data FROM {schema}.accounts
  WHERE id = :id::bigint

-- name: paused_account
-- The account of a token that got no sign-in code because of the pause.
SELECT t.account FROM {schema}.tokens t JOIN {schema}.collected c ON c.token = t.id
WHERE t.id = :token::bigint AND c.outcome = 'paused'

-- name: actions
-- All actions by number.
SELECT name, number, path, with_code, lane, template, activates, lifetime_seconds
  FROM {schema}.actions ORDER BY number

-- name: register_templates
-- Replace the registered templates; returns how many came or went.
WITH given AS MATERIALIZED (
  SELECT * FROM unnest(:portals::text[], :kinds::text[]) AS g(portal, kind)
), came AS (
  INSERT INTO {schema}.templates AS t (portal, kind) SELECT portal, kind FROM given
    ORDER BY portal, kind
  ON CONFLICT (portal, kind) DO UPDATE SET available = true, changed_at = now()
    WHERE NOT t.available
  RETURNING portal
), went AS (
  UPDATE {schema}.templates t SET available = false, changed_at = now()
  WHERE t.available AND NOT EXISTS (SELECT FROM given g
    WHERE g.portal = t.portal AND g.kind = t.kind)
  RETURNING portal
)
SELECT (SELECT count(*) FROM came) + (SELECT count(*) FROM went)

-- name: issue
-- Issue a token of an account.
SELECT {schema}.issue_token(:account::bigint, :action::text::{schema}.token_action,
  :data::text::jsonb)

-- name: purge_tokens
-- Of the :limit tokens after :after, delete those used or expired :age ago, and what is left of
-- deleted tokens. A token stays while it supersedes an older one that has not expired. Returns how
-- many were deleted, and the token to continue after (null: all that may be old were read; ids
-- follow the order of creation closely enough).
WITH seen AS MATERIALIZED (
  SELECT id, account, action, expires_at, consumed_at, created_at FROM {schema}.tokens
  WHERE id > :after::bigint ORDER BY id LIMIT :limit::int
), old AS MATERIALIZED (
  SELECT s.id FROM seen s
  WHERE coalesce(s.consumed_at, s.expires_at) < extract(epoch FROM now() - :age::interval)
    AND NOT EXISTS (SELECT FROM {schema}.waiting w WHERE w.token = s.id)
    AND NOT EXISTS (SELECT FROM {schema}.tokens o
                    WHERE o.account = s.account AND o.action = s.action AND o.id < s.id
                      AND o.consumed_at IS NULL AND o.expires_at > extract(epoch FROM now()))
), dropped AS (
  DELETE FROM {schema}.tokens WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id
), orphans AS (
  DELETE FROM {schema}.collected c
  WHERE c.token > :after::bigint AND c.token <= (SELECT max(id) FROM seen)
    AND c.at < now() - :age::interval
    AND NOT EXISTS (SELECT FROM {schema}.tokens t WHERE t.id = c.token)
)
SELECT (SELECT count(*) FROM dropped)::int AS dropped,
  (SELECT max(id) FROM seen
   HAVING count(*) = :limit::int AND min(created_at) < extract(epoch
     FROM now() - :age::interval)) AS next

-- name: mail_token
-- The token of a mail with a failed delivery that cannot be sent again as it is: its body was
-- dropped, or it has expired. No row for any other mail, or if a later mail replaced it.
SELECT c.token
FROM pillarbox.messages m
JOIN {schema}.collected c ON c.message_id = m.id
  AND c.token = CASE WHEN m.metadata->>'token' ~ '^[0-9]{1,18}$'
    THEN (m.metadata->>'token')::bigint END
WHERE m.id = :message_id::uuid
  AND (m.expires_at <= now() OR NOT EXISTS (SELECT FROM pillarbox.contents b
    WHERE b.message_id = m.id))
  AND EXISTS (SELECT FROM pillarbox.deliveries d
    WHERE d.message_id = m.id AND d.state::text = 'failed')

-- name: resend_state
-- The state of a token, its newer token if any, and what a new token would need.
SELECT t.account, t.action::text AS action, t.data::text AS data,
  CASE WHEN t.consumed_at IS NOT NULL THEN 'used'
    WHEN t.expires_at <= extract(epoch FROM now()) THEN 'expired' ELSE 'good' END AS state,
  (SELECT max(n.id) FROM {schema}.tokens n WHERE n.account = t.account AND n.action = t.action
    AND n.id > t.id) AS newer
FROM {schema}.tokens t WHERE t.id = :token::bigint FOR UPDATE OF t

-- name: collect_again
-- Queue a token for collection again, and notify the collectors.
WITH forgotten AS (
  DELETE FROM {schema}.collected WHERE token = :token::bigint
), waits AS (
  INSERT INTO {schema}.waiting (token, lane)
  SELECT t.id, array_position('{urgent,normal,bulk}', c.lane) - 1
  FROM {schema}.tokens t JOIN {schema}.actions c ON c.name = t.action::text
    WHERE t.id = :token::bigint
  ON CONFLICT (token) DO UPDATE SET held = NULL, held_until = NULL
)
SELECT pg_notify('token_insert', '')

-- name: grants
-- The statements that let a role keep accounts, issue tokens and use them, without access to
-- secrets and codes; no row if there is no such role.
SELECT format(statement, r.rolname) AS statement
FROM pg_roles r, (VALUES
  (1, 'GRANT USAGE ON SCHEMA {schema} TO %I'),
  (2, 'GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.accounts TO %I'),
  (3, 'GRANT SELECT (id, action, account, expires_at, consumed_at, created_at, data, wrong_codes), '
      'INSERT (action, account, expires_at, data), UPDATE (expires_at, consumed_at), DELETE'
      ' ON {schema}.tokens TO %I'),
  (4, 'GRANT SELECT ON {schema}.actions, {schema}.jobs, {schema}.templates, {schema}.account_log,'
      ' {schema}.token_log TO %I'),
  (5, 'GRANT USAGE, SELECT ON SEQUENCE {schema}.accounts_id_seq, {schema}.tokens_id_seq TO %I'),
  (6, 'GRANT EXECUTE ON FUNCTION {schema}.issue_token, {schema}.consume_token TO %I')
) AS s(place, statement)
WHERE r.rolname = :role ORDER BY place
