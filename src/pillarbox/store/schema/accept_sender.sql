-- The domains that a tenant may send from, in the envelope and in raw mails.

-- The domain of a mailbox in lower case, the form in which domains are compared. SQL has no IDNA,
-- so a tenant's domains are stored in both forms; letters beyond ASCII are only put into lower case
-- and composed. That needs a collation with rules for these letters: the database's own collation
-- may have rules for ASCII only.
DO $schema$
DECLARE
  collation_name text;
BEGIN
  IF getdatabaseencoding() <> 'UTF8' THEN
    CREATE OR REPLACE FUNCTION pillarbox._domain(mailbox text)
    RETURNS text LANGUAGE sql STABLE AS $$
      SELECT lower(split_part(rtrim(mailbox, '>'), '@', -1))
    $$;
    RETURN;
  END IF;
  SELECT quote_ident(collname) INTO collation_name
    FROM pg_collation
    WHERE collname IN ('pg_c_utf8', 'und-x-icu', 'default')
      AND collnamespace = 'pg_catalog'::regnamespace
    ORDER BY array_position('{pg_c_utf8,und-x-icu,default}', collname::text)
    LIMIT 1;
  EXECUTE format($function$
    CREATE OR REPLACE FUNCTION pillarbox._domain(mailbox text)
    RETURNS text LANGUAGE sql STABLE AS $body$
      SELECT CASE
        WHEN octet_length(domain) = length(domain) THEN lower(domain COLLATE "C") COLLATE "default"
        ELSE normalize(lower(domain COLLATE pg_catalog.%s)) COLLATE "default" END
      FROM (SELECT split_part(rtrim(mailbox, '>'), '@', -1) AS domain) AS given
    $body$ $function$, collation_name);
END $schema$;

-- Return a raw mail with CRLF line ends; raise for a lone CR, which some software reads as a line
-- end and other software as text. The escaped form is ASCII in every database and leaves CR and LF
-- unchanged.
CREATE OR REPLACE FUNCTION pillarbox._crlf(raw bytea) RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  given text := encode(raw, 'escape');
  lines text := replace(given, E'\r\n', E'\n');
BEGIN
  IF strpos(lines, E'\r') > 0 THEN
    PERFORM pillarbox._fail('PB400', 'bare_cr', 'raw',
      'a CR stands without LF', 'end each line with CR LF, or with LF');
  END IF;
  lines := replace(lines, E'\n', E'\r\n');
  RETURN CASE WHEN lines = given THEN raw ELSE decode(lines, 'escape') END;
END $$;

-- Return the domains that a reader sees after an `@` in a text, beside those of addresses; the
-- same as `shown_domains` in model/shown_domains.py.
CREATE OR REPLACE FUNCTION pillarbox._shown_domains(shown text)
RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
DECLARE
  pieces text[];
  found text[];
  domain text;
BEGIN
  -- Compatibility forms and the ideographic full stop (U+3002) look like the plain characters;
  -- the characters that are removed are invisible.
  IF getdatabaseencoding() = 'UTF8' THEN
    shown := regexp_replace(
      normalize(shown, NFKC),
      '[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]', '', 'g');
    shown := replace(shown, U&'\3002', '.');
  END IF;
  pieces := string_to_array(shown, '@');
  FOR i IN 2..coalesce(cardinality(pieces), 0) LOOP
    found := regexp_match(pieces[i], '^([ \t]*)([^ \t<>(),;:"''\\\[\]]*)');
    domain := rtrim(found[2], '.');
    -- A word without a dot counts only if it is joined to the `@` and to the text before it.
    IF domain <> '' AND (
      strpos(domain, '.') > 0
      OR (found[1] = '' AND pieces[i - 1] <> ''
          AND right(pieces[i - 1], 1) NOT IN (' ', E'\t'))
    ) THEN
      RETURN NEXT domain;
    END IF;
  END LOOP;
END $$;

-- Raise for a header section whose senders mail readers may read differently.
CREATE OR REPLACE FUNCTION pillarbox._fail_unclear(what text)
RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  PERFORM pillarbox._fail('PB400', 'bad_header', 'raw',
    'the header section ' || what,
    'senders are restricted to some domains here: write plain header fields of RFC 5322');
END $$;

-- Decode the content of an encoded word in quoted-printable (RFC 2047 4.2).
CREATE OR REPLACE FUNCTION pillarbox._unquoted(word text) RETURNS bytea LANGUAGE sql STABLE AS $$
  SELECT string_agg(
    CASE WHEN piece[2] IS NULL THEN convert_to(replace(piece[1], '_', ' '), 'UTF8')
         ELSE decode(piece[2], 'hex') END, '')
  -- piece[1] is text (or an equals sign that begins no escape), piece[2] the two hex digits.
  FROM regexp_matches(word, '([^=]+|=(?![0-9A-Fa-f]{2}))|=([0-9A-Fa-f]{2})', 'g') AS piece
$$;

-- Return a field's value as a reader shows it, with its encoded words (RFC 2047) decoded; raise for
-- a word in a charset that PostgreSQL does not know. Without `by_charset`: as a reader that knows
-- no charset shows it.
CREATE OR REPLACE FUNCTION pillarbox._decoded(value text, by_charset boolean)
RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
  shown text := '';
  found text[];
  content bytea;
  charset text;
BEGIN
  LOOP
    -- The parts: text before the word, charset, encoding, content, the rest.
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
        -- Readers accept base64 with other characters in it or with wrong padding.
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

-- Return the domains of everything that readers of a raw mail (with CRLF) may take for a
-- sender's address; raise where readers may disagree. `sender_domains` in accept/headers.py has
-- the same rules and their reasons.
CREATE OR REPLACE FUNCTION pillarbox._sender_domains(raw bytea)
RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
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
    head := convert_from(
      CASE WHEN substr(raw, 1, 2) = '\x0d0a' THEN ''
           WHEN position('\x0d0a0d0a'::bytea IN raw) > 0 THEN
             substr(raw, 1, position('\x0d0a0d0a'::bytea IN raw) - 1)
           ELSE raw END, 'UTF8');
  EXCEPTION WHEN data_exception THEN
    PERFORM pillarbox._fail_unclear('is neither ASCII nor UTF-8');
  END;
  IF E'\n' || head !~ '\n[!-9;-~]+[ \t]*:' THEN
    RETURN;  -- no header section at all: one is written before it
  END IF;
  -- Each line is a whole field: continuation lines are joined first.
  FOREACH line IN ARRAY string_to_array(
    regexp_replace(regexp_replace(head, '\r\n$', ''), '\r\n([ \t])', '\1', 'g'), E'\r\n')
  LOOP
    IF line !~ '^[!-9;-~]+[ \t]*:' THEN
      PERFORM pillarbox._fail_unclear('has a line that is no header field');
    END IF;
  END LOOP;
  IF head ~ '[\u0001-\u0008\u000b\u000c\u000e-\u001f\u007f\u0085\u2028\u2029]' THEN
    PERFORM pillarbox._fail_unclear('contains control characters or line separators');
  END IF;
  FOREACH line IN ARRAY string_to_array(
    regexp_replace(regexp_replace(head, '\r\n$', ''), '\r\n([ \t])', '\1', 'g'), E'\r\n')
  LOOP
    field := regexp_match(line, '^([!-9;-~]+)[ \t]*:(.*)$');
    CONTINUE WHEN lower(field[1] COLLATE "C")
      NOT IN ('from', 'sender', 'resent-from', 'resent-sender');
    -- Encoded words, quoted strings and comments are removed: what remains are addresses.
    value := regexp_replace(field[2], '=\?[^?\s"()\\]+\?[bBqQ]\?[^?\s"()\\]*\?=', '""', 'g');
    addresses := '';
    WHILE value <> '' LOOP
      token := substring(value FROM '^(?:"(?:[^"\\]|\\.)*"|\((?:[^()"\\]|\\[^"])*\)|[^"()\\]+)');
      IF token IS NULL THEN
        PERFORM pillarbox._fail_unclear(
          'names a sender with unbalanced or nested quotes or comments');
      END IF;
      addresses := addresses
        || CASE left(token, 1) WHEN '"' THEN '"' WHEN '(' THEN ' ' ELSE token END;
      value := substr(value, length(token) + 1);
    END LOOP;
    FOR found IN
      SELECT regexp_matches(addresses, '@[ \t]*([^ \t<>(),;:"''\\@]*)([ \t]*\.)?', 'g')
    LOOP
      IF found[2] IS NOT NULL THEN
        PERFORM pillarbox._fail_unclear('has a domain with blanks in it');
      END IF;
      RETURN NEXT found[1];
    END LOOP;
    RETURN QUERY
      SELECT pillarbox._shown_domains(pillarbox._decoded(field[2], true))
      UNION ALL
      SELECT pillarbox._shown_domains(pillarbox._decoded(field[2], false));
  END LOOP;
END $$;

-- Whether a tenant with these sender domains may show a sender in this domain. A pattern
-- `*.example.org` matches every subdomain, but not example.org.
CREATE OR REPLACE FUNCTION pillarbox._is_one_of(domain text, patterns text[])
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT EXISTS (
    SELECT FROM unnest(patterns) AS one
    WHERE one = domain
       OR (one LIKE '*.%' AND right(domain, length(one) - 1) = substr(one, 2)))
$$;

-- Raise if a raw mail (with CRLF) shows a sender in a domain that is not the tenant's.
CREATE OR REPLACE FUNCTION pillarbox._check_from(tenant_id integer, raw bytea)
RETURNS void LANGUAGE plpgsql STABLE AS $$
DECLARE
  domains text[];
BEGIN
  SELECT t.sender_domains INTO domains FROM pillarbox.tenants t WHERE t.id = tenant_id;
  IF domains IS NOT NULL AND EXISTS (
    SELECT FROM pillarbox._sender_domains(raw) AS shown
    WHERE NOT pillarbox._is_one_of(pillarbox._domain('@' || shown), domains)
  ) THEN
    PERFORM pillarbox._fail('PB403', 'sender_domain', 'From',
      'the tenant may not send from this domain', 'send from one of its domains');
  END IF;
END $$;

-- Raise if the tenant's limits forbid a mail: the domain of its sender, also in the display
-- name, the number of recipients, or the size in bytes. `check_allowed` in model/access.py makes
-- the same checks. Called only for tenants with `restricted`. Volatile: PostgreSQL leaves out calls
-- of other functions whose result nothing uses, as in _enqueue_usual.
CREATE OR REPLACE FUNCTION pillarbox._check_tenant(
  tenant_id integer, sender text, recipients integer, size integer
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  tenant record;
BEGIN
  SELECT t.sender_domains, t.max_recipients, t.max_message_bytes INTO tenant
    FROM pillarbox.tenants t
    WHERE t.id = tenant_id;
  IF tenant.sender_domains IS NOT NULL AND (
    NOT pillarbox._is_one_of(pillarbox._domain(sender), tenant.sender_domains)
    OR EXISTS (
      SELECT FROM pillarbox._shown_domains(sender) AS shown
      WHERE NOT pillarbox._is_one_of(pillarbox._domain('@' || shown), tenant.sender_domains))
  ) THEN
    PERFORM pillarbox._fail('PB403', 'sender_domain', 'sender',
      'the tenant may not send from this domain', 'send from one of its domains');
  END IF;
  IF recipients > tenant.max_recipients THEN
    PERFORM pillarbox._fail('PB400', 'recipient_count', 'to',
      format('a mail of this tenant has at most %s recipients', tenant.max_recipients),
      'send several mails');
  ELSIF size > tenant.max_message_bytes THEN
    PERFORM pillarbox._fail('PB400', 'too_large', 'message',
      format('a mail of this tenant must be at most %s bytes', tenant.max_message_bytes),
      'send a link instead');
  END IF;
END $$;
