-- Documented views of accounts and tokens.

-- Accounts with times as timestamptz.
CREATE OR REPLACE VIEW {schema}.account_log AS
SELECT id, email, login, status::text AS status, portal, locale, name,
  to_timestamp(created_at) AS created_at,
  to_timestamp(status_changed_at) AS status_changed_at,
  to_timestamp(activated_at) AS activated_at,
  to_timestamp(suspended_at) AS suspended_at,
  to_timestamp(unsuspended_at) AS unsuspended_at
FROM {schema}.accounts;

-- The outcome of every token with times as timestamptz, without secrets and codes.
CREATE OR REPLACE VIEW {schema}.token_log AS
SELECT t.id, t.account, t.action::text AS action,
  CASE
    WHEN t.consumed_at IS NOT NULL THEN 'used'
    WHEN EXISTS (SELECT FROM {schema}.tokens n WHERE n.account = t.account AND n.action = t.action
      AND n.id > t.id) THEN 'superseded'
    WHEN t.expires_at <= extract(epoch FROM now()) THEN 'expired'
    ELSE 'open'
  END AS status,
  coalesce(c.outcome, CASE w.held WHEN 'account' THEN 'held' WHEN 'rendering' THEN 'set_aside'
    ELSE 'waiting' END) AS outcome,
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
