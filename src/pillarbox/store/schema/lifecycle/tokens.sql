-- Issuing and using tokens, and the triggers of `tokens`.

-- Why an account cannot get a mail of a kind; all null if it can. Contains nothing personal.
CREATE OR REPLACE FUNCTION {schema}._mail_fault(
  email text, portal text, kind text, OUT state text, OUT code text, OUT field text,
  OUT message text, OUT hint text
) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  BEGIN
    PERFORM pillarbox._address(email, 'email');
  EXCEPTION WHEN SQLSTATE 'PB400' THEN
    state := 'PB400';
    field := 'email';
    GET STACKED DIAGNOSTICS code = CONSTRAINT_NAME, message = PG_EXCEPTION_DETAIL;
    hint := 'correct the address of the account';
    RETURN;
  END;
  IF NOT EXISTS (SELECT FROM {schema}.templates)
      OR EXISTS (SELECT FROM {schema}.templates t
                 WHERE t.portal = _mail_fault.portal AND t.kind = _mail_fault.kind AND t.available)
                   THEN
    RETURN;
  END IF;
  state := 'PB404';
  IF EXISTS (SELECT FROM {schema}.templates t WHERE t.portal = _mail_fault.portal AND t.available)
    THEN
    code := 'unknown_template';
    field := 'action';
    message := format('there is no template %s/%s', portal, kind);
    hint := 'add it to a folder of template_dirs; a running collector sees it within seconds';
  ELSE
    code := 'unknown_portal';
    field := 'portal';
    message := format('no collector has templates of the portal %s', portal);
    hint := 'correct accounts.portal, or add a folder of that name to template_dirs; `pillarbox template list` lists them';
  END IF;
END $$;

-- Issue a token of an account with its action's lifetime; return its id. Refused if no mail
-- could follow: an illegal address, an unknown portal, or an action without a template for the
-- portal.
CREATE OR REPLACE FUNCTION {schema}.issue_token(
  account bigint, action {schema}.token_action, data jsonb DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  token bigint;
  fault record;
BEGIN
  SELECT f.* INTO fault
  FROM {schema}.accounts a
  LEFT JOIN {schema}.actions c ON c.name = issue_token.action::text
  LEFT JOIN LATERAL {schema}._mail_fault(a.email, a.portal, c.template) f ON c.name IS NOT NULL
  WHERE a.id = issue_token.account;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no account %', account USING ERRCODE = 'PB404';
  ELSIF fault.state IS NOT NULL THEN
    PERFORM pillarbox._fail(fault.state, fault.code, fault.field, fault.message, fault.hint);
  END IF;
  INSERT INTO {schema}.tokens (account, action, data, expires_at)
  SELECT issue_token.account, issue_token.action, issue_token.data,
    floor(extract(epoch FROM now())) + c.lifetime_seconds
  FROM {schema}.actions c WHERE c.name = issue_token.action::text
  RETURNING id INTO token;
  RETURN token;
END $$;

-- Raise unless a token can be used: once, before it expires, and while it is the newest of its
-- account and action.
CREATE OR REPLACE FUNCTION {schema}._check_usable(token {schema}.tokens) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF token.consumed_at IS NOT NULL THEN
    RAISE EXCEPTION 'token % was used before', token.id USING ERRCODE = 'PB410';
  ELSIF token.expires_at <= extract(epoch FROM clock_timestamp()) THEN
    RAISE EXCEPTION 'token % has expired', token.id
      USING ERRCODE = 'PB411', HINT = 'issue a new one';
  ELSIF EXISTS (SELECT FROM {schema}.tokens t
                WHERE t.account = token.account AND t.action = token.action AND t.id > token.id)
                  THEN
    RAISE EXCEPTION 'token % was superseded by a newer one', token.id USING ERRCODE = 'PB412';
  END IF;
END $$;

-- Use a token; return its account. A wrong code returns null and is counted, so the caller must
-- commit (raising would undo the count); after `tries` wrong codes the token is void.
CREATE OR REPLACE FUNCTION {schema}.consume_token(
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
    RAISE EXCEPTION 'token % is void: its code was wrong too often', found_token.id
      USING ERRCODE = 'PB413';
  ELSIF consume_token.code IS DISTINCT FROM found_token.code
      AND EXISTS (SELECT FROM {schema}.actions c WHERE c.name = consume_token.action::text
      AND c.with_code) THEN
    UPDATE {schema}.tokens SET wrong_codes = wrong_codes + 1 WHERE id = found_token.id;
    RETURN NULL;
  END IF;
  UPDATE {schema}.tokens SET consumed_at = floor(extract(epoch FROM clock_timestamp()))
    WHERE id = found_token.id;
  RETURN found_token.account;
END $$;

-- Store no code for sign-in: its six digits are made when it is mailed, and only their hash is
-- stored.
CREATE OR REPLACE FUNCTION {schema}.trg_before_token_insert() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
  NEW.code := NULL;
  RETURN NEW;
END $$;
CREATE TRIGGER before_token_insert BEFORE INSERT ON {schema}.tokens
  FOR EACH ROW WHEN (NEW.action = 'sign_in_code')
  EXECUTE FUNCTION {schema}.trg_before_token_insert();

-- Queue new tokens for the collector and notify it once per statement: NOTIFY has a cost, and
-- equal notifications of a transaction arrive as one. A token that cannot be mailed is set aside
-- with the reason and tried again after a minute: an INSERT into accounts must not fail because
-- of a mail.
CREATE OR REPLACE FUNCTION {schema}.trg_after_token_inserted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO {schema}.waiting (token, lane, held, held_until, tries, problem)
  SELECT t.id, array_position('{urgent,normal,bulk}', c.lane) - 1,
    CASE WHEN f.message IS NOT NULL THEN 'rendering' END,
    CASE WHEN f.message IS NOT NULL THEN now() + interval '1 minute' END,
    CASE WHEN f.message IS NOT NULL THEN 1 ELSE 0 END,
    f.field || ': ' || f.message
  FROM inserted t
  JOIN {schema}.actions c ON c.name = t.action::text
  -- an account may follow its token, in the same transaction
  LEFT JOIN {schema}.accounts a ON a.id = t.account
  LEFT JOIN LATERAL {schema}._mail_fault(a.email, a.portal, c.template) f ON a.id IS NOT NULL;
  IF FOUND THEN
    NOTIFY token_insert;
  END IF;
  IF EXISTS (SELECT FROM inserted t LEFT JOIN {schema}.actions c ON c.name = t.action::text
    WHERE c.name IS NULL) THEN
    RAISE EXCEPTION 'the action of a token has no row in the table actions' USING ERRCODE = 'PB404',
      HINT = 'add a row there; it adds the value to token_action, too';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER after_token_inserted AFTER INSERT
  ON {schema}.tokens REFERENCING NEW TABLE AS inserted
  FOR EACH STATEMENT EXECUTE FUNCTION {schema}.trg_after_token_inserted();

-- Remove deleted tokens from the collector's queue.
CREATE OR REPLACE FUNCTION {schema}.trg_after_token_deleted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM {schema}.waiting WHERE token = ANY (ARRAY(SELECT id FROM deleted));
  DELETE FROM {schema}.collected WHERE token = ANY (ARRAY(SELECT id FROM deleted));
  RETURN NULL;
END $$;
CREATE TRIGGER after_token_deleted AFTER DELETE ON {schema}.tokens REFERENCING OLD TABLE AS deleted
  FOR EACH STATEMENT EXECUTE FUNCTION {schema}.trg_after_token_deleted();

-- Empty the collector's tables: after TRUNCATE ... RESTART IDENTITY the same ids are used again.
CREATE OR REPLACE FUNCTION {schema}.trg_after_tokens_truncated() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM {schema}.waiting; -- not TRUNCATE: the same statement may name these tables, too
  DELETE FROM {schema}.collected;
  RETURN NULL;
END $$;
CREATE TRIGGER after_tokens_truncated AFTER TRUNCATE ON {schema}.tokens
  FOR EACH STATEMENT EXECUTE FUNCTION {schema}.trg_after_tokens_truncated();

-- Refuse to use a token that cannot be used.
CREATE OR REPLACE FUNCTION {schema}.trg_before_token_consumed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM {schema}._check_usable(OLD);
  RETURN NEW;
END $$;
CREATE TRIGGER before_token_consumed BEFORE UPDATE OF consumed_at ON {schema}.tokens
  FOR EACH ROW WHEN (NEW.consumed_at IS NOT NULL OR OLD.consumed_at IS NOT NULL)
  EXECUTE FUNCTION {schema}.trg_before_token_consumed();

-- Activate the account whose activation token was used.
CREATE OR REPLACE FUNCTION {schema}.trg_after_token_consumed() RETURNS trigger
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
