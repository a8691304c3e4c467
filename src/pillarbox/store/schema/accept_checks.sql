-- The checks that every accepted mail passes, in the order of accept/checks.py, which makes the
-- same checks for callers in Python; tests/integration/accept/test_enqueue_corpus.py compares the
-- two. Long patterns stay on one line: a literal in two parts would need a migration.

-- Raise an error of Pillarbox: PB400 invalid, PB403 not allowed, PB404 unknown name, PB409
-- conflict. CONSTRAINT carries the stable code, COLUMN the field. MESSAGE begins with
-- `mails[3].` if the fourth of several mails is wrong.
CREATE OR REPLACE FUNCTION pillarbox._fail(
  state text, code text, field text, message text, hint text DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  -- For a single mail the position is empty, which makes the part 'mails[…].' null; format()
  -- writes null as ''.
  RAISE EXCEPTION USING
    ERRCODE = state,
    CONSTRAINT = code,
    COLUMN = field,
    DETAIL = message,
    HINT = coalesce(hint, ''),
    MESSAGE = format(
      '%s%s: %s',
      'mails[' || nullif(current_setting('pillarbox.position', true), '') || '].', field, message);
END $$;

-- Raise the error of a tenant, class or priority that does not exist.
CREATE OR REPLACE FUNCTION pillarbox._fail_name(
  tenant text, tenant_id integer, class text, known_class boolean
) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF tenant_id IS NULL THEN
    PERFORM pillarbox._fail('PB404', 'unknown_tenant', 'tenant',
      format('there is no tenant %L', left(tenant, 100)), 'create it with: pillarbox tenant add');
  ELSIF NOT known_class THEN
    PERFORM pillarbox._fail('PB404', 'unknown_class', 'class',
      format('there is no class %L', left(class, 100)), 'see: pillarbox class list');
  ELSE
    PERFORM pillarbox._fail('PB400', 'unknown_priority', 'priority',
      'must be urgent, normal or bulk');
  END IF;
END $$;

-- Return the bare address of `a@b` or `Name <a@b>`; raise if it is not a legal address.
CREATE OR REPLACE FUNCTION pillarbox._address(mailbox text, field text)
RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  address text := CASE
    WHEN right(mailbox, 1) = '>'
      THEN substring(mailbox FROM '^[^<>\u0001-\u001f\u007f]*<([^<>]*)>$')
    ELSE mailbox END;
  domain text := split_part(address, '@', -1);
BEGIN
  -- One expression, since most addresses are legal. Of the two patterns for an address the second
  -- is the rule (dot-atom or quoted string, then a domain or an address literal). Most addresses
  -- match the first, which takes a quarter of the time. The pattern for labels over 63 characters
  -- is slow, too, and only long domains need it.
  IF octet_length(mailbox) <= 998
     AND octet_length(address) <= 254
     AND octet_length(address) - octet_length(domain) <= 65
     AND (
       address ~ '^[a-z0-9]+([._+-][a-z0-9]+)*@([a-z0-9]+[.-])+[a-z]+$'
       OR address ~
         '^([^\u0001-\u0020"(),.:;<>@\[\\\]\u007f-\u00a0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]+(\.[^\u0001-\u0020"(),.:;<>@\[\\\]\u007f-\u00a0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]+)*|"([^"\\\u0001-\u001f\u007f-\u009f]|\\[ -~])*")@([^\u0001-\u002c./:-@\[-`{-\u00a0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]+(\.[^\u0001-\u002c./:-@\[-`{-\u00a0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]+)*|\[([0-9]{1,3}(\.[0-9]{1,3}){3}|IPv6:[0-9A-Fa-f:.]{2,45})\])$')
     AND domain !~ '(^|\.)-|-(\.|$)'
     AND (length(domain) <= 63 OR domain !~ '[^.]{64}') THEN
    RETURN address;
  ELSIF mailbox IS NULL OR mailbox = '' THEN
    PERFORM pillarbox._fail('PB400', 'bad_address', field,
      'an address is missing', 'write name@domain');
  ELSIF octet_length(mailbox) > 998 THEN
    PERFORM pillarbox._fail('PB400', 'too_long', field,
      'a name and address must be at most 998 bytes together');
  ELSIF mailbox ~ '[\u0001-\u001f\u007f]' THEN
    PERFORM pillarbox._fail('PB400', 'control_character', field,
      'an address may not contain control characters', 'remove line ends, tabs and NULs');
  ELSIF address IS NULL THEN
    PERFORM pillarbox._fail('PB400', 'bad_address', field,
      'the angle brackets do not match', 'write Name <name@domain>');
  END IF;
  PERFORM pillarbox._fail('PB400', 'bad_address', field,
    'not a legal e-mail address', 'write name@domain');
END $$;

-- Return the bare addresses of a list of mailboxes.
CREATE OR REPLACE FUNCTION pillarbox._addresses(mailboxes text[], field text)
RETURNS text[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  found text[] := '{}';
  mailbox text;
BEGIN
  IF array_ndims(mailboxes) > 1 THEN
    PERFORM pillarbox._fail('PB400', 'bad_type', field, 'must be a flat list of addresses');
  END IF;
  -- Counted before any address is checked: a million addresses must not cost a million checks.
  IF cardinality(mailboxes) > 100 THEN
    PERFORM pillarbox._fail('PB400', 'too_many', field,
      'at most 100 addresses', 'send several mails');
  END IF;
  IF cardinality(mailboxes) = 1 THEN
    RETURN ARRAY[pillarbox._address(mailboxes[array_lower(mailboxes, 1)], field)];
  END IF;
  FOREACH mailbox IN ARRAY mailboxes LOOP
    found := found || pillarbox._address(mailbox, field);
  END LOOP;
  RETURN found;
END $$;

-- Whether a sender, a recipient and a subject are clearly legal, in one expression. A shortcut
-- for most mails, not the rule: PostgreSQL inlines it, which is cheaper than calling PL/pgSQL.
CREATE OR REPLACE FUNCTION pillarbox._are_plain(sender text, recipient text, subject text)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  -- Three lines: two mailboxes (`Name <a@b>` or `a@b`), then a subject without control characters.
  SELECT sender || E'\n' || recipient || E'\n' || subject ~
    '^(?:[A-Za-z0-9 ]*<[a-z0-9]+(?:[._+-][a-z0-9]+)*@(?:[a-z0-9]+[.-])+[a-z]+>|[a-z0-9]+(?:[._+-][a-z0-9]+)*@(?:[a-z0-9]+[.-])+[a-z]+)\n(?:[A-Za-z0-9 ]*<[a-z0-9]+(?:[._+-][a-z0-9]+)*@(?:[a-z0-9]+[.-])+[a-z]+>|[a-z0-9]+(?:[._+-][a-z0-9]+)*@(?:[a-z0-9]+[.-])+[a-z]+)\n[^\u0001-\u001f\u007f]*$'
$$;

-- Raise the error for a mail that _store_mails refused.
CREATE OR REPLACE FUNCTION pillarbox._fail_verdict(verdict text, class text)
RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  CASE verdict
    WHEN 'big_metadata' THEN
      PERFORM pillarbox._fail('PB400', 'too_big', 'metadata', 'may have 16 KiB');
    WHEN 'late_send_at' THEN
      PERFORM pillarbox._fail('PB400', 'out_of_range', 'send_at', 'may lie one year ahead at most');
    WHEN 'early_expires_at' THEN
      PERFORM pillarbox._fail('PB400', 'out_of_range', 'expires_at',
        'must lie in the future and after send_at', 'leave it out for a mail that does not expire');
    ELSE  -- the class was removed a moment ago
      PERFORM pillarbox._fail_name(NULL, 0, class, false);
  END CASE;
END $$;

-- Raise if the name or value of a header field is not allowed.
CREATE OR REPLACE FUNCTION pillarbox._check_header(name text, value text)
RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF name !~ '^[!-9;-~]{1,76}$' THEN
    PERFORM pillarbox._fail('PB400', 'bad_header', 'headers',
      'a header name is 1 to 76 printable ASCII characters without a colon');
  ELSIF lower(name COLLATE "C") IN (
          'from', 'to', 'cc', 'bcc', 'subject', 'reply-to', 'sender', 'mime-version', 'received',
          'return-path')
        OR lower(name COLLATE "C") LIKE 'content-%'
        OR lower(name COLLATE "C") LIKE 'resent-%' THEN
    PERFORM pillarbox._fail('PB400', 'reserved_header', 'headers',
      format('%s cannot be given as a header', name), 'use the argument of that name, or raw');
  ELSIF value IS NULL THEN
    PERFORM pillarbox._fail('PB400', 'bad_header', 'headers', format('%s must be a string', name));
  ELSIF value ~ '[\u0001-\u0008\u000a-\u001f\u007f]' THEN
    PERFORM pillarbox._fail('PB400', 'control_character', 'headers',
      format('%s may not contain control characters', name),
      'remove line ends and NULs; long values are folded for you');
  ELSIF octet_length(value) > 998 THEN
    PERFORM pillarbox._fail('PB400', 'too_long', 'headers',
      format('%s must be at most 998 bytes', name));
  END IF;
END $$;

-- Raise if the header fields of a mail are not an object of allowed names and values.
CREATE OR REPLACE FUNCTION pillarbox._check_headers(headers jsonb)
RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  header record;
BEGIN
  IF jsonb_typeof(headers) <> 'object' THEN
    PERFORM pillarbox._fail('PB400', 'bad_type', 'headers',
      'must be an object of names and strings');
  ELSIF (SELECT count(*) FROM jsonb_object_keys(headers)) > 50 THEN
    PERFORM pillarbox._fail('PB400', 'too_many', 'headers', 'at most 50 headers');
  END IF;
  FOR header IN
    -- A value that is not a string becomes null, which _check_header refuses.
    SELECT key, CASE jsonb_typeof(value) WHEN 'string' THEN value #>> '{}' END AS value
    FROM jsonb_each(headers)
  LOOP
    PERFORM pillarbox._check_header(header.key, header.value);
  END LOOP;
END $$;

-- Check attachments ({filename, content as base64, content_type, content_id}); return their size
-- in the mail.
CREATE OR REPLACE FUNCTION pillarbox._check_attachments(attachments jsonb)
RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  total bigint := 0;
  item jsonb;
  extra text;
BEGIN
  IF jsonb_typeof(attachments) <> 'array' THEN
    PERFORM pillarbox._fail('PB400', 'bad_type', 'attachments', 'must be an array of objects');
  ELSIF jsonb_array_length(attachments) > 100 THEN
    PERFORM pillarbox._fail('PB400', 'too_many', 'attachments', 'at most 100 attachments');
  END IF;
  FOR item IN SELECT value FROM jsonb_array_elements(attachments) LOOP
    IF jsonb_typeof(item) <> 'object' THEN
      PERFORM pillarbox._fail('PB400', 'bad_type', 'attachments', 'must be an array of objects');
    END IF;
    SELECT key INTO extra
      FROM jsonb_each(item)
      WHERE key NOT IN ('filename', 'content', 'content_type', 'content_id')
         OR jsonb_typeof(value) NOT IN ('string', 'null')
      LIMIT 1;
    IF extra IS NOT NULL THEN
      PERFORM pillarbox._fail('PB400', 'bad_attachment', 'attachments',
        format('%s is not expected, or not a string', extra),
        'an attachment has filename, content (base64), content_type and content_id');
    ELSIF coalesce(item->>'filename', '') = ''
          OR octet_length(item->>'filename') > 255
          OR item->>'filename' ~ '[\u0001-\u001f\u007f/\\]' THEN
      PERFORM pillarbox._fail('PB400', 'bad_attachment', 'attachments',
        'a filename must be 1 to 255 bytes without control characters or slashes');
    ELSIF octet_length(item->>'content_type') > 255
          -- type/subtype, then parameters: `; name=token` or `; name="quoted"` (RFC 2045 5.1)
          OR item->>'content_type' !~
            '^[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}( *; *[A-Za-z0-9!#$&^_.+*-]+=("[ !#-\[\]-~]*"|[A-Za-z0-9!#$&^_.+*''%-]+))*$' THEN
      PERFORM pillarbox._fail('PB400', 'bad_attachment', 'attachments',
        'content_type must be like type/subtype, of at most 255 bytes');
    ELSIF item->>'content_id' !~ '^[!-;=?-~]{1,255}$' THEN
      PERFORM pillarbox._fail('PB400', 'bad_attachment', 'attachments',
        'content_id is 1 to 255 printable ASCII characters without <, > or spaces');
    ELSIF item->>'content' IS NULL THEN
      PERFORM pillarbox._fail('PB400', 'bad_attachment', 'attachments',
        'content is missing', 'give the file as base64');
    END IF;
    BEGIN
      -- Base64 in the mail: 4 bytes for each group of 3, the last one padded.
      total := total + (octet_length(decode(item->>'content', 'base64')) + 2) / 3 * 4;
    EXCEPTION WHEN invalid_parameter_value THEN
      PERFORM pillarbox._fail('PB400', 'bad_attachment', 'attachments', 'content is not base64');
    END;
  END LOOP;
  RETURN total;
END $$;

-- Raise if a kind or tag is not a short label of allowed characters.
CREATE OR REPLACE FUNCTION pillarbox._check_label(value text, field text)
RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF value = '' OR octet_length(value) > 64 OR value ~ '[\u0001-\u001f\u007f]' THEN
    PERFORM pillarbox._fail('PB400', 'bad_label', field,
      'must be 1 to 64 bytes without control characters');
  END IF;
END $$;

-- Check the fields that most mails leave out; return the bytes that attachments add to the mail.
CREATE OR REPLACE FUNCTION pillarbox._check_more(
  headers jsonb, attachments jsonb, octets integer, kind text, tags text[], metadata jsonb,
  max_attempts integer, idempotency_key text
) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  attached bigint := 0;
  tag text;
BEGIN
  IF headers IS NOT NULL THEN
    PERFORM pillarbox._check_headers(headers);
  END IF;
  IF attachments IS NOT NULL THEN
    attached := pillarbox._check_attachments(attachments);
  END IF;
  IF octets + attached > 26214400 THEN
    PERFORM pillarbox._fail('PB400', 'too_big', 'message',
      'the whole mail may have 25 MiB, attachments counted as base64', 'send a link instead');
  ELSIF kind IS NOT NULL THEN
    PERFORM pillarbox._check_label(kind, 'kind');
  END IF;
  IF tags IS NOT NULL THEN
    IF array_ndims(tags) > 1 THEN
      PERFORM pillarbox._fail('PB400', 'bad_type', 'tags', 'must be a flat list of strings');
    ELSIF cardinality(tags) > 20 THEN
      PERFORM pillarbox._fail('PB400', 'too_many', 'tags', 'at most 20 tags');
    END IF;
    FOREACH tag IN ARRAY tags LOOP
      PERFORM pillarbox._check_label(coalesce(tag, ''), 'tags');
    END LOOP;
  END IF;
  IF jsonb_typeof(metadata) <> 'object' THEN
    PERFORM pillarbox._fail('PB400', 'bad_type', 'metadata', 'must be an object');
  ELSIF max_attempts NOT BETWEEN 1 AND 100 THEN
    PERFORM pillarbox._fail('PB400', 'out_of_range', 'max_attempts', 'must be 1 to 100');
  ELSIF idempotency_key IS NOT NULL AND (
    idempotency_key = ''
    OR octet_length(idempotency_key) > 255
    OR idempotency_key ~ '[\u0001-\u001f\u007f]'
  ) THEN
    PERFORM pillarbox._fail('PB400', 'bad_key', 'idempotency_key',
      'must be 1 to 255 bytes without control characters');
  END IF;
  RETURN attached;
END $$;

-- Check the subject and the content.
CREATE OR REPLACE FUNCTION pillarbox._check_content(
  subject text, text text, html text, raw bytea, headers jsonb, attachments jsonb, reply_to text[]
) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF octet_length(subject) > 998 THEN
    PERFORM pillarbox._fail('PB400', 'too_long', 'subject',
      'must be at most 998 bytes', 'shorten it');
  ELSIF subject ~ '[\u0001-\u0008\u000a-\u001f\u007f]' THEN
    PERFORM pillarbox._fail('PB400', 'control_character', 'subject',
      'may not contain control characters', 'remove line ends and NULs');
  ELSIF raw IS NOT NULL THEN
    IF num_nonnulls(text, html) > 0 OR headers <> '{}' OR attachments <> '[]'
       OR cardinality(reply_to) > 0 THEN
      PERFORM pillarbox._fail('PB400', 'raw_and_parts', 'raw',
        'a raw mail carries its own bodies, headers and attachments',
        'give either raw or text, html, reply_to, headers and attachments');
    ELSIF octet_length(raw) = 0 THEN
      PERFORM pillarbox._fail('PB400', 'empty', 'raw',
        'the mail has no content', 'give a whole RFC 5322 message');
    ELSIF position('\x00'::bytea IN raw) > 0 THEN
      PERFORM pillarbox._fail('PB400', 'control_character', 'raw', 'may not contain NUL');
    END IF;
  ELSIF num_nonnulls(text, html) = 0 AND coalesce(attachments = '[]', true) THEN
    PERFORM pillarbox._fail('PB400', 'empty', 'text',
      'the mail has no content', 'give text, html, attachments or raw');
  ELSIF octet_length(text) > 1048576 THEN
    PERFORM pillarbox._fail('PB400', 'too_big', 'text', 'may have 1 MiB', 'send a link instead');
  ELSIF octet_length(html) > 1048576 THEN
    PERFORM pillarbox._fail('PB400', 'too_big', 'html', 'may have 1 MiB', 'send a link instead');
  END IF;
END $$;

-- Check a usual mail: one recipient and none of the rarer fields. Return the recipient's bare
-- address.
CREATE OR REPLACE FUNCTION pillarbox._check_usual(
  tenant text, tenant_id integer, class text, known_class boolean, lane smallint, sender text,
  recipient text, subject text, text text, html text
) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  sender_address text;
BEGIN
  IF known_class IS NOT TRUE OR tenant_id IS NULL OR lane IS NULL THEN
    PERFORM pillarbox._fail_name(tenant, tenant_id, class, known_class);
  END IF;
  sender_address := pillarbox._address(sender, 'sender');
  recipient := pillarbox._address(recipient, 'to');
  -- A short mail with a body breaks no rule. Any other mail is checked in detail.
  IF length(subject) > 200
     OR subject ~ '[\u0001-\u001f\u007f]'
     OR (octet_length(text) < 100000 AND coalesce(octet_length(html), 0) < 100000) IS NOT TRUE THEN
    PERFORM pillarbox._check_content(subject, text, html, NULL, NULL, NULL, NULL);
  END IF;
  RETURN recipient;
END $$;
