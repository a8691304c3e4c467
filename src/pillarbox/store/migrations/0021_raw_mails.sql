-- Raw mails: line ends are normalised before anything is read in them, and what readers take for a sender obeys a tenant's
-- sender domains, in the header section as in `sender`, in display names as in addresses.

-- A raw mail with CRLF line ends; raises for a CR that stands alone, which is read as a line end by some and as text by others.
-- The escaped form is ASCII in every database, and leaves CR and LF as they are.
CREATE FUNCTION pillarbox._crlf(raw bytea) RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  given text := encode(raw, 'escape');
  lines text := replace(given, E'\r\n', E'\n');
BEGIN
  IF strpos(lines, E'\r') > 0 THEN
    PERFORM pillarbox._fail('PB400', 'bare_cr', 'raw', 'a CR stands without LF', 'end each line with CR LF, or with LF');
  END IF;
  lines := replace(lines, E'\n', E'\r\n');
  RETURN CASE WHEN lines = given THEN raw ELSE decode(lines, 'escape') END;
END $$;

-- The domains that a reader sees in a text beside addresses. `shown_domains` in model/shown_domains.py finds the same ones.
CREATE FUNCTION pillarbox._shown_domains(shown text) RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
DECLARE
  pieces text[];
  found text[];
  domain text;
BEGIN
  IF getdatabaseencoding() = 'UTF8' THEN
    shown := regexp_replace(normalize(shown, NFKC), '[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]', '', 'g');
    shown := replace(shown, U&'\3002', '.');
  END IF;
  pieces := string_to_array(shown, '@');
  FOR i IN 2..coalesce(cardinality(pieces), 0) LOOP
    found := regexp_match(pieces[i], '^([ \t]*)([^ \t<>(),;:"''\\\[\]]*)');
    domain := rtrim(found[2], '.');
    IF domain <> '' AND (strpos(domain, '.') > 0
                         OR (found[1] = '' AND pieces[i - 1] <> '' AND right(pieces[i - 1], 1) NOT IN (' ', E'\t'))) THEN
      RETURN NEXT domain;
    END IF;
  END LOOP;
END $$;

-- Refuse a header section about whose senders readers may disagree.
CREATE FUNCTION pillarbox._fail_unclear(what text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  PERFORM pillarbox._fail('PB400', 'bad_header', 'raw', 'the header section ' || what,
                          'senders are restricted to some domains here: write plain header fields of RFC 5322');
END $$;

-- The content of an encoded word in quoted-printable (RFC 2047 4.2).
CREATE FUNCTION pillarbox._unquoted(word text) RETURNS bytea LANGUAGE sql STABLE AS $$
  SELECT string_agg(CASE WHEN piece[2] IS NULL THEN convert_to(replace(piece[1], '_', ' '), 'UTF8') ELSE decode(piece[2], 'hex') END, '')
  FROM regexp_matches(word, '([^=]+|=(?![0-9A-Fa-f]{2}))|=([0-9A-Fa-f]{2})', 'g') AS piece
$$;

-- A field's value as a reader shows it, its encoded words (RFC 2047) decoded. PostgreSQL knows fewer charsets than Python:
-- a word in another one is refused. Without `by_charset`: as a reader shows it that knows no charset.
CREATE FUNCTION pillarbox._decoded(value text, by_charset boolean) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
  shown text := '';
  found text[];
  content bytea;
  charset text;
BEGIN
  LOOP
    found := regexp_match(value, '^(.*?)=\?([^?]*)\?([bBqQ])\?([^?]*)\?=(.*)$');
    EXIT WHEN found IS NULL;
    -- Blanks between two encoded words are not shown.
    IF shown = '' OR found[1] ~ '[^ \t]' THEN
      shown := shown || found[1];
    END IF;
    BEGIN
      IF found[3] IN ('q', 'Q') THEN
        content := pillarbox._unquoted(found[4]);
      ELSE
        found[4] := regexp_replace(found[4], '[^A-Za-z0-9+/]', '', 'g');
        found[4] := left(found[4], length(found[4]) - (length(found[4]) % 4 = 1)::int);
        content := decode(rpad(found[4], (length(found[4]) + 3) / 4 * 4, '='), 'base64');
      END IF;
      charset := lower(split_part(found[2], '*', 1));
      IF NOT by_charset OR charset IN ('us-ascii', 'ascii') THEN
        charset := 'LATIN1';
      END IF;
      shown := shown || convert_from(content, charset);
    EXCEPTION WHEN data_exception OR undefined_object OR undefined_function THEN
      PERFORM pillarbox._fail_unclear('names a sender in an encoding that cannot be read');
    END;
    value := found[5];
  END LOOP;
  RETURN shown || value;
END $$;

-- The domains of all that readers of a raw mail (with CRLF) may take for a sender's address; raises where readers may disagree.
-- `sender_domains` in accept/headers.py has the same rules, and says why.
CREATE FUNCTION pillarbox._sender_domains(raw bytea) RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
DECLARE
  head text;
  line text;
  field text[];
  value text;
  addresses text;
  token text;
  found text[];
BEGIN
  BEGIN
    head := convert_from(CASE WHEN substr(raw, 1, 2) = '\x0d0a' THEN ''
                              WHEN position('\x0d0a0d0a'::bytea IN raw) > 0 THEN substr(raw, 1, position('\x0d0a0d0a'::bytea IN raw) - 1)
                              ELSE raw END, 'UTF8');
  EXCEPTION WHEN data_exception THEN
    PERFORM pillarbox._fail_unclear('is neither ASCII nor UTF-8');
  END;
  IF E'\n' || head !~ '\n[!-9;-~]+[ \t]*:' THEN
    RETURN;  -- no header section at all: one is written before it
  END IF;
  FOREACH line IN ARRAY string_to_array(regexp_replace(regexp_replace(head, '\r\n$', ''), '\r\n([ \t])', '\1', 'g'), E'\r\n') LOOP
    IF line !~ '^[!-9;-~]+[ \t]*:' THEN
      PERFORM pillarbox._fail_unclear('has a line that is no header field');
    END IF;
  END LOOP;
  IF head ~ '[\u0001-\u0008\u000b\u000c\u000e-\u001f\u007f\u0085\u2028\u2029]' THEN
    PERFORM pillarbox._fail_unclear('contains control characters or line separators');
  END IF;
  FOREACH line IN ARRAY string_to_array(regexp_replace(regexp_replace(head, '\r\n$', ''), '\r\n([ \t])', '\1', 'g'), E'\r\n') LOOP
    field := regexp_match(line, '^([!-9;-~]+)[ \t]*:(.*)$');
    CONTINUE WHEN lower(field[1] COLLATE "C") NOT IN ('from', 'sender', 'resent-from', 'resent-sender');
    value := regexp_replace(field[2], '=\?[^?\s"()\\]+\?[bBqQ]\?[^?\s"()\\]*\?=', '""', 'g');
    addresses := '';
    WHILE value <> '' LOOP
      token := substring(value FROM '^(?:"(?:[^"\\]|\\.)*"|\((?:[^()"\\]|\\[^"])*\)|[^"()\\]+)');
      IF token IS NULL THEN
        PERFORM pillarbox._fail_unclear('names a sender with unbalanced or nested quotes or comments');
      END IF;
      addresses := addresses || CASE left(token, 1) WHEN '"' THEN '"' WHEN '(' THEN ' ' ELSE token END;
      value := substr(value, length(token) + 1);
    END LOOP;
    FOR found IN SELECT regexp_matches(addresses, '@[ \t]*([^ \t<>(),;:"''\\@]*)([ \t]*\.)?', 'g') LOOP
      IF found[2] IS NOT NULL THEN
        PERFORM pillarbox._fail_unclear('has a domain with blanks in it');
      END IF;
      RETURN NEXT found[1];
    END LOOP;
    RETURN QUERY SELECT pillarbox._shown_domains(pillarbox._decoded(field[2], true))
      UNION ALL SELECT pillarbox._shown_domains(pillarbox._decoded(field[2], false));
  END LOOP;
END $$;

-- Whether a tenant with these sender domains may show readers a sender in this one.
CREATE FUNCTION pillarbox._is_one_of(domain text, patterns text[]) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT EXISTS (SELECT FROM unnest(patterns) AS one
                 WHERE one = domain OR (one LIKE '*.%' AND right(domain, length(one) - 1) = substr(one, 2)))
$$;

-- Raise if a raw mail (with CRLF) shows a sender in a domain that is not the tenant's. `check_from` in accept/entry.py.
CREATE FUNCTION pillarbox._check_from(tenant_id integer, raw bytea) RETURNS void LANGUAGE plpgsql STABLE AS $$
DECLARE
  domains text[];
BEGIN
  SELECT t.sender_domains INTO domains FROM pillarbox.tenants t WHERE t.id = tenant_id;
  IF domains IS NOT NULL AND EXISTS (SELECT FROM pillarbox._sender_domains(raw) AS shown
                                     WHERE NOT pillarbox._is_one_of(pillarbox._domain('@' || shown), domains)) THEN
    PERFORM pillarbox._fail('PB403', 'sender_domain', 'From', 'the tenant may not send from this domain',
                            'send from one of its domains');
  END IF;
END $$;

-- As before, and a sender's display name shows no address in another domain.
CREATE OR REPLACE FUNCTION pillarbox._check_tenant(tenant_id integer, sender text, recipients integer, size integer) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
  tenant record;
BEGIN
  SELECT t.sender_domains, t.max_recipients, t.max_message_bytes INTO tenant FROM pillarbox.tenants t WHERE t.id = tenant_id;
  IF tenant.sender_domains IS NOT NULL
     AND (NOT pillarbox._is_one_of(pillarbox._domain(sender), tenant.sender_domains)
          OR EXISTS (SELECT FROM pillarbox._shown_domains(sender) AS shown
                     WHERE NOT pillarbox._is_one_of(pillarbox._domain('@' || shown), tenant.sender_domains))) THEN
    PERFORM pillarbox._fail('PB403', 'sender_domain', 'sender', 'the tenant may not send from this domain',
                            'send from one of its domains');
  END IF;
  IF recipients > tenant.max_recipients THEN
    PERFORM pillarbox._fail('PB400', 'recipient_count', 'to',
                            format('a mail of this tenant has at most %s recipients', tenant.max_recipients), 'send several mails');
  ELSIF size > tenant.max_message_bytes THEN
    PERFORM pillarbox._fail('PB400', 'too_large', 'message',
                            format('a mail of this tenant may have %s octets', tenant.max_message_bytes), 'send a link instead');
  END IF;
END $$;

-- Accept one mail; returns its id. Documented in docs/reference/sql.md.
CREATE OR REPLACE FUNCTION pillarbox.enqueue(
  sender text DEFAULT NULL, "to" text[] DEFAULT NULL, subject text DEFAULT NULL, text text DEFAULT NULL,
  html text DEFAULT NULL, cc text[] DEFAULT NULL, bcc text[] DEFAULT NULL, reply_to text[] DEFAULT NULL,
  raw bytea DEFAULT NULL, headers jsonb DEFAULT NULL, attachments jsonb DEFAULT NULL, tenant text DEFAULT 'default',
  class text DEFAULT NULL, kind text DEFAULT NULL, priority text DEFAULT 'normal',
  send_at timestamptz DEFAULT NULL, expires_at timestamptz DEFAULT NULL, max_attempts integer DEFAULT NULL,
  idempotency_key text DEFAULT NULL, tags text[] DEFAULT NULL, metadata jsonb DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
-- A hot path. Every expression and statement of PL/pgSQL costs again in each new transaction, so a plain mail meets
-- only one statement, which does nothing unless every rule is plainly kept. All others are looked at closely.
DECLARE
  id uuid;
  now timestamptz;
  lane smallint;
  tenant_id integer;
  default_sender text;
  known_class boolean;
  restricted boolean;
  chosen_class text;
  recipients text[];
  copies text[];
  blind text[];
  size integer;
  hash bytea;
  normalised bytea;  -- raw with CRLF line ends, as it is stored and sent
BEGIN
  IF num_nonnulls(cc, bcc, reply_to, raw, headers, attachments, kind, send_at, expires_at, max_attempts, idempotency_key,
                  tags, metadata) = 0 THEN
    WITH plain AS MATERIALIZED (
      SELECT pillarbox._new_id() AS id, t.id AS tenant_id, nextval('pillarbox.message_seq') AS seq, clock_timestamp() AS now,
        array_position('{urgent,normal,bulk}', priority) - 1 AS lane,
        1024 + octet_length(subject) + octet_length(text) + coalesce(octet_length(html), 0) AS size
      FROM pillarbox.tenants t
      -- The classes that every installation has: looking one up would cost each mail a subplan.
      WHERE t.name = tenant AND NOT t.restricted AND coalesce(class, 'transactional') IN ('transactional', 'lifecycle', 'bulk')
        AND priority IN ('urgent', 'normal', 'bulk') AND array_dims("to") = '[1:1]'
        AND length(sender) <= 64 AND length("to"[1]) <= 64 AND length(subject) <= 200
        AND octet_length(text) + coalesce(octet_length(html), 0) < 100000
        AND pillarbox._are_plain(sender, "to"[1], subject)
    ), message AS (
      INSERT INTO pillarbox.messages (id, tenant_id, size, lane, created_at, class, sender, "to", subject)
      SELECT p.id, p.tenant_id, p.size, p.lane, p.now, coalesce(class, 'transactional'), sender, "to", subject FROM plain p
    ), content AS (
      INSERT INTO pillarbox.contents (message_id, text, html) SELECT p.id, text, html FROM plain p
    ) INSERT INTO pillarbox.deliveries (message_id, seq, next_attempt_at, state, tenant_id, size, n, lane, role, recipient)
      SELECT p.id, p.seq, p.now, 'queued', p.tenant_id, p.size, 0, p.lane, 't', split_part(rtrim("to"[1], '>'), '<', -1)
      FROM plain p RETURNING message_id INTO id;
    IF FOUND THEN
      RETURN id;
    END IF;
  END IF;

  SELECT t.id, t.default_sender, t.restricted, c.name, c.name IS NOT NULL,
      array_position('{urgent,normal,bulk}', priority) - 1, clock_timestamp(), pillarbox._new_id()
    INTO tenant_id, default_sender, restricted, chosen_class, known_class, lane, now, id
    FROM pillarbox.tenants t LEFT JOIN pillarbox.classes c ON c.name = coalesce(class, t.default_class)
    WHERE t.name = tenant;
  IF known_class IS NOT TRUE OR lane IS NULL THEN
    PERFORM pillarbox._fail_name(tenant, tenant_id, class, known_class);
  END IF;
  PERFORM pillarbox._address(coalesce(sender, default_sender), 'sender');
  recipients := pillarbox._addresses(coalesce("to", '{}'), 'to');
  copies := pillarbox._addresses(coalesce(cc, '{}'), 'cc');
  blind := pillarbox._addresses(coalesce(bcc, '{}'), 'bcc');
  IF cardinality(recipients) + cardinality(copies) + cardinality(blind) NOT BETWEEN 1 AND 100 THEN
    PERFORM pillarbox._fail('PB400', 'recipient_count', 'to', 'a mail has 1 to 100 recipients', 'send several mails');
  END IF;
  PERFORM pillarbox._addresses(coalesce(reply_to, '{}'), 'reply_to'),
    pillarbox._check_content(subject, text, html, raw, headers, attachments, reply_to);
  normalised := pillarbox._crlf(raw);
  size := 1024 + coalesce(octet_length(subject), 0) + coalesce(octet_length(text), 0) + coalesce(octet_length(html), 0)
    + coalesce(octet_length(normalised), 0);
  size := size + pillarbox._check_more(headers, attachments, size, kind, tags, metadata, max_attempts, now, send_at,
                                       expires_at, idempotency_key);
  IF restricted THEN
    PERFORM pillarbox._check_tenant(tenant_id, coalesce(sender, default_sender),
                                    cardinality(recipients) + cardinality(copies) + cardinality(blind), size);
    IF raw IS NOT NULL THEN
      PERFORM pillarbox._check_from(tenant_id, normalised);
    END IF;
  END IF;
  IF idempotency_key IS NOT NULL THEN
    -- Of what was given: a request that was made before line ends were normalised can be repeated.
    -- Written so that no setting of the session (time zone, bytea_output) changes it.
    hash := sha256(convert_to(ROW(sender, nullif("to", '{}'), nullif(cc, '{}'), nullif(bcc, '{}'), nullif(reply_to, '{}'),
      subject, text, html, encode(sha256(raw), 'hex'), nullif(headers, '{}'), nullif(attachments, '[]'), chosen_class, kind, priority,
      extract(epoch FROM send_at), extract(epoch FROM expires_at), max_attempts, nullif(tags, '{}'), metadata)::text, 'UTF8'));
    INSERT INTO pillarbox.idempotency_keys VALUES (tenant_id, idempotency_key, id, hash) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
      SELECT k.message_id INTO id FROM pillarbox.idempotency_keys k
        WHERE k.tenant_id = tenant_id AND k.key = idempotency_key AND k.request_hash = hash;
      IF NOT FOUND THEN
        PERFORM pillarbox._fail('PB409', 'idempotency_conflict', 'idempotency_key', 'the key was used before, for a different mail',
                                'use a new key for a new mail');
      END IF;
      RETURN id;
    END IF;
  END IF;
  INSERT INTO pillarbox.messages VALUES (id, tenant_id, size, lane, max_attempts, now, send_at, expires_at, chosen_class, kind,
    coalesce(sender, default_sender), coalesce("to", '{}'), cc, reply_to, coalesce(subject, ''), headers, tags, metadata);
  INSERT INTO pillarbox.contents VALUES (id, text, html, normalised, attachments);
  PERFORM pillarbox._address_many(id, greatest(now, send_at),
    CASE WHEN send_at > now THEN 'pending' ELSE 'queued' END::pillarbox.state, tenant_id, size, lane, recipients, copies, blind);
  RETURN id;
END $$;

REVOKE EXECUTE ON FUNCTION pillarbox._crlf, pillarbox._shown_domains, pillarbox._fail_unclear, pillarbox._unquoted, pillarbox._decoded,
  pillarbox._sender_domains, pillarbox._is_one_of, pillarbox._check_from FROM PUBLIC;
