-- Who may hand mail over, and within which limits: settings of tenants, API keys, SMTP logins.

-- Every transaction that enqueued reads the tenants until it ends, and whoever waits to change that table makes all that
-- come later wait, too. So this waits for a second, lets the others pass, and tries again.
DO $$
BEGIN
  PERFORM set_config('lock_timeout', '1s', true);
  FOR try IN 1..20 LOOP  -- 40 s together: less than a statement may take
    BEGIN
      LOCK TABLE pillarbox.tenants IN ACCESS EXCLUSIVE MODE;
      RETURN;
    EXCEPTION WHEN lock_not_available THEN
      PERFORM pg_sleep(1);
    END;
  END LOOP;
  RAISE lock_not_available USING MESSAGE = 'the tenants were in use all the time: end the longest transaction, then try again';
END $$;

-- Null means: the installation's, or no limit. Rates are how fast mails leave; more are accepted, and wait.
ALTER TABLE pillarbox.tenants
  ADD COLUMN order_mode          text NOT NULL DEFAULT 'fifo' CHECK (order_mode IN ('fifo', 'strict', 'parallel')),
  ADD COLUMN default_class       text NOT NULL DEFAULT 'transactional' REFERENCES pillarbox.classes (name),
  ADD COLUMN max_message_bytes   integer CHECK (max_message_bytes > 0),
  ADD COLUMN max_recipients      integer CHECK (max_recipients > 0),
  ADD COLUMN sender_domains      text[] CHECK (cardinality(sender_domains) > 0),
  ADD COLUMN rate_per_second     integer CHECK (rate_per_second > 0),
  ADD COLUMN rate_per_hour       integer CHECK (rate_per_hour > 0),
  ADD COLUMN rate_per_day        integer CHECK (rate_per_day > 0),
  ADD COLUMN content_retention   interval CHECK (content_retention > interval '0'),
  ADD COLUMN finished_retention  interval CHECK (finished_retention > interval '0'),
  -- Whether a mail needs more than the usual look when it is accepted. Rewrites the table, which is a small one.
  ADD COLUMN restricted          boolean NOT NULL GENERATED ALWAYS AS (
    max_message_bytes IS NOT NULL OR max_recipients IS NOT NULL OR sender_domains IS NOT NULL
    OR default_class <> 'transactional') STORED;

-- Keys are made by us, of 256 random bits: nobody can try them all, so one SHA-256 at rest is enough, and no slow hash
-- stands before each request.
CREATE TABLE pillarbox.api_keys (
  id                 integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id          integer REFERENCES pillarbox.tenants (id),  -- null: an administrator's
  name               text NOT NULL CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$'),
  prefix             text NOT NULL UNIQUE,                       -- the key's public beginning
  hash               bytea NOT NULL CHECK (octet_length(hash) = 32),
  scopes             text[] NOT NULL CHECK (cardinality(scopes) > 0 AND scopes <@ '{send,read,manage,admin}'),
  sender_domains     text[] CHECK (cardinality(sender_domains) > 0),
  recipient_domains  text[] CHECK (cardinality(recipient_domains) > 0),
  created_at         timestamptz NOT NULL DEFAULT now(),
  expires_at         timestamptz,
  revoked_at         timestamptz,
  last_used_at       timestamptz,                                -- to the minute
  CHECK ((tenant_id IS NULL) = ('admin' = ANY (scopes)))
);
CREATE UNIQUE INDEX api_keys_name ON pillarbox.api_keys (coalesce(tenant_id, 0), name) WHERE revoked_at IS NULL;

-- A user name ends in its tenant's, so that nobody learns another's by finding it taken.
CREATE TABLE pillarbox.smtp_logins (
  id                 integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id          integer NOT NULL REFERENCES pillarbox.tenants (id),
  name               text NOT NULL CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$'),
  username           text NOT NULL,                              -- name@tenant
  hash               bytea NOT NULL CHECK (octet_length(hash) = 32),
  sender_domains     text[] CHECK (cardinality(sender_domains) > 0),
  recipient_domains  text[] CHECK (cardinality(recipient_domains) > 0),
  created_at         timestamptz NOT NULL DEFAULT now(),
  expires_at         timestamptz,
  revoked_at         timestamptz,
  last_used_at       timestamptz
);
CREATE UNIQUE INDEX smtp_logins_username ON pillarbox.smtp_logins (username) WHERE revoked_at IS NULL;

REVOKE ALL ON pillarbox.api_keys, pillarbox.smtp_logins FROM PUBLIC;

-- How far retention has walked: what is before it and may be kept so long is gone, but for what was not yet finished.
CREATE TABLE pillarbox.retention_walks (
  what       text NOT NULL,
  age        interval NOT NULL,
  walked_to  uuid NOT NULL,
  began_at   timestamptz NOT NULL,  -- from the very beginning, for those that finished late
  PRIMARY KEY (what, age)
);

-- The domain of a mailbox, as domains are compared: in lower case. SQL knows no IDNA, so tenants' domains stand in both
-- forms, and here other letters are only made small and composed.
CREATE FUNCTION pillarbox._domain(mailbox text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT lower(split_part(rtrim(mailbox, '>'), '@', -1))
$$;
DO $$
DECLARE
  letters text;  -- a collation that knows how to make any letter small; the database's own may know ASCII alone
BEGIN
  IF getdatabaseencoding() <> 'UTF8' THEN
    RETURN;
  END IF;
  SELECT quote_ident(collname) INTO letters FROM pg_collation
    WHERE collname IN ('pg_c_utf8', 'und-x-icu', 'default') AND collnamespace = 'pg_catalog'::regnamespace
    ORDER BY array_position('{pg_c_utf8,und-x-icu,default}', collname::text) LIMIT 1;
  EXECUTE format($function$
    CREATE OR REPLACE FUNCTION pillarbox._domain(mailbox text) RETURNS text LANGUAGE sql STABLE AS $body$
      SELECT CASE WHEN octet_length(domain) = length(domain) THEN lower(domain COLLATE "C") COLLATE "default"
                  ELSE normalize(lower(domain COLLATE pg_catalog.%s)) COLLATE "default" END
      FROM (SELECT split_part(rtrim(mailbox, '>'), '@', -1) AS domain) AS given
    $body$ $function$, letters);
END $$;

-- Raise if the tenant's limits forbid a mail: its sender, how many recipients, how many octets. `check_allowed` in
-- model/access.py makes the same checks. Needed only where `restricted` is true.
CREATE FUNCTION pillarbox._check_tenant(tenant_id integer, sender text, recipients integer, size integer) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
  tenant record;
  domain text;
BEGIN
  SELECT t.sender_domains, t.max_recipients, t.max_message_bytes INTO tenant FROM pillarbox.tenants t WHERE t.id = tenant_id;
  IF tenant.sender_domains IS NOT NULL THEN
    domain := pillarbox._domain(sender);
    IF NOT EXISTS (SELECT FROM unnest(tenant.sender_domains) AS one
                   WHERE one = domain OR (one LIKE '*.%' AND right(domain, length(one) - 1) = substr(one, 2))) THEN
      PERFORM pillarbox._fail('PB403', 'sender_domain', 'sender', 'the tenant may not send from this domain',
                              'send from one of its domains');
    END IF;
  END IF;
  IF recipients > tenant.max_recipients THEN
    PERFORM pillarbox._fail('PB400', 'recipient_count', 'to',
                            format('a mail of this tenant has at most %s recipients', tenant.max_recipients), 'send several mails');
  ELSIF size > tenant.max_message_bytes THEN
    PERFORM pillarbox._fail('PB400', 'too_large', 'message',
                            format('a mail of this tenant may have %s octets', tenant.max_message_bytes), 'send a link instead');
  END IF;
END $$;

REVOKE EXECUTE ON FUNCTION pillarbox._domain, pillarbox._check_tenant FROM PUBLIC;
