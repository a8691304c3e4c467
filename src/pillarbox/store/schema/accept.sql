-- Functions that accept mail: `enqueue`, `enqueue_many` and the helpers that read a mail from JSON.

-- A new id: a UUID of version 7 (RFC 9562), so that ids are in the order of time. 48 bits of
-- milliseconds, the version, 12 bits of the fraction of a millisecond, then random bits.
DO $schema$
BEGIN
  IF current_setting('server_version_num')::int >= 180000 THEN  -- the server's own is faster
    CREATE OR REPLACE FUNCTION pillarbox._new_id()
    RETURNS uuid LANGUAGE sql VOLATILE AS 'SELECT uuidv7()';
  ELSE
    -- The first 8 bytes of a random UUID (version 4) are replaced by time and version (28672 is
    -- 0x7000); its other 8 bytes have the right variant already.
    CREATE OR REPLACE FUNCTION pillarbox._new_id()
    RETURNS uuid LANGUAGE sql VOLATILE AS $$
      SELECT encode(
        overlay(
          uuid_send(gen_random_uuid())
          PLACING int8send(us / 1000 << 16 | 28672 | us % 1000 * 4096 / 1000) FROM 1 FOR 8),
        'hex')::uuid
      FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) clock
    $$;
  END IF;
END $schema$;

-- Accept one mail; return its id. Documented in docs/reference/sql.md.
CREATE OR REPLACE FUNCTION pillarbox.enqueue(
  sender text DEFAULT NULL,
  "to" text[] DEFAULT NULL,
  subject text DEFAULT NULL,
  text text DEFAULT NULL,
  html text DEFAULT NULL,
  cc text[] DEFAULT NULL,
  bcc text[] DEFAULT NULL,
  reply_to text[] DEFAULT NULL,
  raw bytea DEFAULT NULL,
  headers jsonb DEFAULT NULL,
  attachments jsonb DEFAULT NULL,
  tenant text DEFAULT 'default',
  class text DEFAULT NULL,
  kind text DEFAULT NULL,
  priority text DEFAULT 'normal',
  send_at timestamptz DEFAULT NULL,
  expires_at timestamptz DEFAULT NULL,
  max_attempts integer DEFAULT NULL,
  idempotency_key text DEFAULT NULL,
  tags text[] DEFAULT NULL,
  metadata jsonb DEFAULT NULL,
  list_unsubscribe text[] DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
-- A hot path. Each expression and statement of PL/pgSQL has a cost that recurs in every
-- transaction, so a plain mail runs only one statement, which stores nothing unless the mail
-- clearly keeps every rule. Calling _store_mails for a plain mail would cost a fifth more CPU
-- (ADR 0031). _accept checks all other mails in detail, and _store_mails stores them.
DECLARE
  id uuid;
BEGIN
  IF num_nonnulls(cc, bcc, reply_to, raw, headers, attachments, kind, send_at, expires_at,
                  max_attempts, idempotency_key, tags, metadata, list_unsubscribe) = 0 THEN
    WITH plain AS MATERIALIZED (
      SELECT pillarbox._new_id() AS id, t.id AS tenant_id,
        nextval('pillarbox.message_seq') AS seq,
        clock_timestamp() AS now,
        array_position('{urgent,normal,bulk}', priority) - 1 AS lane,
        1024 + octet_length(subject) + octet_length(text) + coalesce(octet_length(html), 0) AS size
      FROM pillarbox.tenants t
      WHERE t.name = tenant AND NOT t.restricted
        -- The classes that every installation has: looking one up would cost each mail a subplan.
        AND coalesce(class, 'transactional') IN ('transactional', 'lifecycle', 'bulk')
        AND priority IN ('urgent', 'normal', 'bulk')
        AND array_dims("to") = '[1:1]'
        AND length(sender) <= 64 AND length("to"[1]) <= 64 AND length(subject) <= 200
        AND octet_length(text) + coalesce(octet_length(html), 0) < 100000
        AND pillarbox._are_plain(sender, "to"[1], subject)
    ), message AS (
      INSERT INTO pillarbox.messages (
        id, tenant_id, size, lane, created_at, class, sender, "to", subject)
      SELECT p.id, p.tenant_id, p.size, p.lane, p.now, coalesce(class, 'transactional'), sender,
        "to", subject
      FROM plain p
    ), content AS (
      INSERT INTO pillarbox.contents (message_id, text, html)
      SELECT p.id, text, html FROM plain p
    )
    INSERT INTO pillarbox.deliveries (
      message_id, seq, next_attempt_at, state, tenant_id, size, n, lane, role, recipient)
    SELECT p.id, p.seq, p.now, 'queued', p.tenant_id, p.size, 0, p.lane, 't',
      split_part(rtrim("to"[1], '>'), '<', -1)
    FROM plain p
    RETURNING message_id INTO id;
    IF FOUND THEN
      RETURN id;
    END IF;
  END IF;
  RETURN pillarbox._accept(
    jsonb_strip_nulls(jsonb_build_object(
      'sender', sender, 'to', "to", 'subject', subject, 'cc', cc, 'bcc', bcc,
      'reply_to', reply_to, 'tenant', tenant, 'class', class, 'kind', kind, 'priority', priority,
      'send_at', send_at, 'expires_at', expires_at, 'max_attempts', max_attempts,
      'idempotency_key', idempotency_key, 'tags', tags, 'list_unsubscribe', list_unsubscribe))
    -- Nulls inside these are kept.
    || CASE WHEN headers IS NULL THEN '{}'
            ELSE jsonb_build_object('headers', headers) END
    || CASE WHEN attachments IS NULL THEN '{}'
            ELSE jsonb_build_object('attachments', attachments) END
    || CASE WHEN metadata IS NULL THEN '{}'
            ELSE jsonb_build_object('metadata', metadata) END,
    text, html, raw);
END $$;

-- Check and store one mail of any form, given in JSON with its bodies beside it; return its id.
CREATE OR REPLACE FUNCTION pillarbox._accept(mail jsonb, text text, html text, raw bytea)
RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  given_tenant text := mail->>'tenant';
  given_class text := mail->>'class';
  given_sender text := mail->>'sender';
  subject text := mail->>'subject';
  "to" text[] := pillarbox._texts(mail->'to', 'to');
  cc text[] := pillarbox._texts(mail->'cc', 'cc');
  bcc text[] := pillarbox._texts(mail->'bcc', 'bcc');
  reply_to text[] := pillarbox._texts(mail->'reply_to', 'reply_to');
  tags text[] := pillarbox._texts(mail->'tags', 'tags');
  list_unsubscribe text[] := pillarbox._texts(mail->'list_unsubscribe', 'list_unsubscribe');
  headers jsonb := nullif(mail->'headers', 'null');
  attachments jsonb := nullif(mail->'attachments', 'null');
  metadata jsonb := nullif(mail->'metadata', 'null');
  send_at timestamptz := pillarbox._time(mail->>'send_at', 'send_at');
  expires_at timestamptz := pillarbox._time(mail->>'expires_at', 'expires_at');
  max_attempts integer := pillarbox._whole(mail->'max_attempts', 'max_attempts');
  key text := mail->>'idempotency_key';
  tenant record;
  id uuid;
  sender text;
  addresses text[];  -- of to, cc and bcc, in this order
  roles text;
  normalised bytea;  -- raw with CRLF line ends, as it is stored and sent
  size integer;
  verdict text;
BEGIN
  SELECT t.id, t.default_sender, t.restricted, c.name AS class, pillarbox._new_id() AS new_id,
      array_position('{urgent,normal,bulk}', mail->>'priority') - 1 AS lane
    INTO tenant
    FROM pillarbox.tenants t
    LEFT JOIN pillarbox.classes c ON c.name = coalesce(given_class, t.default_class)
    WHERE t.name = given_tenant;
  IF tenant.class IS NULL OR tenant.lane IS NULL THEN
    PERFORM pillarbox._fail_name(given_tenant, tenant.id, given_class, tenant.class IS NOT NULL);
  END IF;
  sender := coalesce(given_sender, tenant.default_sender);
  PERFORM pillarbox._address(sender, 'sender');
  addresses := pillarbox._addresses(coalesce("to", '{}'), 'to');
  IF num_nonnulls(cc, bcc) > 0 THEN
    addresses := addresses
      || pillarbox._addresses(coalesce(cc, '{}'), 'cc')
      || pillarbox._addresses(coalesce(bcc, '{}'), 'bcc');
  END IF;
  IF cardinality(addresses) NOT BETWEEN 1 AND 100 THEN
    PERFORM pillarbox._fail('PB400', 'recipient_count', 'to',
      'a mail has 1 to 100 recipients', 'send several mails');
  END IF;
  IF reply_to IS NOT NULL THEN
    PERFORM pillarbox._addresses(reply_to, 'reply_to');
  END IF;
  PERFORM pillarbox._check_content(subject, text, html, raw, headers, attachments, reply_to);
  IF cardinality(list_unsubscribe) > 0 THEN
    PERFORM pillarbox._check_list_unsubscribe(list_unsubscribe, raw, headers);
  END IF;
  IF raw IS NOT NULL THEN
    normalised := pillarbox._crlf(raw);
  END IF;
  size := 1024  -- an estimate for the header section
    + coalesce(octet_length(subject), 0)
    + coalesce(octet_length(text), 0)
    + coalesce(octet_length(html), 0)
    + coalesce(octet_length(normalised), 0);
  size := size + pillarbox._check_more(
    headers, attachments, size, mail->>'kind', tags, metadata, max_attempts, key);
  IF tenant.restricted THEN
    PERFORM pillarbox._check_tenant(tenant.id, sender, cardinality(addresses), size);
    IF raw IS NOT NULL THEN
      PERFORM pillarbox._check_from(tenant.id, normalised);
    END IF;
  END IF;
  roles := repeat('t', coalesce(cardinality("to"), 0))
    || repeat('c', coalesce(cardinality(cc), 0))
    || repeat('b', coalesce(cardinality(bcc), 0));
  IF cardinality(addresses) > 1 THEN  -- the first mention of an address counts
    SELECT array_agg(address ORDER BY first),
        string_agg(substr(roles, first::integer, 1), '' ORDER BY first)
      INTO addresses, roles
      FROM (
        SELECT address, min(n) AS first
        FROM unnest(addresses) WITH ORDINALITY AS given(address, n)
        GROUP BY address
      ) AS found;
  END IF;
  verdict := (pillarbox._store_mails(
    ARRAY[tenant.new_id], ARRAY[tenant.id], ARRAY[size], ARRAY[tenant.lane]::smallint[],
    ARRAY[tenant.class], ARRAY[sender], ARRAY[coalesce("to", '{}')::text],
    ARRAY[coalesce(subject, '')], ARRAY[addresses::text], ARRAY[roles], ARRAY[text], ARRAY[html],
    ARRAY[normalised], ARRAY[attachments], ARRAY[mail - 'attachments'], ARRAY[key]
  )).verdicts[1];
  IF verdict IN ('queued', 'pending') THEN
    RETURN tenant.new_id;
  ELSIF verdict <> 'known_key' THEN
    PERFORM pillarbox._fail_verdict(verdict, given_class);
  END IF;
  -- The key is known. The same request gets the id of the stored mail; another request is an error.
  SELECT k.message_id INTO id
    FROM pillarbox.idempotency_keys k
    WHERE k.tenant_id = tenant.id AND k.key = key
      AND k.request_hash = CASE octet_length(k.request_hash)
        WHEN 32 THEN pillarbox._request_hash_1(
          given_sender, "to", cc, bcc, reply_to, subject, text, html, raw, headers, attachments,
          tenant.class, mail->>'kind', mail->>'priority', send_at, expires_at, max_attempts, tags,
          metadata)
        ELSE pillarbox._request_hash(mail, text, html, normalised, attachments) END;
  IF NOT FOUND THEN
    PERFORM pillarbox._fail('PB409', 'idempotency_conflict', 'idempotency_key',
      'the key was used before, for a different mail', 'use a new key for a new mail');
  END IF;
  RETURN id;
END $$;

-- Return the strings of a JSON array, or of one string; null for null.
CREATE OR REPLACE FUNCTION pillarbox._texts(list jsonb, field text)
RETURNS text[] LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  CASE jsonb_typeof(list)
    WHEN 'null' THEN RETURN NULL;
    WHEN 'string' THEN RETURN ARRAY[list #>> '{}'];
    WHEN 'array' THEN
      IF jsonb_path_exists(list, 'strict $[*] ? (@.type() != "string" && @.type() != "null")') THEN
        PERFORM pillarbox._fail('PB400', 'bad_type', field, 'must be a list of strings');
      ELSIF jsonb_array_length(list) = 1 THEN
        RETURN ARRAY[list ->> 0];
      END IF;
      RETURN ARRAY(SELECT jsonb_array_elements_text(list));
    ELSE
      PERFORM pillarbox._fail('PB400', 'bad_type', field, 'must be a list of strings');
  END CASE;
END $$;

-- Read a time from JSON.
CREATE OR REPLACE FUNCTION pillarbox._time(value text, field text)
RETURNS timestamptz LANGUAGE plpgsql STABLE STRICT AS $$
BEGIN
  RETURN value::timestamptz;
EXCEPTION WHEN data_exception THEN
  PERFORM pillarbox._fail('PB400', 'bad_type', field,
    'must be a time', 'write it as 2030-12-31T23:59:00Z');
END $$;

-- Read an integer from JSON; a number outside the range of integer becomes the nearest in it.
CREATE OR REPLACE FUNCTION pillarbox._whole(value jsonb, field text)
RETURNS integer LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  IF jsonb_typeof(value) = 'null' THEN
    RETURN NULL;
  ELSIF jsonb_typeof(value) <> 'number' OR value::numeric <> trunc(value::numeric) THEN
    PERFORM pillarbox._fail('PB400', 'bad_type', field, 'must be a whole number');
  END IF;
  RETURN least(greatest(value::numeric, -2147483648), 2147483647);
END $$;

-- Read bytes from base64 in JSON.
CREATE OR REPLACE FUNCTION pillarbox._octets(value text, field text)
RETURNS bytea LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  RETURN decode(value, 'base64');
EXCEPTION WHEN invalid_parameter_value THEN
  PERFORM pillarbox._fail('PB400', 'bad_type', field, 'must be base64');
END $$;

-- Raise unless a mail in JSON has only known fields, with strings where strings belong.
CREATE OR REPLACE FUNCTION pillarbox._check_object(mail jsonb)
RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  key text;
BEGIN
  IF jsonb_typeof(mail) <> 'object' THEN
    PERFORM pillarbox._fail('PB400', 'bad_type', 'mails', 'must be an array of objects');
  END IF;
  SELECT k INTO key FROM jsonb_object_keys(mail - pillarbox._known_fields()) AS k LIMIT 1;
  IF FOUND THEN
    PERFORM pillarbox._fail('PB400', 'unknown_field', left(key, 60), 'there is no such field');
  END IF;
  SELECT e.key INTO key
    FROM jsonb_each(mail) AS e
    WHERE jsonb_typeof(e.value) NOT IN ('string', 'null')
      AND e.key <> ALL (pillarbox._list_fields())
      AND e.key NOT IN ('headers', 'attachments', 'metadata', 'max_attempts')
    LIMIT 1;
  IF FOUND THEN
    PERFORM pillarbox._fail('PB400', 'bad_type', key, 'must be a string');
  END IF;
END $$;

-- The fields that a mail in JSON may have.
CREATE OR REPLACE FUNCTION pillarbox._known_fields() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT '{sender,to,subject,text,html,cc,bcc,reply_to,raw,headers,attachments,tenant,class,kind,priority,send_at,expires_at,max_attempts,idempotency_key,tags,metadata,list_unsubscribe}'::text[]
$$;

-- The fields that are lists of strings; in JSON one string counts as a list of one.
CREATE OR REPLACE FUNCTION pillarbox._list_fields() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT '{to,cc,bcc,reply_to,tags,list_unsubscribe}'::text[]
$$;

-- The header fields that are stored for a mail: the given ones, and List-Unsubscribe.
CREATE OR REPLACE FUNCTION pillarbox._stored_headers(fields jsonb)
RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN fields ? 'list_unsubscribe' THEN
      coalesce(nullif(fields->'headers', 'null'), '{}')
      || pillarbox._unsubscribe_headers(
        pillarbox._texts(fields->'list_unsubscribe', 'list_unsubscribe'))
    ELSE nullif(fields->'headers', 'null') END
$$;

-- Check the URLs of List-Unsubscribe.
CREATE OR REPLACE FUNCTION pillarbox._check_list_unsubscribe(urls text[], raw bytea, headers jsonb)
RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF raw IS NOT NULL THEN
    PERFORM pillarbox._fail('PB400', 'raw_and_parts', 'raw',
      'a raw mail has its own List-Unsubscribe', 'omit list_unsubscribe');
  ELSIF cardinality(urls) > 10 THEN
    PERFORM pillarbox._fail('PB400', 'too_many', 'list_unsubscribe', 'at most 10 URLs');
  -- Commas separate the URLs of the header field (RFC 2369), and some readers split there. Braces
  -- are not legal in a URL: they are placeholders that were not replaced.
  ELSIF EXISTS (
    SELECT FROM unnest(urls) AS url
    WHERE coalesce(url, '')
      !~ '^(https?://[A-Za-z0-9\[][!-+\--;=?-z|~]*|mailto:[!-+\--;=?-z|~]+@[!-+\--;=?-z|~]+)$'
  ) THEN
    PERFORM pillarbox._fail('PB400', 'bad_url', 'list_unsubscribe',
      'must be https:, http: or mailto: URLs of ASCII without blanks, commas, <, >, { and }',
      'write a comma as %2C');
  -- A line of 998 bytes, less the blank that begins it.
  ELSIF octet_length(array_to_string(urls, '>, <')) + 2 > 997 THEN
    PERFORM pillarbox._fail('PB400', 'too_long', 'list_unsubscribe',
      'must be at most 997 bytes, all URLs together');
  ELSIF jsonb_typeof(headers) = 'object' AND EXISTS (
    SELECT FROM jsonb_each(headers) AS header
    WHERE lower(header.key COLLATE "C") IN ('list-unsubscribe', 'list-unsubscribe-post')
  ) THEN
    PERFORM pillarbox._fail('PB400', 'reserved_header', 'headers',
      'List-Unsubscribe is made of list_unsubscribe', 'give the header or the field, not both');
  -- The two that the field makes count, too: else the stored mail could not be resent.
  ELSIF jsonb_typeof(headers) = 'object'
        AND (SELECT count(*) FROM jsonb_object_keys(headers)) > 48 THEN
    PERFORM pillarbox._fail('PB400', 'too_many', 'headers',
      'at most 48 headers beside list_unsubscribe');
  END IF;
END $$;

-- The header fields for these URLs: List-Unsubscribe (RFC 2369), and List-Unsubscribe-Post
-- (RFC 8058) if the only web address is one https URL.
CREATE OR REPLACE FUNCTION pillarbox._unsubscribe_headers(urls text[])
RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF cardinality(urls) = 0 THEN
    RETURN '{}';
  END IF;
  RETURN jsonb_build_object('List-Unsubscribe', '<' || array_to_string(urls, '>, <') || '>')
    || CASE WHEN (
         SELECT count(*) = 1 AND bool_and(starts_with(url, 'https:'))
         FROM unnest(urls) AS url
         WHERE NOT starts_with(url, 'mailto:'))
       THEN '{"List-Unsubscribe-Post": "List-Unsubscribe=One-Click"}'
       ELSE '{}'::jsonb END;
END $$;

-- Note which of several mails is being checked, for _fail; null for none. (Not a SET clause of
-- the function, which needs a superuser for a custom setting. An error undoes it with the rest
-- of the transaction.)
CREATE OR REPLACE FUNCTION pillarbox._look_at(place bigint)
RETURNS boolean LANGUAGE sql VOLATILE AS $$
  SELECT set_config('pillarbox.position', coalesce((place - 1)::text, ''), true) IS NOT NULL
$$;

-- Whether all mails in JSON are usual ones: objects of strings with a sender and one recipient.
CREATE OR REPLACE FUNCTION pillarbox._all_usual(mails jsonb)
RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN (
    SELECT bool_and(CASE WHEN jsonb_typeof(mail) = 'object' THEN
      mail ?& '{sender,to}'
      AND mail - '{sender,to,subject,text,html,tenant,class,priority}'::text[] = '{}'
      AND NOT jsonb_path_exists(mail, 'strict $.* ? (@.type() != "string")')
      ELSE false END)
    FROM jsonb_array_elements(mails) AS mail);
END $$;

-- enqueue for many usual mails: each is checked, then one statement stores all.
CREATE OR REPLACE FUNCTION pillarbox._enqueue_usual(mails jsonb, texts text[], htmls text[])
RETURNS SETOF uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  batch record;
BEGIN
  -- From the inside out: read the JSON (given), look up tenant and class (named), check each mail
  -- (checked), collect the arrays for _store_mails (batch).
  SELECT array_agg(id) AS ids,
      array_agg(tenant_id) AS tenant_ids,
      array_agg(size) AS sizes,
      array_agg(lane) AS lanes,
      array_agg(class) AS classes,
      array_agg(sender) AS senders,
      array_agg(subject) AS subjects,
      -- _store_mails reads a text that starts with a brace as an array literal.
      array_agg(CASE WHEN starts_with(mailbox, '{') THEN ARRAY[mailbox]::text
                     ELSE mailbox END) AS mailboxes,
      array_agg(CASE WHEN starts_with(recipient, '{') THEN ARRAY[recipient]::text
                     ELSE recipient END) AS recipients,
      array_agg('t'::text) AS roles,
      count(mail->'text') + count(mail->'html') AS bodies_inside
    INTO batch
    FROM (
      SELECT *, pillarbox._new_id() AS id,
        CASE WHEN pillarbox._look_at(place) THEN
          pillarbox._check_usual(
            tenant, tenant_id, class, known_class, lane, sender, mailbox, subject, text, html)
        END AS recipient,
        CASE WHEN restricted THEN pillarbox._check_tenant(tenant_id, sender, 1, size) END
      FROM (
        SELECT given.*, t.id AS tenant_id, t.restricted,
          coalesce(given_class, t.default_class) AS class,
          EXISTS (
            SELECT FROM pillarbox.classes c
            WHERE c.name = coalesce(given_class, t.default_class)) AS known_class,
          1024 + octet_length(subject)
            + coalesce(octet_length(text), 0)
            + coalesce(octet_length(html), 0) AS size
        FROM (
          SELECT place, mail,
            mail->>'sender' AS sender,
            mail->>'to' AS mailbox,
            coalesce(mail->>'subject', '') AS subject,
            coalesce(mail->>'text', text_beside) AS text,
            coalesce(mail->>'html', html_beside) AS html,
            coalesce(mail->>'tenant', 'default') AS tenant,
            mail->>'class' AS given_class,
            (array_position('{urgent,normal,bulk}', coalesce(mail->>'priority', 'normal')) - 1
            )::smallint AS lane
          FROM ROWS FROM (jsonb_array_elements(mails), unnest(texts), unnest(htmls)) WITH ORDINALITY
            AS beside(mail, text_beside, html_beside, place)
        ) AS given
        LEFT JOIN LATERAL (SELECT * FROM pillarbox.tenants WHERE name = tenant LIMIT 1) t ON true
        ORDER BY place  -- so that the ids are in the order given
      ) AS named
      OFFSET 0  -- keeps PostgreSQL from merging the subqueries
    ) AS checked;
  IF batch.bodies_inside > 0 THEN
    SELECT array_agg(coalesce(mail->>'text', text_beside) ORDER BY place),
        array_agg(coalesce(mail->>'html', html_beside) ORDER BY place)
      INTO texts, htmls
      FROM ROWS FROM (jsonb_array_elements(mails), unnest(texts), unnest(htmls)) WITH ORDINALITY
        AS beside(mail, text_beside, html_beside, place);
  END IF;
  PERFORM pillarbox._store_mails(
    batch.ids, batch.tenant_ids, batch.sizes, batch.lanes, batch.classes, batch.senders,
    batch.mailboxes, batch.subjects, batch.recipients, batch.roles, texts, htmls, NULL, NULL, NULL);
  RETURN QUERY SELECT unnest(batch.ids);
END $$;

-- Accept several mails in one call. Documented in docs/reference/sql.md.
CREATE OR REPLACE FUNCTION pillarbox.enqueue_many(
  mails jsonb,
  texts text[] DEFAULT NULL,
  htmls text[] DEFAULT NULL,
  raws bytea[] DEFAULT NULL
) RETURNS SETOF uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  mail jsonb;
  place bigint;
  shown boolean;
  text_beside text;
  html_beside text;
  raw_beside bytea;
BEGIN
  IF jsonb_typeof(mails) IS DISTINCT FROM 'array' THEN
    PERFORM pillarbox._fail('PB400', 'bad_type', 'mails', 'must be an array of objects');
  ELSIF greatest(cardinality(texts), cardinality(htmls), cardinality(raws))
        > jsonb_array_length(mails) THEN
    PERFORM pillarbox._fail('PB400', 'bad_type', 'mails', 'there are more bodies than mails');
  END IF;
  IF raws IS NULL AND pillarbox._all_usual(mails) THEN
    RETURN QUERY SELECT * FROM pillarbox._enqueue_usual(mails, texts, htmls);
    PERFORM pillarbox._look_at(NULL);
    RETURN;
  END IF;
  FOR mail, text_beside, html_beside, raw_beside, place IN
    SELECT *
    FROM ROWS FROM (jsonb_array_elements(mails), unnest(texts), unnest(htmls), unnest(raws))
      WITH ORDINALITY
  LOOP
    shown := pillarbox._look_at(place);
    -- An object of strings with known names needs no detailed check.
    IF jsonb_typeof(mail) <> 'object' OR mail - pillarbox._known_fields() <> '{}'
       OR jsonb_path_exists(mail, 'strict $.* ? (@.type() != "string")') THEN
      PERFORM pillarbox._check_object(mail);
    END IF;
    RETURN NEXT pillarbox._accept(
      (mail - '{text,html,raw}'::text[])
      || jsonb_build_object(
        'tenant', coalesce(mail->>'tenant', 'default'),
        'priority', coalesce(mail->>'priority', 'normal')),
      coalesce(mail->>'text', text_beside), coalesce(mail->>'html', html_beside),
      coalesce(pillarbox._octets(mail->>'raw', 'raw'), raw_beside));
  END LOOP;
  PERFORM pillarbox._look_at(NULL);
END $$;
