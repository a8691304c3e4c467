-- name: shape
-- The columns of the tables of a schema.
SELECT c.relname AS "table", a.attname AS "column", format_type(a.atttypid, a.atttypmod) AS type
FROM pg_namespace n
JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'p')
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname = :schema

-- name: names
-- The names of all relations and functions in a schema.
SELECT c.relname AS name FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid
  WHERE n.nspname = :schema
UNION SELECT p.proname FROM pg_namespace n JOIN pg_proc p ON p.pronamespace = n.oid
  WHERE n.nspname = :schema

-- name: alter
-- Alter the original's tables to Pillarbox's. Its triggers are dropped; Pillarbox's come with the
-- rest of the first migration.
LOCK TABLE {schema}.accounts, {schema}.tokens, {schema}.jobs IN ACCESS EXCLUSIVE MODE;
DROP TRIGGER IF EXISTS before_account_insert ON {schema}.accounts;
DROP TRIGGER IF EXISTS before_account_status_change ON {schema}.accounts;
DROP TRIGGER IF EXISTS after_token_consumed ON {schema}.tokens;
DROP TRIGGER IF EXISTS after_token_inserted ON {schema}.tokens;
DROP FUNCTION IF EXISTS {schema}.trg_before_account_insert(),
  {schema}.trg_before_account_status_change(),
  {schema}.trg_after_token_consumed(), {schema}.trg_after_token_inserted();
ALTER TABLE {schema}.accounts
  ALTER COLUMN created_at TYPE bigint,
  ALTER COLUMN created_at SET DEFAULT extract(epoch FROM now()),
  ALTER COLUMN status_changed_at TYPE bigint,
  ALTER COLUMN activated_at TYPE bigint,
  ALTER COLUMN suspended_at TYPE bigint,
  ALTER COLUMN unsuspended_at TYPE bigint,
  ADD COLUMN portal text NOT NULL DEFAULT 'hub' CHECK (portal ~ '^[a-z][a-z0-9_-]{0,31}$'),
  ADD COLUMN locale text CHECK (locale ~ '^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,5}$'),
  ADD COLUMN name text,
  ADD COLUMN data jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(data) = 'object');
ALTER TABLE {schema}.tokens
  ALTER COLUMN secret SET DEFAULT sha256(
    uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())),
  ALTER COLUMN code SET DEFAULT lpad(((
    ('x' || encode(substr(sha256(uuid_send(gen_random_uuid())), 1, 8),
    'hex'))::bit(64)::bigint & 9223372036854775807
  ) % 100000)::text, 5, '0'),
  ALTER COLUMN expires_at TYPE bigint,
  ALTER COLUMN expires_at SET DEFAULT extract(epoch FROM now() + interval '15 minute'),
  ALTER COLUMN consumed_at TYPE bigint,
  ALTER COLUMN created_at TYPE bigint,
  ALTER COLUMN created_at SET DEFAULT extract(epoch FROM now()),
  ADD COLUMN data jsonb CHECK (jsonb_typeof(data) = 'object'),
  ADD COLUMN wrong_codes smallint NOT NULL DEFAULT 0,
  ADD CONSTRAINT tokens_times CHECK (least(expires_at, consumed_at, created_at) >= 0
                                     AND greatest(expires_at, consumed_at,
                                     created_at) <= 253402300799);

-- name: fill
-- Apply the original's cursor to its tokens: those up to it were written; of the others, those
-- that can still be mailed wait.
WITH done AS (
  SELECT coalesce((SELECT max(last_seq) FROM {schema}.jobs WHERE job_type::text = 'mailroom'),
    0) AS last_seq
), judged AS (
  SELECT t.id, t.created_at, c.lane,
    CASE
      WHEN t.id <= done.last_seq THEN 'written'
      WHEN t.consumed_at IS NOT NULL THEN 'consumed'
      WHEN t.expires_at <= extract(epoch FROM now()) THEN 'expired'
    END AS outcome
  FROM done, {schema}.tokens t LEFT JOIN {schema}.actions c ON c.name = t.action::text
), settled AS (
  INSERT INTO {schema}.collected (token, at, outcome)
  SELECT id, to_timestamp(created_at), outcome FROM judged WHERE outcome IS NOT NULL
), waits AS (
  INSERT INTO {schema}.waiting (token, lane)
  SELECT id, array_position('{urgent,normal,bulk}', lane) - 1 FROM judged
    WHERE outcome IS NULL AND lane IS NOT NULL
)
INSERT INTO {schema}.jobs (last_seq, job_type) VALUES (0, 'mailroom')
  ON CONFLICT (job_type) DO NOTHING
