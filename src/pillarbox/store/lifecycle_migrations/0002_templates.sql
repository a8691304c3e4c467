-- A token that cannot become a mail is known at once: which templates there are, and what is wrong with an account's address.

-- The templates that collectors have; SQL cannot see their files. Collectors write it when they start and when files change.
-- Empty: no collector has started yet, and nothing is known of templates.
CREATE TABLE {schema}.templates (
  portal     text NOT NULL,
  kind       text NOT NULL, -- what `actions.template` names
  available  boolean NOT NULL DEFAULT true, -- false: it was there once
  changed_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (portal, kind)
);

-- `paused`: a sign-in token that got no code of its own, since an earlier code was mailed a moment ago. (NOT VALID: rows that
-- are there obey the narrower rule of before, and need no look.)
ALTER TABLE {schema}.collected DROP CONSTRAINT collected_outcome_check;
ALTER TABLE {schema}.collected ADD CONSTRAINT collected_outcome_check
  CHECK (outcome IN ('mailed', 'written', 'paused', 'expired', 'consumed', 'superseded', 'gone')) NOT VALID;

-- Why an account gets no mail of a kind; all null: nothing is in the way. Nothing personal is in it.
CREATE FUNCTION {schema}._mail_fault(
  email text, portal text, kind text, OUT state text, OUT code text, OUT field text, OUT message text, OUT hint text
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
                 WHERE t.portal = _mail_fault.portal AND t.kind = _mail_fault.kind AND t.available) THEN
    RETURN;
  END IF;
  state := 'PB404';
  IF EXISTS (SELECT FROM {schema}.templates t WHERE t.portal = _mail_fault.portal AND t.available) THEN
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

-- Once for a statement, not for each of its rows: NOTIFY has a price, and equal ones in a transaction arrive as one anyway.
-- A token that cannot be mailed is set aside with the reason, and tried again after a minute: an INSERT into accounts must not
-- fail over a mail.
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
  LEFT JOIN {schema}.accounts a ON a.id = t.account -- an account may follow its token, in the same transaction
  LEFT JOIN LATERAL {schema}._mail_fault(a.email, a.portal, c.template) f ON a.id IS NOT NULL;
  IF FOUND THEN
    NOTIFY token_insert;
  END IF;
  IF EXISTS (SELECT FROM inserted t LEFT JOIN {schema}.actions c ON c.name = t.action::text WHERE c.name IS NULL) THEN
    RAISE EXCEPTION 'the action of a token has no row in the table actions' USING ERRCODE = 'PB404',
      HINT = 'add a row there; it adds the value to token_action, too';
  END IF;
  RETURN NULL;
END $$;

-- A new token of an account, which lives as long as its action says; returns its id. Refused, with nothing issued, where no mail
-- could follow: for an address that is not legal, an unknown portal, or an action without a template for the portal.
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
  SELECT issue_token.account, issue_token.action, issue_token.data, floor(extract(epoch FROM now())) + c.lifetime_seconds
  FROM {schema}.actions c WHERE c.name = issue_token.action::text
  RETURNING id INTO token;
  RETURN token;
END $$;

REVOKE EXECUTE ON FUNCTION {schema}._mail_fault FROM PUBLIC;
