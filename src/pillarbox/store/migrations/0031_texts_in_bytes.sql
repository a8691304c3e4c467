-- Texts of errors: "bytes" instead of "octets". Copies of functions in store/schema/accept_checks.sql and accept_sender.sql.

-- Return the bare address of `a@b` or `Name <a@b>`; raise if it is not a legal address.
CREATE OR REPLACE FUNCTION pillarbox._address(mailbox text, field text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  address text := CASE WHEN right(mailbox, 1) = '>' THEN substring(mailbox FROM '^[^<>\u0001-\u001f\u007f]*<([^<>]*)>$') ELSE mailbox END;
  domain text := split_part(address, '@', -1);
BEGIN
  -- One expression, since most addresses are fine. Of the two patterns the second is the rule; most addresses match the
  -- first, which takes a quarter of the time. The pattern for long labels is slow, too, and few domains need it.
  IF octet_length(mailbox) <= 998 AND octet_length(address) <= 254
     AND octet_length(address) - octet_length(domain) <= 65
     AND (address ~ '^[a-z0-9]+([._+-][a-z0-9]+)*@([a-z0-9]+[.-])+[a-z]+$'
       OR address ~ '^([^\u0001-\u0020"(),.:;<>@\[\\\]\u007f-\u00a0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]+(\.[^\u0001-\u0020"(),.:;<>@\[\\\]\u007f-\u00a0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]+)*|"([^"\\\u0001-\u001f\u007f-\u009f]|\\[ -~])*")@([^\u0001-\u002c./:-@\[-`{-\u00a0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]+(\.[^\u0001-\u002c./:-@\[-`{-\u00a0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]+)*|\[([0-9]{1,3}(\.[0-9]{1,3}){3}|IPv6:[0-9A-Fa-f:.]{2,45})\])$')
     AND domain !~ '(^|\.)-|-(\.|$)' AND (length(domain) <= 63 OR domain !~ '[^.]{64}') THEN
    RETURN address;
  ELSIF mailbox IS NULL OR mailbox = '' THEN
    PERFORM pillarbox._fail('PB400', 'bad_address', field, 'an address is missing', 'write name@domain');
  ELSIF octet_length(mailbox) > 998 THEN
    PERFORM pillarbox._fail('PB400', 'too_long', field, 'a name and address must be at most 998 bytes together');
  ELSIF mailbox ~ '[\u0001-\u001f\u007f]' THEN
    PERFORM pillarbox._fail('PB400', 'control_character', field, 'an address may not contain control characters',
                            'remove line ends, tabs and NULs');
  ELSIF address IS NULL THEN
    PERFORM pillarbox._fail('PB400', 'bad_address', field, 'the angle brackets do not match', 'write Name <name@domain>');
  END IF;
  PERFORM pillarbox._fail('PB400', 'bad_address', field, 'not a legal e-mail address', 'write name@domain');
END $$;

-- Raise if the name or value of a header field is not allowed.
CREATE OR REPLACE FUNCTION pillarbox._check_header(name text, value text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF name !~ '^[!-9;-~]{1,76}$' THEN
    PERFORM pillarbox._fail('PB400', 'bad_header', 'headers', 'a header name is 1 to 76 printable ASCII characters without a colon');
  ELSIF lower(name COLLATE "C") IN ('from', 'to', 'cc', 'bcc', 'subject', 'reply-to', 'sender', 'mime-version', 'received', 'return-path')
        OR lower(name COLLATE "C") LIKE 'content-%' OR lower(name COLLATE "C") LIKE 'resent-%' THEN
    PERFORM pillarbox._fail('PB400', 'reserved_header', 'headers', format('%s cannot be given as a header', name),
                            'use the argument of that name, or raw');
  ELSIF value IS NULL THEN
    PERFORM pillarbox._fail('PB400', 'bad_header', 'headers', format('%s must be a string', name));
  ELSIF value ~ '[\u0001-\u0008\u000a-\u001f\u007f]' THEN
    PERFORM pillarbox._fail('PB400', 'control_character', 'headers', format('%s may not contain control characters', name),
                            'remove line ends and NULs; long values are folded for you');
  ELSIF octet_length(value) > 998 THEN
    PERFORM pillarbox._fail('PB400', 'too_long', 'headers', format('%s must be at most 998 bytes', name));
  END IF;
END $$;

-- Check attachments ({filename, content as base64, content_type, content_id}); return their size
-- in the mail.
CREATE OR REPLACE FUNCTION pillarbox._check_attachments(attachments jsonb) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
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
    SELECT key INTO extra FROM jsonb_each(item)
      WHERE key NOT IN ('filename', 'content', 'content_type', 'content_id')
         OR jsonb_typeof(value) NOT IN ('string', 'null') LIMIT 1;
    IF extra IS NOT NULL THEN
      PERFORM pillarbox._fail('PB400', 'bad_attachment', 'attachments', format('%s is not expected, or not a string', extra),
                              'an attachment has filename, content (base64), content_type and content_id');
    ELSIF coalesce(item->>'filename', '') = '' OR octet_length(item->>'filename') > 255
          OR item->>'filename' ~ '[\u0001-\u001f\u007f/\\]' THEN
      PERFORM pillarbox._fail('PB400', 'bad_attachment', 'attachments',
                              'a filename must be 1 to 255 bytes without control characters or slashes');
    ELSIF octet_length(item->>'content_type') > 255 OR item->>'content_type' !~ '^[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}( *; *[A-Za-z0-9!#$&^_.+*-]+=("[ !#-\[\]-~]*"|[A-Za-z0-9!#$&^_.+*''%-]+))*$' THEN
      PERFORM pillarbox._fail('PB400', 'bad_attachment', 'attachments', 'content_type must be like type/subtype, of at most 255 bytes');
    ELSIF item->>'content_id' !~ '^[!-;=?-~]{1,255}$' THEN
      PERFORM pillarbox._fail('PB400', 'bad_attachment', 'attachments',
                              'content_id is 1 to 255 printable ASCII characters without <, > or spaces');
    ELSIF item->>'content' IS NULL THEN
      PERFORM pillarbox._fail('PB400', 'bad_attachment', 'attachments', 'content is missing', 'give the file as base64');
    END IF;
    BEGIN
      total := total + (octet_length(decode(item->>'content', 'base64')) + 2) / 3 * 4;
    EXCEPTION WHEN invalid_parameter_value THEN
      PERFORM pillarbox._fail('PB400', 'bad_attachment', 'attachments', 'content is not base64');
    END;
  END LOOP;
  RETURN total;
END $$;

-- Raise if a kind or tag is not a short label of allowed characters.
CREATE OR REPLACE FUNCTION pillarbox._check_label(value text, field text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF value = '' OR octet_length(value) > 64 OR value ~ '[\u0001-\u001f\u007f]' THEN
    PERFORM pillarbox._fail('PB400', 'bad_label', field, 'must be 1 to 64 bytes without control characters');
  END IF;
END $$;

-- Check the fields that most mails leave out; return the bytes that attachments add to the mail.
CREATE OR REPLACE FUNCTION pillarbox._check_more(
  headers jsonb, attachments jsonb, octets integer, kind text, tags text[], metadata jsonb, max_attempts integer,
  idempotency_key text
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
    PERFORM pillarbox._fail('PB400', 'too_big', 'message', 'the whole mail may have 25 MiB, attachments counted as base64',
                            'send a link instead');
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
  ELSIF idempotency_key IS NOT NULL AND (idempotency_key = '' OR octet_length(idempotency_key) > 255
        OR idempotency_key ~ '[\u0001-\u001f\u007f]') THEN
    PERFORM pillarbox._fail('PB400', 'bad_key', 'idempotency_key', 'must be 1 to 255 bytes without control characters');
  END IF;
  RETURN attached;
END $$;

-- Check the subject and the content.
CREATE OR REPLACE FUNCTION pillarbox._check_content(
  subject text, text text, html text, raw bytea, headers jsonb, attachments jsonb, reply_to text[]
) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF octet_length(subject) > 998 THEN
    PERFORM pillarbox._fail('PB400', 'too_long', 'subject', 'must be at most 998 bytes', 'shorten it');
  ELSIF subject ~ '[\u0001-\u0008\u000a-\u001f\u007f]' THEN
    PERFORM pillarbox._fail('PB400', 'control_character', 'subject', 'may not contain control characters', 'remove line ends and NULs');
  ELSIF raw IS NOT NULL THEN
    IF num_nonnulls(text, html) > 0 OR headers <> '{}' OR attachments <> '[]' OR cardinality(reply_to) > 0 THEN
      PERFORM pillarbox._fail('PB400', 'raw_and_parts', 'raw', 'a raw mail carries its own bodies, headers and attachments',
                              'give either raw or text, html, reply_to, headers and attachments');
    ELSIF octet_length(raw) = 0 THEN
      PERFORM pillarbox._fail('PB400', 'empty', 'raw', 'the mail has no content', 'give a whole RFC 5322 message');
    ELSIF position('\x00'::bytea IN raw) > 0 THEN
      PERFORM pillarbox._fail('PB400', 'control_character', 'raw', 'may not contain NUL');
    END IF;
  ELSIF num_nonnulls(text, html) = 0 AND coalesce(attachments = '[]', true) THEN
    PERFORM pillarbox._fail('PB400', 'empty', 'text', 'the mail has no content', 'give text, html, attachments or raw');
  ELSIF octet_length(text) > 1048576 THEN
    PERFORM pillarbox._fail('PB400', 'too_big', 'text', 'may have 1 MiB', 'send a link instead');
  ELSIF octet_length(html) > 1048576 THEN
    PERFORM pillarbox._fail('PB400', 'too_big', 'html', 'may have 1 MiB', 'send a link instead');
  END IF;
END $$;

-- Raise if the tenant's limits forbid a mail: the domain of its sender, also in the display
-- name, the number of recipients, or the size in bytes. `check_allowed` in model/access.py makes
-- the same checks. Called only for tenants with `restricted`.
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
                            format('a mail of this tenant must be at most %s bytes', tenant.max_message_bytes), 'send a link instead');
  END IF;
END $$;
