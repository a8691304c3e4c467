-- One function stores mails (_store_mails) for all ways in, and one hash recognises a repeated request (_request_hash).
-- Copies of store/schema/accept*.sql.

DROP FUNCTION pillarbox._check_more(jsonb, jsonb, integer, text, text[], jsonb, integer, timestamptz, timestamptz, timestamptz, text);
DROP FUNCTION pillarbox._address_many(uuid, timestamptz, pillarbox.state, integer, integer, smallint, text[], text[], text[]);

-- Those of them that are lists of strings; in JSON one string counts as a list of one.
CREATE OR REPLACE FUNCTION pillarbox._list_fields() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT '{to,cc,bcc,reply_to,tags}'::text[]
$$;

-- The hash by which a repeated request is recognised: two requests with the same idempotency key are
-- the same if they have the same hash, whether they came by SQL or by HTTP. It begins with the number
-- of its version, 2; hashes of version 0.1.0 have 32 bytes and no number.
--
-- `fields` are the fields as given; nulls, empty lists, empty headers and the default priority count
-- as not given, one string counts as a list of one, and a time counts in any zone.
CREATE OR REPLACE FUNCTION pillarbox._request_hash(fields jsonb, text text, html text, raw bytea, attachments jsonb)
RETURNS bytea LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN '\x02' || sha256(convert_to(jsonb_build_array(
    (SELECT jsonb_object_agg(field.key, CASE
        WHEN field.key IN ('send_at', 'expires_at') THEN to_jsonb(extract(epoch FROM (field.value #>> '{}')::timestamptz))
        WHEN field.key = ANY (pillarbox._list_fields()) AND jsonb_typeof(field.value) = 'string'
          THEN jsonb_build_array(field.value)
        ELSE field.value END)
      FROM jsonb_each(fields) AS field
      WHERE field.key NOT IN ('tenant', 'idempotency_key', 'text', 'html', 'raw', 'attachments')
        AND field.value NOT IN ('null', '[]')
        AND (field.key, field.value) NOT IN (('headers', '{}'), ('priority', '"normal"'))),
    encode(sha256(convert_to(text, 'UTF8')), 'hex'), encode(sha256(convert_to(html, 'UTF8')), 'hex'),
    encode(sha256(raw), 'hex'),
    (SELECT jsonb_agg(jsonb_build_array(file->>'filename', coalesce(file->>'content_type', 'application/octet-stream'),
                                        file->>'content_id', encode(sha256(decode(file->>'content', 'base64')), 'hex'))
                      ORDER BY position)
      FROM jsonb_array_elements(attachments) WITH ORDINALITY AS given(file, position))
  )::text, 'UTF8'));
END $$;

-- The hash that version 0.1.0 stored for a request by SQL. Keys of that version are compared with it
-- until retention drops them.
CREATE OR REPLACE FUNCTION pillarbox._request_hash_1(
  sender text, "to" text[], cc text[], bcc text[], reply_to text[], subject text, text text, html text, raw bytea,
  headers jsonb, attachments jsonb, class text, kind text, priority text, send_at timestamptz, expires_at timestamptz,
  max_attempts integer, tags text[], metadata jsonb
) RETURNS bytea LANGUAGE sql STABLE AS $$
  SELECT sha256(convert_to(ROW(sender, nullif("to", '{}'), nullif(cc, '{}'), nullif(bcc, '{}'), nullif(reply_to, '{}'),
    subject, text, html, encode(sha256(raw), 'hex'), nullif(headers, '{}'), nullif(attachments, '[]'), class, kind, priority,
    extract(epoch FROM send_at), extract(epoch FROM expires_at), max_attempts, nullif(tags, '{}'), metadata)::text, 'UTF8'))
$$;

-- Store a batch of checked mails, one element of each array per mail; a null or shorter array
-- continues with nulls. The order of the arrays is the order of acceptance.
--
-- `mailboxes` (the field `to`) and `recipients` (bare addresses) hold one address, or an array
-- literal ({"a@b","c@d"}), since arrays cannot hold arrays of different lengths. `roles` has a
-- letter per recipient: t(o), c(c), b(cc). `fields` holds the other fields as enqueue_many takes
-- them; with an idempotency key it holds all fields but the bodies and attachments.
--
-- Returns a verdict per mail and the time. `queued` and `pending` mails were stored. `known_key`:
-- the key was used before, and nothing was stored. Any other verdict names the rule that the mail
-- breaks: the rules about the database's clock and tables are checked here, for all callers.
--
-- Arrays are unnested in SELECT lists, which passes elements on one by one; in FROM they would be
-- copied first. Keys are inserted in one order by all callers, so that two statements cannot
-- deadlock. `key_timeout` bounds the wait for a key that an open transaction of another session holds.
CREATE OR REPLACE FUNCTION pillarbox._store_mails(
  ids uuid[], tenant_ids integer[], sizes integer[], lanes smallint[], classes text[], senders text[], mailboxes text[],
  subjects text[], recipients text[], roles text[], texts text[], htmls text[], raws bytea[], attachments jsonb[],
  fields jsonb[], keys text[] DEFAULT NULL, key_timeout text DEFAULT NULL, OUT verdicts text[], OUT stored_at timestamptz
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
  stored_at := clock_timestamp();
  -- Most batches have nothing to check: every installation has these classes.
  IF classes <@ '{transactional,lifecycle,bulk}'
     AND (fields IS NULL OR (cardinality(ids) = 1 AND NOT fields[1] ?| '{send_at,expires_at,metadata}')) THEN
    verdicts := array_fill('queued'::text, ARRAY[cardinality(ids)]);
  ELSE
    SELECT array_agg(CASE
        WHEN class NOT IN (SELECT name FROM pillarbox.classes) THEN 'unknown_class'
        WHEN octet_length(fields->>'metadata') > 16384 THEN 'big_metadata'
        WHEN send_at > stored_at + interval '366 days' OR send_at = '-infinity' THEN 'late_send_at'
        WHEN expires_at <= greatest(stored_at, send_at) OR expires_at = 'infinity' THEN 'early_expires_at'
        WHEN send_at > stored_at THEN 'pending'
        ELSE 'queued' END)
      INTO verdicts
      FROM (
        SELECT class, fields, (fields->>'send_at')::timestamptz AS send_at, (fields->>'expires_at')::timestamptz AS expires_at
        FROM (SELECT unnest(classes) AS class, unnest(fields) AS fields) AS given
      ) AS timed;
  END IF;
  IF keys IS NOT NULL THEN
    PERFORM set_config('lock_timeout', key_timeout, true) WHERE key_timeout IS NOT NULL;
    WITH mail AS MATERIALIZED (
      SELECT id, tenant_id, key, verdict, key IS NOT NULL AND verdict IN ('queued', 'pending') AS takes_key,
        CASE WHEN key IS NOT NULL THEN pillarbox._request_hash(fields, text, html, raw, attachments) END AS request_hash
      FROM (SELECT unnest(ids) AS id, unnest(tenant_ids) AS tenant_id, unnest(keys) AS key, unnest(verdicts) AS verdict,
              unnest(fields) AS fields, unnest(texts) AS text, unnest(htmls) AS html, unnest(raws) AS raw,
              unnest(attachments) AS attachments) AS given
    ), fresh AS (
      INSERT INTO pillarbox.idempotency_keys (tenant_id, key, message_id, request_hash)
      SELECT tenant_id, key, id, request_hash FROM mail WHERE takes_key ORDER BY tenant_id, key
      ON CONFLICT DO NOTHING
      RETURNING message_id
    )
    SELECT array_agg(CASE WHEN takes_key AND id NOT IN (SELECT message_id FROM fresh) THEN 'known_key' ELSE verdict END)
      INTO verdicts FROM mail;
  END IF;
  INSERT INTO pillarbox.messages (id, tenant_id, size, lane, max_attempts, created_at, send_at, expires_at, class, kind,
                                  sender, "to", cc, reply_to, subject, headers, tags, metadata)
    SELECT id, tenant_id, size, lane, (fields->>'max_attempts')::smallint, stored_at, (fields->>'send_at')::timestamptz,
      (fields->>'expires_at')::timestamptz, class, fields->>'kind', sender,
      CASE WHEN starts_with(mailboxes, '{') THEN mailboxes::text[] ELSE ARRAY[mailboxes] END,
      pillarbox._texts(fields->'cc', 'cc'), pillarbox._texts(fields->'reply_to', 'reply_to'), subject,
      nullif(fields->'headers', 'null'), pillarbox._texts(fields->'tags', 'tags'), nullif(fields->'metadata', 'null')
    FROM (SELECT unnest(ids) AS id, unnest(tenant_ids) AS tenant_id, unnest(sizes) AS size, unnest(lanes) AS lane,
            unnest(classes) AS class, unnest(senders) AS sender, unnest(mailboxes) AS mailboxes,
            unnest(subjects) AS subject, unnest(fields) AS fields, unnest(verdicts) AS verdict) AS given
    WHERE verdict IN ('queued', 'pending');
  INSERT INTO pillarbox.contents (message_id, text, html, raw, attachments)
    SELECT id, text, html, raw, attachments
    FROM (SELECT unnest(ids) AS id, unnest(texts) AS text, unnest(htmls) AS html, unnest(raws) AS raw,
            unnest(attachments) AS attachments, unnest(verdicts) AS verdict) AS given
    WHERE verdict IN ('queued', 'pending');
  INSERT INTO pillarbox.deliveries (message_id, seq, next_attempt_at, state, tenant_id, size, n, lane, role, recipient)
    SELECT id, seq, CASE WHEN verdict = 'pending' THEN (fields->>'send_at')::timestamptz ELSE stored_at END,
      verdict::pillarbox.state, tenant_id, size, generate_series(0, length(roles) - 1), lane,
      unnest(string_to_array(roles, NULL))::"char",
      unnest(CASE WHEN starts_with(recipients, '{') THEN recipients::text[] ELSE ARRAY[recipients] END)
    FROM (
      SELECT *, nextval('pillarbox.message_seq') AS seq
      FROM (SELECT unnest(ids) AS id, unnest(tenant_ids) AS tenant_id, unnest(sizes) AS size, unnest(lanes) AS lane,
              unnest(roles) AS roles, unnest(recipients) AS recipients, unnest(fields) AS fields,
              unnest(verdicts) AS verdict) AS given
      WHERE verdict IN ('queued', 'pending')
      OFFSET 0
    ) AS numbered;
END $$;

-- Raise the error for a mail that _store_mails refused.
CREATE OR REPLACE FUNCTION pillarbox._fail_verdict(verdict text, class text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  CASE verdict
    WHEN 'big_metadata' THEN
      PERFORM pillarbox._fail('PB400', 'too_big', 'metadata', 'may have 16 KiB');
    WHEN 'late_send_at' THEN
      PERFORM pillarbox._fail('PB400', 'out_of_range', 'send_at', 'may lie one year ahead at most');
    WHEN 'early_expires_at' THEN
      PERFORM pillarbox._fail('PB400', 'out_of_range', 'expires_at', 'must lie in the future and after send_at',
                              'leave it out for a mail that does not expire');
    ELSE  -- the class was removed a moment ago
      PERFORM pillarbox._fail_name(NULL, 0, class, false);
  END CASE;
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
    PERFORM pillarbox._fail('PB400', 'bad_key', 'idempotency_key', 'must be 1 to 255 octets without control characters');
  END IF;
  RETURN attached;
END $$;

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

-- Accept one mail; return its id. Documented in docs/reference/sql.md.
CREATE OR REPLACE FUNCTION pillarbox.enqueue(
  sender text DEFAULT NULL, "to" text[] DEFAULT NULL, subject text DEFAULT NULL, text text DEFAULT NULL,
  html text DEFAULT NULL, cc text[] DEFAULT NULL, bcc text[] DEFAULT NULL, reply_to text[] DEFAULT NULL,
  raw bytea DEFAULT NULL, headers jsonb DEFAULT NULL, attachments jsonb DEFAULT NULL, tenant text DEFAULT 'default',
  class text DEFAULT NULL, kind text DEFAULT NULL, priority text DEFAULT 'normal',
  send_at timestamptz DEFAULT NULL, expires_at timestamptz DEFAULT NULL, max_attempts integer DEFAULT NULL,
  idempotency_key text DEFAULT NULL, tags text[] DEFAULT NULL, metadata jsonb DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
-- A hot path. Every expression and statement of PL/pgSQL costs again in each new transaction, so a plain mail runs only one
-- statement, which does nothing unless every rule is plainly kept. Calling _store_mails for it instead would cost a fifth
-- more CPU (ADR 0031). All other mails are checked closely, and stored by _store_mails.
DECLARE
  id uuid;
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
  RETURN pillarbox._accept(
    jsonb_strip_nulls(jsonb_build_object(
      'sender', sender, 'to', "to", 'subject', subject, 'cc', cc, 'bcc', bcc, 'reply_to', reply_to, 'tenant', tenant,
      'class', class, 'kind', kind, 'priority', priority, 'send_at', send_at, 'expires_at', expires_at,
      'max_attempts', max_attempts, 'idempotency_key', idempotency_key, 'tags', tags))
    -- Nulls inside these are kept.
    || CASE WHEN headers IS NULL THEN '{}' ELSE jsonb_build_object('headers', headers) END
    || CASE WHEN attachments IS NULL THEN '{}' ELSE jsonb_build_object('attachments', attachments) END
    || CASE WHEN metadata IS NULL THEN '{}' ELSE jsonb_build_object('metadata', metadata) END,
    text, html, raw);
END $$;

-- enqueue for many usual mails: each is checked, then one statement stores all.
CREATE OR REPLACE FUNCTION pillarbox._enqueue_usual(mails jsonb, texts text[], htmls text[]) RETURNS SETOF uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  batch record;
BEGIN
  SELECT array_agg(id) AS ids, array_agg(tenant_id) AS tenant_ids, array_agg(size) AS sizes, array_agg(lane) AS lanes,
      array_agg(class) AS classes, array_agg(sender) AS senders, array_agg(subject) AS subjects,
      array_agg(CASE WHEN starts_with(mailbox, '{') THEN ARRAY[mailbox]::text ELSE mailbox END) AS mailboxes,
      array_agg(CASE WHEN starts_with(recipient, '{') THEN ARRAY[recipient]::text ELSE recipient END) AS recipients,
      array_agg('t'::text) AS roles, count(mail->'text') + count(mail->'html') AS bodies_inside
    INTO batch
    FROM (
      SELECT *, pillarbox._new_id() AS id,
        CASE WHEN pillarbox._look_at(place) THEN
          pillarbox._check_usual(tenant, tenant_id, class, known_class, lane, sender, mailbox, subject, text, html)
        END AS recipient,
        CASE WHEN restricted THEN pillarbox._check_tenant(tenant_id, sender, 1, size) END
      FROM (
        SELECT given.*, t.id AS tenant_id, t.restricted, coalesce(given_class, t.default_class) AS class,
          EXISTS (SELECT FROM pillarbox.classes c WHERE c.name = coalesce(given_class, t.default_class)) AS known_class,
          1024 + octet_length(subject) + coalesce(octet_length(text), 0) + coalesce(octet_length(html), 0) AS size
        FROM (
          SELECT place, mail, mail->>'sender' AS sender, mail->>'to' AS mailbox, coalesce(mail->>'subject', '') AS subject,
            coalesce(mail->>'text', text_beside) AS text, coalesce(mail->>'html', html_beside) AS html,
            coalesce(mail->>'tenant', 'default') AS tenant, mail->>'class' AS given_class,
            (array_position('{urgent,normal,bulk}', coalesce(mail->>'priority', 'normal')) - 1)::smallint AS lane
          FROM ROWS FROM (jsonb_array_elements(mails), unnest(texts), unnest(htmls)) WITH ORDINALITY
            AS beside(mail, text_beside, html_beside, place)
        ) AS given LEFT JOIN LATERAL (SELECT * FROM pillarbox.tenants WHERE name = tenant LIMIT 1) t ON true
        ORDER BY place  -- so that the ids are in the order given
      ) AS named
      OFFSET 0
    ) AS checked;
  IF batch.bodies_inside > 0 THEN
    SELECT array_agg(coalesce(mail->>'text', text_beside) ORDER BY place),
        array_agg(coalesce(mail->>'html', html_beside) ORDER BY place)
      INTO texts, htmls
      FROM ROWS FROM (jsonb_array_elements(mails), unnest(texts), unnest(htmls)) WITH ORDINALITY
        AS beside(mail, text_beside, html_beside, place);
  END IF;
  PERFORM pillarbox._store_mails(batch.ids, batch.tenant_ids, batch.sizes, batch.lanes, batch.classes, batch.senders,
    batch.mailboxes, batch.subjects, batch.recipients, batch.roles, texts, htmls, NULL, NULL, NULL);
  RETURN QUERY SELECT unnest(batch.ids);
END $$;

-- Accept several mails in one call. Documented in docs/reference/sql.md.
CREATE OR REPLACE FUNCTION pillarbox.enqueue_many(
  mails jsonb, texts text[] DEFAULT NULL, htmls text[] DEFAULT NULL, raws bytea[] DEFAULT NULL
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
  ELSIF greatest(cardinality(texts), cardinality(htmls), cardinality(raws)) > jsonb_array_length(mails) THEN
    PERFORM pillarbox._fail('PB400', 'bad_type', 'mails', 'there are more bodies than mails');
  END IF;
  IF raws IS NULL AND pillarbox._all_usual(mails) THEN
    RETURN QUERY SELECT * FROM pillarbox._enqueue_usual(mails, texts, htmls);
    PERFORM pillarbox._look_at(NULL);
    RETURN;
  END IF;
  FOR mail, text_beside, html_beside, raw_beside, place IN
    SELECT * FROM ROWS FROM (jsonb_array_elements(mails), unnest(texts), unnest(htmls), unnest(raws)) WITH ORDINALITY
  LOOP
    shown := pillarbox._look_at(place);
    -- An object of strings, of known names, needs no closer look.
    IF jsonb_typeof(mail) <> 'object' OR mail - pillarbox._known_fields() <> '{}'
       OR jsonb_path_exists(mail, 'strict $.* ? (@.type() != "string")') THEN
      PERFORM pillarbox._check_object(mail);
    END IF;
    RETURN NEXT pillarbox._accept(
      (mail - '{text,html,raw}'::text[]) || jsonb_build_object('tenant', coalesce(mail->>'tenant', 'default'),
                                                               'priority', coalesce(mail->>'priority', 'normal')),
      coalesce(mail->>'text', text_beside), coalesce(mail->>'html', html_beside),
      coalesce(pillarbox._octets(mail->>'raw', 'raw'), raw_beside));
  END LOOP;
  PERFORM pillarbox._look_at(NULL);
END $$;

REVOKE EXECUTE ON FUNCTION pillarbox._list_fields, pillarbox._request_hash, pillarbox._request_hash_1, pillarbox._store_mails, pillarbox._fail_verdict, pillarbox._check_more, pillarbox._accept FROM PUBLIC;
