-- The field list_unsubscribe. Copies of store/schema/accept.sql.

-- The fields that a mail in JSON may have.
CREATE OR REPLACE FUNCTION pillarbox._known_fields() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT '{sender,to,subject,text,html,cc,bcc,reply_to,raw,headers,attachments,tenant,class,kind,priority,send_at,expires_at,max_attempts,idempotency_key,tags,metadata,list_unsubscribe}'::text[]
$$;

-- Those of them that are lists of strings; in JSON one string counts as a list of one.
CREATE OR REPLACE FUNCTION pillarbox._list_fields() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT '{to,cc,bcc,reply_to,tags,list_unsubscribe}'::text[]
$$;

-- Raise unless a mail in JSON has only known fields, with strings where strings belong.
CREATE OR REPLACE FUNCTION pillarbox._check_object(mail jsonb) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
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
  SELECT e.key INTO key FROM jsonb_each(mail) AS e WHERE jsonb_typeof(e.value) NOT IN ('string', 'null')
    AND e.key <> ALL (pillarbox._list_fields()) AND e.key NOT IN ('headers', 'attachments', 'metadata', 'max_attempts') LIMIT 1;
  IF FOUND THEN
    PERFORM pillarbox._fail('PB400', 'bad_type', key, 'must be a string');
  END IF;
END $$;

-- Check the URLs of List-Unsubscribe.
CREATE OR REPLACE FUNCTION pillarbox._check_list_unsubscribe(urls text[], raw bytea, headers jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF raw IS NOT NULL THEN
    PERFORM pillarbox._fail('PB400', 'raw_and_parts', 'raw', 'a raw mail has its own List-Unsubscribe', 'omit list_unsubscribe');
  ELSIF cardinality(urls) > 10 THEN
    PERFORM pillarbox._fail('PB400', 'too_many', 'list_unsubscribe', 'at most 10 URLs');
  -- Commas separate the URLs of the header field (RFC 2369), and some readers split there. Braces are not legal in a URL:
  -- they are placeholders that were not replaced.
  ELSIF EXISTS (SELECT FROM unnest(urls) AS url WHERE coalesce(url, '') !~
      '^(https?://[A-Za-z0-9\[][!-+\--;=?-z|~]*|mailto:[!-+\--;=?-z|~]+@[!-+\--;=?-z|~]+)$') THEN
    PERFORM pillarbox._fail('PB400', 'bad_url', 'list_unsubscribe',
                            'must be https:, http: or mailto: URLs of ASCII without blanks, commas, <, >, { and }',
                            'write a comma as %2C');
  ELSIF octet_length(array_to_string(urls, '>, <')) + 2 > 997 THEN  -- a line of 998 bytes, less the blank that begins it
    PERFORM pillarbox._fail('PB400', 'too_long', 'list_unsubscribe', 'must be at most 997 bytes, all URLs together');
  ELSIF jsonb_typeof(headers) = 'object'
        AND EXISTS (SELECT FROM jsonb_each(headers) AS header
                    WHERE lower(header.key COLLATE "C") IN ('list-unsubscribe', 'list-unsubscribe-post')) THEN
    PERFORM pillarbox._fail('PB400', 'reserved_header', 'headers', 'List-Unsubscribe is made of list_unsubscribe',
                            'give the header or the field, not both');
  -- The two that the field makes count, too: else the stored mail could not be resent.
  ELSIF jsonb_typeof(headers) = 'object' AND (SELECT count(*) FROM jsonb_object_keys(headers)) > 48 THEN
    PERFORM pillarbox._fail('PB400', 'too_many', 'headers', 'at most 48 headers beside list_unsubscribe');
  END IF;
END $$;

-- The header fields of these URLs: List-Unsubscribe (RFC 2369), and List-Unsubscribe-Post (RFC 8058) if the
-- only web address is one https URL.
CREATE OR REPLACE FUNCTION pillarbox._unsubscribe_headers(urls text[]) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF cardinality(urls) = 0 THEN
    RETURN '{}';
  END IF;
  RETURN jsonb_build_object('List-Unsubscribe', '<' || array_to_string(urls, '>, <') || '>')
    || CASE WHEN (SELECT count(*) = 1 AND bool_and(starts_with(url, 'https:')) FROM unnest(urls) AS url
                  WHERE NOT starts_with(url, 'mailto:'))
         THEN '{"List-Unsubscribe-Post": "List-Unsubscribe=One-Click"}' ELSE '{}'::jsonb END;
END $$;

-- The header fields that are stored of a mail: those given, and those that other fields make.
CREATE OR REPLACE FUNCTION pillarbox._stored_headers(fields jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN fields ? 'list_unsubscribe' THEN coalesce(nullif(fields->'headers', 'null'), '{}')
      || pillarbox._unsubscribe_headers(pillarbox._texts(fields->'list_unsubscribe', 'list_unsubscribe'))
    ELSE nullif(fields->'headers', 'null') END
$$;

-- Check and store one mail of any form, given in JSON with its bodies beside it; return its id.
CREATE OR REPLACE FUNCTION pillarbox._accept(mail jsonb, text text, html text, raw bytea) RETURNS uuid LANGUAGE plpgsql AS $$
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
    INTO tenant FROM pillarbox.tenants t LEFT JOIN pillarbox.classes c ON c.name = coalesce(given_class, t.default_class)
    WHERE t.name = given_tenant;
  IF tenant.class IS NULL OR tenant.lane IS NULL THEN
    PERFORM pillarbox._fail_name(given_tenant, tenant.id, given_class, tenant.class IS NOT NULL);
  END IF;
  sender := coalesce(given_sender, tenant.default_sender);
  PERFORM pillarbox._address(sender, 'sender');
  addresses := pillarbox._addresses(coalesce("to", '{}'), 'to');
  IF num_nonnulls(cc, bcc) > 0 THEN
    addresses := addresses || pillarbox._addresses(coalesce(cc, '{}'), 'cc') || pillarbox._addresses(coalesce(bcc, '{}'), 'bcc');
  END IF;
  IF cardinality(addresses) NOT BETWEEN 1 AND 100 THEN
    PERFORM pillarbox._fail('PB400', 'recipient_count', 'to', 'a mail has 1 to 100 recipients', 'send several mails');
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
  size := 1024 + coalesce(octet_length(subject), 0) + coalesce(octet_length(text), 0) + coalesce(octet_length(html), 0)
    + coalesce(octet_length(normalised), 0);
  size := size + pillarbox._check_more(headers, attachments, size, mail->>'kind', tags, metadata, max_attempts, key);
  IF tenant.restricted THEN
    PERFORM pillarbox._check_tenant(tenant.id, sender, cardinality(addresses), size);
    IF raw IS NOT NULL THEN
      PERFORM pillarbox._check_from(tenant.id, normalised);
    END IF;
  END IF;
  roles := repeat('t', coalesce(cardinality("to"), 0)) || repeat('c', coalesce(cardinality(cc), 0))
    || repeat('b', coalesce(cardinality(bcc), 0));
  IF cardinality(addresses) > 1 THEN  -- the first mention of an address counts
    SELECT array_agg(address ORDER BY first), string_agg(substr(roles, first::integer, 1), '' ORDER BY first)
      INTO addresses, roles
      FROM (SELECT address, min(n) AS first FROM unnest(addresses) WITH ORDINALITY AS given(address, n) GROUP BY address) AS found;
  END IF;
  verdict := (pillarbox._store_mails(
    ARRAY[tenant.new_id], ARRAY[tenant.id], ARRAY[size], ARRAY[tenant.lane]::smallint[], ARRAY[tenant.class], ARRAY[sender],
    ARRAY[coalesce("to", '{}')::text], ARRAY[coalesce(subject, '')], ARRAY[addresses::text], ARRAY[roles], ARRAY[text],
    ARRAY[html], ARRAY[normalised], ARRAY[attachments], ARRAY[mail - 'attachments'], ARRAY[key])).verdicts[1];
  IF verdict IN ('queued', 'pending') THEN
    RETURN tenant.new_id;
  ELSIF verdict <> 'known_key' THEN
    PERFORM pillarbox._fail_verdict(verdict, given_class);
  END IF;
  SELECT k.message_id INTO id FROM pillarbox.idempotency_keys k
    WHERE k.tenant_id = tenant.id AND k.key = key
      AND k.request_hash = CASE octet_length(k.request_hash)
        WHEN 32 THEN pillarbox._request_hash_1(given_sender, "to", cc, bcc, reply_to, subject, text, html, raw, headers, attachments,
          tenant.class, mail->>'kind', mail->>'priority', send_at, expires_at, max_attempts, tags, metadata)
        ELSE pillarbox._request_hash(mail, text, html, normalised, attachments) END;
  IF NOT FOUND THEN
    PERFORM pillarbox._fail('PB409', 'idempotency_conflict', 'idempotency_key', 'the key was used before, for a different mail',
                            'use a new key for a new mail');
  END IF;
  RETURN id;
END $$;

-- enqueue gets a parameter at its end, which leaves every call valid. That makes it another function for PostgreSQL, so it is
-- created under another name, gets the owner and the privileges of the old one, and takes its place.
CREATE FUNCTION pillarbox._enqueue_next(
  sender text DEFAULT NULL, "to" text[] DEFAULT NULL, subject text DEFAULT NULL, text text DEFAULT NULL,
  html text DEFAULT NULL, cc text[] DEFAULT NULL, bcc text[] DEFAULT NULL, reply_to text[] DEFAULT NULL,
  raw bytea DEFAULT NULL, headers jsonb DEFAULT NULL, attachments jsonb DEFAULT NULL, tenant text DEFAULT 'default',
  class text DEFAULT NULL, kind text DEFAULT NULL, priority text DEFAULT 'normal',
  send_at timestamptz DEFAULT NULL, expires_at timestamptz DEFAULT NULL, max_attempts integer DEFAULT NULL,
  idempotency_key text DEFAULT NULL, tags text[] DEFAULT NULL, metadata jsonb DEFAULT NULL,
  list_unsubscribe text[] DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
-- A hot path. Every expression and statement of PL/pgSQL costs again in each new transaction, so a plain mail runs only one
-- statement, which does nothing unless every rule is plainly kept. Calling _store_mails for it instead would cost a fifth
-- more CPU (ADR 0031). All other mails are checked closely, and stored by _store_mails.
DECLARE
  id uuid;
BEGIN
  IF num_nonnulls(cc, bcc, reply_to, raw, headers, attachments, kind, send_at, expires_at, max_attempts, idempotency_key,
                  tags, metadata, list_unsubscribe) = 0 THEN
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
  RETURN pillarbox._accept(
    jsonb_strip_nulls(jsonb_build_object(
      'sender', sender, 'to', "to", 'subject', subject, 'cc', cc, 'bcc', bcc, 'reply_to', reply_to, 'tenant', tenant,
      'class', class, 'kind', kind, 'priority', priority, 'send_at', send_at, 'expires_at', expires_at,
      'max_attempts', max_attempts, 'idempotency_key', idempotency_key, 'tags', tags,
      'list_unsubscribe', list_unsubscribe))
    -- Nulls inside these are kept.
    || CASE WHEN headers IS NULL THEN '{}' ELSE jsonb_build_object('headers', headers) END
    || CASE WHEN attachments IS NULL THEN '{}' ELSE jsonb_build_object('attachments', attachments) END
    || CASE WHEN metadata IS NULL THEN '{}' ELSE jsonb_build_object('metadata', metadata) END,
    text, html, raw);
END $$;
REVOKE EXECUTE ON FUNCTION pillarbox._enqueue_next, pillarbox._check_list_unsubscribe, pillarbox._unsubscribe_headers FROM PUBLIC;
DO $$
DECLARE
  present pg_proc;
  privilege record;
BEGIN
  SELECT * INTO STRICT present FROM pg_proc WHERE oid = 'pillarbox.enqueue'::regproc;
  FOR privilege IN
    SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END AS role, is_grantable
    FROM aclexplode(present.proacl) WHERE grantee <> present.proowner
  LOOP
    EXECUTE format('GRANT EXECUTE ON FUNCTION pillarbox._enqueue_next TO %s', privilege.role)
      || CASE WHEN privilege.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END;
  END LOOP;
  IF pg_get_userbyid(present.proowner) <> current_user THEN
    EXECUTE format('ALTER FUNCTION pillarbox._enqueue_next OWNER TO %I', pg_get_userbyid(present.proowner));
  END IF;
  BEGIN
    EXECUTE format('DROP FUNCTION %s', present.oid::regprocedure);
  EXCEPTION WHEN dependent_objects_still_exist THEN
    -- Views, defaults of columns and SQL functions (BEGIN ATOMIC) of the application refer to the function itself, not to its
    -- name. They keep it under another name: as a second enqueue it would make calls with defaults ambiguous.
    EXECUTE format('ALTER FUNCTION %s RENAME TO _enqueue_0_1', present.oid::regprocedure);
    CREATE OR REPLACE FUNCTION pillarbox._enqueue_0_1(
      sender text DEFAULT NULL, "to" text[] DEFAULT NULL, subject text DEFAULT NULL, text text DEFAULT NULL,
      html text DEFAULT NULL, cc text[] DEFAULT NULL, bcc text[] DEFAULT NULL, reply_to text[] DEFAULT NULL,
      raw bytea DEFAULT NULL, headers jsonb DEFAULT NULL, attachments jsonb DEFAULT NULL, tenant text DEFAULT 'default',
      class text DEFAULT NULL, kind text DEFAULT NULL, priority text DEFAULT 'normal',
      send_at timestamptz DEFAULT NULL, expires_at timestamptz DEFAULT NULL, max_attempts integer DEFAULT NULL,
      idempotency_key text DEFAULT NULL, tags text[] DEFAULT NULL, metadata jsonb DEFAULT NULL
    ) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $former$
    BEGIN
      RETURN pillarbox.enqueue(sender, "to", subject, text, html, cc, bcc, reply_to, raw, headers, attachments, tenant, class,
        kind, priority, send_at, expires_at, max_attempts, idempotency_key, tags, metadata);
    END $former$;
  END;
  ALTER FUNCTION pillarbox._enqueue_next RENAME TO enqueue;
END $$;
