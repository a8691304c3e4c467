-- Accounts and tokens: an application changes a row, and the right mail leaves. Times are seconds since 1970.
-- Documented in docs/reference/sql.md and docs/reference/schema.md.

CREATE TYPE {schema}.account_status AS ENUM ('provisioned', 'active', 'suspended');

CREATE TABLE {schema}.accounts (
  id                bigserial PRIMARY KEY,
  email             varchar(254) UNIQUE NOT NULL,
  status            {schema}.account_status DEFAULT 'provisioned' NOT NULL,
  login             varchar(254) UNIQUE NOT NULL,
  created_at        bigint DEFAULT extract(epoch FROM now()) NOT NULL,
  status_changed_at bigint,
  activated_at      bigint,
  suspended_at      bigint,
  unsuspended_at    bigint,
  portal            text NOT NULL DEFAULT 'hub' CHECK (portal ~ '^[a-z][a-z0-9_-]{0,31}$'), -- whose words and colours
  locale            text CHECK (locale ~ '^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,5}$'), -- null: the installation's
  name              text, -- null: the login
  data              jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(data) = 'object') -- for templates
);
CREATE INDEX accounts_id_status_idx ON {schema}.accounts (id, status);
-- Small letters of ASCII only, wherever the database is: the same as what challenges are remembered by.
CREATE INDEX accounts_lower_email_idx ON {schema}.accounts (lower(email COLLATE "C"));

CREATE TYPE {schema}.token_action AS ENUM (
  'activation', 'password_recovery', 'email_verification', 'password_changed', 'invite', 'sign_in_code', 'welcome'
);

-- Three random UUIDs have 366 random bits, of which 256 are kept. The code comes from 63 bits: none of the 100,000 is
-- likelier than another by more than one part in 10^13.
CREATE TABLE {schema}.tokens (
  id          bigserial PRIMARY KEY,
  action      {schema}.token_action NOT NULL,
  secret      bytea UNIQUE NOT NULL DEFAULT sha256(
    uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())),
  code        varchar(5) DEFAULT lpad(((
    ('x' || encode(substr(sha256(uuid_send(gen_random_uuid())), 1, 8), 'hex'))::bit(64)::bigint & 9223372036854775807
  ) % 100000)::text, 5, '0'),
  account     bigint NOT NULL,
  expires_at  bigint DEFAULT extract(epoch FROM now() + interval '15 minute') NOT NULL,
  consumed_at bigint,
  created_at  bigint DEFAULT extract(epoch FROM now()) NOT NULL,
  data        jsonb CHECK (jsonb_typeof(data) = 'object'), -- for templates, over the account's
  wrong_codes smallint NOT NULL DEFAULT 0,
  -- Until the year 9999: not milliseconds, and nothing that is no moment.
  CONSTRAINT tokens_times CHECK (least(expires_at, consumed_at, created_at) >= 0
                                 AND greatest(expires_at, consumed_at, created_at) <= 253402300799),
  FOREIGN KEY (account) REFERENCES {schema}.accounts (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED
);
CREATE INDEX tokens_id_expires_consumed_action_idx ON {schema}.tokens (id, expires_at, consumed_at, action);
CREATE INDEX tokens_account_action_id_idx ON {schema}.tokens (account, action, id);

-- What an action means. Adding one is a row here and a template; its name becomes a value of token_action.
CREATE TABLE {schema}.actions (
  name             text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_]{0,62}$'),
  number           smallint UNIQUE NOT NULL CHECK (number > 0), -- as `collect --stdout` writes it; the next free by default
  path             text UNIQUE CHECK (path ~ '^(/[a-z0-9][a-z0-9_-]*)+$' AND length(path) <= 100), -- null: no link
  with_code        boolean NOT NULL DEFAULT false, -- the code is part of what is signed, and asked for
  eligible         {schema}.account_status[] NOT NULL DEFAULT '{active}',
  lane             text NOT NULL DEFAULT 'normal' CHECK (lane IN ('urgent', 'normal', 'bulk')),
  template         text NOT NULL, -- the kind of mail; the name by default
  activates        boolean NOT NULL DEFAULT false, -- using its token activates the account
  lifetime_seconds integer NOT NULL DEFAULT 900 CHECK (lifetime_seconds > 0)
);
INSERT INTO {schema}.actions (name, number, path, with_code, eligible, lane, template, activates, lifetime_seconds) VALUES
  ('activation', 1, '/activate', false, '{provisioned}', 'normal', 'activation', true, 900),
  ('password_recovery', 2, '/recover', true, '{active}', 'urgent', 'forgot_password', false, 900),
  ('email_verification', 3, '/verify-email', false, '{provisioned,active}', 'normal', 'email_verification', false, 86400),
  ('password_changed', 4, NULL, false, '{active}', 'normal', 'password_changed', false, 86400),
  ('invite', 5, '/invite', false, '{provisioned}', 'normal', 'invite', true, 604800),
  ('sign_in_code', 6, NULL, false, '{active}', 'urgent', 'sign_in_code', false, 600),
  ('welcome', 7, NULL, false, '{active}', 'normal', 'welcome', false, 86400);

-- Tokens that are to be collected. Rows leave when they are settled, so that taking costs the same after any history.
CREATE TABLE {schema}.waiting (
  token      bigint PRIMARY KEY,
  lane       smallint NOT NULL, -- 0 urgent, 1 normal, 2 bulk
  held       text CHECK (held IN ('account', 'rendering')),
  held_until timestamptz,
  tries      integer NOT NULL DEFAULT 0, -- how often it was set aside
  problem    text, -- why, without anything personal
  CHECK ((held IS NULL) = (held_until IS NULL))
) WITH (
  -- Every row is inserted and deleted soon after: many are vacuumed at once, few are not worth it.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);
CREATE INDEX waiting_ready ON {schema}.waiting (lane, token) WHERE held IS NULL;
CREATE INDEX waiting_held ON {schema}.waiting (held_until) WHERE held IS NOT NULL;
CREATE INDEX waiting_set_aside ON {schema}.waiting (token) WHERE held = 'rendering';

CREATE TABLE {schema}.collected (
  token      bigint PRIMARY KEY,
  at         timestamptz NOT NULL DEFAULT now(),
  message_id uuid,
  outcome    text NOT NULL CHECK (outcome IN ('mailed', 'written', 'expired', 'consumed', 'superseded', 'gone'))
);

-- How far collecting got, for people; nothing depends on it.
CREATE TYPE {schema}.job_type AS ENUM ('mailroom');
CREATE TABLE {schema}.jobs (
  job_type {schema}.job_type PRIMARY KEY,
  last_seq bigint
);
INSERT INTO {schema}.jobs (last_seq, job_type) VALUES (0, 'mailroom');

-- An account that begins as active counts as activated.
CREATE FUNCTION {schema}.trg_before_account_insert() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NEW.status = 'active' AND NEW.activated_at IS NULL THEN
    NEW.activated_at := NEW.created_at;
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER before_account_insert BEFORE INSERT ON {schema}.accounts
  FOR EACH ROW EXECUTE FUNCTION {schema}.trg_before_account_insert();

-- A provisioned account gets its activation token in the same transaction. After it, not before: with INSERT … ON CONFLICT
-- only this moment knows whether the row came, or another was there already, or came at the same time.
CREATE FUNCTION {schema}.trg_after_account_insert() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO {schema}.tokens (account, action) VALUES (NEW.id, 'activation');
  RETURN NULL;
END $$;

CREATE TRIGGER after_account_insert AFTER INSERT ON {schema}.accounts
  FOR EACH ROW WHEN (NEW.status = 'provisioned') EXECUTE FUNCTION {schema}.trg_after_account_insert();

CREATE FUNCTION {schema}.trg_before_account_status_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ts bigint := extract(epoch FROM now());
BEGIN
  IF NEW.status = OLD.status THEN
    RETURN NEW;
  END IF;
  NEW.status_changed_at := ts;
  IF NEW.status = 'active' AND OLD.status = 'provisioned' THEN
    NEW.activated_at := ts;
  ELSIF NEW.status = 'active' AND OLD.status = 'suspended' THEN
    NEW.unsuspended_at := ts;
    NEW.suspended_at := NULL;
    IF OLD.activated_at IS NULL THEN -- never activated
      NEW.status := 'provisioned';
    END IF;
  ELSIF NEW.status = 'suspended' THEN
    NEW.suspended_at := ts;
    NEW.unsuspended_at := NULL;
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER before_account_status_change BEFORE UPDATE OF status ON {schema}.accounts
  FOR EACH ROW EXECUTE FUNCTION {schema}.trg_before_account_status_change();

-- Tokens that waited for another status can be taken again. Rows that a collector has in hand are waited for: it may be
-- about to hold them because of the status that was.
CREATE FUNCTION {schema}.trg_after_account_status_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE {schema}.waiting SET held = NULL, held_until = NULL
  WHERE token = ANY (ARRAY(SELECT t.id FROM {schema}.tokens t WHERE t.account = NEW.id AND t.consumed_at IS NULL
                           AND t.expires_at > extract(epoch FROM now())))
    AND held IS DISTINCT FROM 'rendering';
  IF FOUND THEN
    NOTIFY token_insert;
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER after_account_status_change AFTER UPDATE OF status ON {schema}.accounts
  FOR EACH ROW WHEN (NEW.status <> OLD.status)
  EXECUTE FUNCTION {schema}.trg_after_account_status_change();

-- Links that went to another address do not count any more: who reads that mailbox has proven nothing about the new one.
-- Tokens that still wait go to the new address; for a collector that has some in hand, with the old one, is waited.
CREATE FUNCTION {schema}.trg_after_account_email_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ts bigint := floor(extract(epoch FROM now()));
  open_tokens bigint[] := ARRAY(SELECT t.id FROM {schema}.tokens t
                                WHERE t.account = NEW.id AND t.consumed_at IS NULL AND t.expires_at > ts);
BEGIN
  PERFORM FROM {schema}.waiting WHERE token = ANY (open_tokens) ORDER BY token FOR UPDATE;
  UPDATE {schema}.tokens SET expires_at = ts
  WHERE id IN (SELECT c.token FROM {schema}.collected c WHERE c.token = ANY (open_tokens));
  RETURN NULL;
END $$;

CREATE TRIGGER after_account_email_change AFTER UPDATE OF email ON {schema}.accounts
  FOR EACH ROW WHEN (lower(NEW.email) <> lower(OLD.email))
  EXECUTE FUNCTION {schema}.trg_after_account_email_change();

-- The six digits of a sign-in code are made when it is mailed, and only their hash is kept.
CREATE FUNCTION {schema}.trg_before_token_insert() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
  NEW.code := NULL;
  RETURN NEW;
END $$;

CREATE TRIGGER before_token_insert BEFORE INSERT ON {schema}.tokens
  FOR EACH ROW WHEN (NEW.action = 'sign_in_code') EXECUTE FUNCTION {schema}.trg_before_token_insert();

-- Once for a statement, not for each of its rows: NOTIFY has a price, and equal ones in a transaction arrive as one anyway.
CREATE FUNCTION {schema}.trg_after_token_inserted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO {schema}.waiting (token, lane)
  SELECT t.id, array_position('{urgent,normal,bulk}', c.lane) - 1
  FROM inserted t JOIN {schema}.actions c ON c.name = t.action::text;
  IF FOUND THEN
    NOTIFY token_insert;
  END IF;
  IF EXISTS (SELECT FROM inserted t LEFT JOIN {schema}.actions c ON c.name = t.action::text WHERE c.name IS NULL) THEN
    RAISE EXCEPTION 'the action of a token has no row in the table actions' USING ERRCODE = 'PB404',
      HINT = 'add a row there; it adds the value to token_action, too';
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER after_token_inserted AFTER INSERT ON {schema}.tokens REFERENCING NEW TABLE AS inserted
  FOR EACH STATEMENT EXECUTE FUNCTION {schema}.trg_after_token_inserted();

CREATE FUNCTION {schema}.trg_after_token_deleted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM {schema}.waiting WHERE token = ANY (ARRAY(SELECT id FROM deleted));
  DELETE FROM {schema}.collected WHERE token = ANY (ARRAY(SELECT id FROM deleted));
  RETURN NULL;
END $$;

CREATE TRIGGER after_token_deleted AFTER DELETE ON {schema}.tokens REFERENCING OLD TABLE AS deleted
  FOR EACH STATEMENT EXECUTE FUNCTION {schema}.trg_after_token_deleted();

-- With RESTART IDENTITY the same ids come again, and must find nothing of those before.
CREATE FUNCTION {schema}.trg_after_tokens_truncated() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM {schema}.waiting; -- not TRUNCATE: the same statement may name these tables, too
  DELETE FROM {schema}.collected;
  RETURN NULL;
END $$;

CREATE TRIGGER after_tokens_truncated AFTER TRUNCATE ON {schema}.tokens
  FOR EACH STATEMENT EXECUTE FUNCTION {schema}.trg_after_tokens_truncated();

-- Raise unless a token can be used: once, before it expires, and while it is the newest of its account and action.
CREATE FUNCTION {schema}._check_usable(token {schema}.tokens) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF token.consumed_at IS NOT NULL THEN
    RAISE EXCEPTION 'token % was used before', token.id USING ERRCODE = 'PB410';
  ELSIF token.expires_at <= extract(epoch FROM clock_timestamp()) THEN
    RAISE EXCEPTION 'token % has expired', token.id USING ERRCODE = 'PB411', HINT = 'issue a new one';
  ELSIF EXISTS (SELECT FROM {schema}.tokens t
                WHERE t.account = token.account AND t.action = token.action AND t.id > token.id) THEN
    RAISE EXCEPTION 'token % was superseded by a newer one', token.id USING ERRCODE = 'PB412';
  END IF;
END $$;

CREATE FUNCTION {schema}.trg_before_token_consumed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM {schema}._check_usable(OLD);
  RETURN NEW;
END $$;

CREATE TRIGGER before_token_consumed BEFORE UPDATE OF consumed_at ON {schema}.tokens
  FOR EACH ROW WHEN (NEW.consumed_at IS NOT NULL OR OLD.consumed_at IS NOT NULL)
  EXECUTE FUNCTION {schema}.trg_before_token_consumed();

CREATE FUNCTION {schema}.trg_after_token_consumed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE {schema}.accounts SET status = 'active'
  WHERE id = NEW.account AND status = 'provisioned'
    AND EXISTS (SELECT FROM {schema}.actions c WHERE c.name = NEW.action::text AND c.activates);
  RETURN NULL;
END $$;

CREATE TRIGGER after_token_consumed AFTER UPDATE OF consumed_at ON {schema}.tokens
  FOR EACH ROW WHEN (NEW.consumed_at IS NOT NULL AND OLD.consumed_at IS NULL)
  EXECUTE FUNCTION {schema}.trg_after_token_consumed();

-- A new action becomes a value of token_action, which can be used once this transaction has committed.
CREATE FUNCTION {schema}.trg_before_action_insert() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  NEW.number := coalesce(NEW.number, (SELECT max(number) + 1 FROM {schema}.actions));
  NEW.template := coalesce(NEW.template, NEW.name);
  IF NOT EXISTS (SELECT FROM pg_enum WHERE enumtypid = '{schema}.token_action'::regtype AND enumlabel = NEW.name) THEN
    EXECUTE format('ALTER TYPE {schema}.token_action ADD VALUE IF NOT EXISTS %L', NEW.name);
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER before_action_insert BEFORE INSERT ON {schema}.actions
  FOR EACH ROW EXECUTE FUNCTION {schema}.trg_before_action_insert();

-- PostgreSQL cannot take a value out of an enum, and tokens may have it.
CREATE FUNCTION {schema}.trg_before_action_removed() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'action % cannot be renamed or removed', OLD.name USING ERRCODE = 'PB409',
    HINT = 'set eligible = ''{}'' so that no mail leaves for it';
END $$;

CREATE TRIGGER before_action_removed BEFORE DELETE ON {schema}.actions
  FOR EACH ROW EXECUTE FUNCTION {schema}.trg_before_action_removed();
CREATE TRIGGER before_action_renamed BEFORE UPDATE OF name ON {schema}.actions
  FOR EACH ROW WHEN (NEW.name <> OLD.name) EXECUTE FUNCTION {schema}.trg_before_action_removed();

-- A new token of an account, which lives as long as its action says; returns its id.
CREATE FUNCTION {schema}.issue_token(account bigint, action {schema}.token_action, data jsonb DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  token bigint;
BEGIN
  IF NOT EXISTS (SELECT FROM {schema}.accounts WHERE id = issue_token.account) THEN
    RAISE EXCEPTION 'there is no account %', account USING ERRCODE = 'PB404';
  END IF;
  INSERT INTO {schema}.tokens (account, action, data, expires_at)
  SELECT issue_token.account, issue_token.action, issue_token.data, floor(extract(epoch FROM now())) + c.lifetime_seconds
  FROM {schema}.actions c WHERE c.name = issue_token.action::text
  RETURNING id INTO token;
  RETURN token;
END $$;

-- Use a token; returns its account. A wrong code returns null and is counted, so commit; after `tries` of them the token is
-- void. (Raising would undo the count.)
CREATE FUNCTION {schema}.consume_token(
  secret bytea, action {schema}.token_action, code text DEFAULT NULL, tries integer DEFAULT 5
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  found_token {schema}.tokens;
BEGIN
  SELECT t.* INTO found_token FROM {schema}.tokens t
  WHERE t.secret = consume_token.secret AND t.action = consume_token.action FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no such token' USING ERRCODE = 'PB404';
  END IF;
  PERFORM {schema}._check_usable(found_token);
  IF found_token.wrong_codes >= tries THEN
    RAISE EXCEPTION 'token % is void: its code was wrong too often', found_token.id USING ERRCODE = 'PB413';
  ELSIF consume_token.code IS DISTINCT FROM found_token.code
      AND EXISTS (SELECT FROM {schema}.actions c WHERE c.name = consume_token.action::text AND c.with_code) THEN
    UPDATE {schema}.tokens SET wrong_codes = wrong_codes + 1 WHERE id = found_token.id;
    RETURN NULL;
  END IF;
  UPDATE {schema}.tokens SET consumed_at = floor(extract(epoch FROM clock_timestamp())) WHERE id = found_token.id;
  RETURN found_token.account;
END $$;

REVOKE EXECUTE ON FUNCTION {schema}.trg_before_account_insert, {schema}.trg_after_account_insert,
  {schema}.trg_before_account_status_change, {schema}.trg_after_account_status_change,
  {schema}.trg_after_account_email_change, {schema}.trg_before_token_insert, {schema}.trg_after_token_inserted,
  {schema}.trg_after_token_deleted, {schema}.trg_after_tokens_truncated, {schema}._check_usable,
  {schema}.trg_before_token_consumed, {schema}.trg_after_token_consumed, {schema}.trg_before_action_insert,
  {schema}.trg_before_action_removed, {schema}.issue_token, {schema}.consume_token FROM PUBLIC;

-- Accounts with real times.
CREATE VIEW {schema}.account_log AS
SELECT id, email, login, status::text AS status, portal, locale, name,
  to_timestamp(created_at) AS created_at,
  to_timestamp(status_changed_at) AS status_changed_at,
  to_timestamp(activated_at) AS activated_at,
  to_timestamp(suspended_at) AS suspended_at,
  to_timestamp(unsuspended_at) AS unsuspended_at
FROM {schema}.accounts;

-- What became of every token, with real times; no secret and no code.
CREATE VIEW {schema}.token_log AS
SELECT t.id, t.account, t.action::text AS action,
  CASE
    WHEN t.consumed_at IS NOT NULL THEN 'used'
    WHEN EXISTS (SELECT FROM {schema}.tokens n WHERE n.account = t.account AND n.action = t.action AND n.id > t.id) THEN 'superseded'
    WHEN t.expires_at <= extract(epoch FROM now()) THEN 'expired'
    ELSE 'open'
  END AS status,
  coalesce(c.outcome, CASE w.held WHEN 'account' THEN 'held' WHEN 'rendering' THEN 'set_aside' ELSE 'waiting' END) AS outcome,
  w.problem,
  t.wrong_codes,
  c.message_id,
  to_timestamp(t.created_at) AS created_at,
  to_timestamp(t.expires_at) AS expires_at,
  to_timestamp(t.consumed_at) AS consumed_at,
  c.at AS collected_at
FROM {schema}.tokens t
LEFT JOIN {schema}.collected c ON c.token = t.id
LEFT JOIN {schema}.waiting w ON w.token = t.id;
