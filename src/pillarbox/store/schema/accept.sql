-- Accepting mails: `enqueue`, `enqueue_many` and the helpers that read a mail from JSON.

-- A new id: a UUID of version 7 (RFC 9562), so that ids are in the order of time. 48 bits of
-- milliseconds, the version, 12 bits of the fraction of a millisecond, then random bits.
DO $schema$
BEGIN
  IF current_setting('server_version_num')::int >= 180000 THEN  -- the server's own is faster
    CREATE OR REPLACE FUNCTION pillarbox._new_id() RETURNS uuid LANGUAGE sql VOLATILE AS 'SELECT uuidv7()';
  ELSE
    CREATE OR REPLACE FUNCTION pillarbox._new_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
      SELECT encode(overlay(uuid_send(gen_random_uuid())
        PLACING int8send(us / 1000 << 16 | 28672 | us % 1000 * 4096 / 1000) FROM 1 FOR 8), 'hex')::uuid
      FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) clock
    $$;
  END IF;
END $schema$;

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

-- Return the strings of a JSON array, or of one string; null for null.
CREATE OR REPLACE FUNCTION pillarbox._texts(list jsonb, field text) RETURNS text[] LANGUAGE plpgsql IMMUTABLE STRICT AS $$
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
CREATE OR REPLACE FUNCTION pillarbox._time(value text, field text) RETURNS timestamptz LANGUAGE plpgsql STABLE STRICT AS $$
BEGIN
  RETURN value::timestamptz;
EXCEPTION WHEN data_exception THEN
  PERFORM pillarbox._fail('PB400', 'bad_type', field, 'must be a time', 'write it as 2030-12-31T23:59:00Z');
END $$;

-- Read an integer from JSON; a number outside the range of integer becomes the nearest in it.
CREATE OR REPLACE FUNCTION pillarbox._whole(value jsonb, field text) RETURNS integer LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  IF jsonb_typeof(value) = 'null' THEN
    RETURN NULL;
  ELSIF jsonb_typeof(value) <> 'number' OR value::numeric <> trunc(value::numeric) THEN
    PERFORM pillarbox._fail('PB400', 'bad_type', field, 'must be a whole number');
  END IF;
  RETURN least(greatest(value::numeric, -2147483648), 2147483647);
END $$;

-- Read bytes from base64 in JSON.
CREATE OR REPLACE FUNCTION pillarbox._octets(value text, field text) RETURNS bytea LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  RETURN decode(value, 'base64');
EXCEPTION WHEN invalid_parameter_value THEN
  PERFORM pillarbox._fail('PB400', 'bad_type', field, 'must be base64');
END $$;

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
    AND e.key NOT IN ('to', 'cc', 'bcc', 'reply_to', 'tags', 'headers', 'attachments', 'metadata', 'max_attempts') LIMIT 1;
  IF FOUND THEN
    PERFORM pillarbox._fail('PB400', 'bad_type', key, 'must be a string');
  END IF;
END $$;

-- The fields that a mail in JSON may have.
CREATE OR REPLACE FUNCTION pillarbox._known_fields() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT '{sender,to,subject,text,html,cc,bcc,reply_to,raw,headers,attachments,tenant,class,kind,priority,send_at,expires_at,max_attempts,idempotency_key,tags,metadata}'::text[]
$$;

-- Note which of several mails is being checked, for _fail; null for none. (Not a SET clause of
-- the function, which needs a superuser for a custom setting. An error undoes it with the rest
-- of the transaction.)
CREATE OR REPLACE FUNCTION pillarbox._look_at(place bigint) RETURNS boolean LANGUAGE sql VOLATILE AS $$
  SELECT set_config('pillarbox.position', coalesce((place - 1)::text, ''), true) IS NOT NULL
$$;

-- Whether all mails in JSON are usual ones: objects of strings with a sender and one recipient.
CREATE OR REPLACE FUNCTION pillarbox._all_usual(mails jsonb) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN (SELECT bool_and(CASE WHEN jsonb_typeof(mail) = 'object' THEN mail ?& '{sender,to}'
      AND mail - '{sender,to,subject,text,html,tenant,class,priority}'::text[] = '{}'
      AND NOT jsonb_path_exists(mail, 'strict $.* ? (@.type() != "string")') ELSE false END)
    FROM jsonb_array_elements(mails) AS mail);
END $$;

-- enqueue for many usual mails: the same checks for each mail, then one statement for all.
CREATE OR REPLACE FUNCTION pillarbox._enqueue_usual(mails jsonb, texts text[], htmls text[]) RETURNS SETOF uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY WITH given AS (
    SELECT place, mail->>'sender' AS sender, mail->>'to' AS mailbox, coalesce(mail->>'subject', '') AS subject,
      coalesce(mail->>'text', text_beside) AS text, coalesce(mail->>'html', html_beside) AS html,
      coalesce(mail->>'tenant', 'default') AS tenant, mail->>'class' AS given_class,
      (array_position('{urgent,normal,bulk}', coalesce(mail->>'priority', 'normal')) - 1)::smallint AS lane
    FROM ROWS FROM (jsonb_array_elements(mails), unnest(texts), unnest(htmls)) WITH ORDINALITY
      AS beside(mail, text_beside, html_beside, place)
  ), named AS (
    SELECT given.*, t.id AS tenant_id, t.restricted, coalesce(given_class, t.default_class) AS class,
      EXISTS (SELECT FROM pillarbox.classes c WHERE c.name = coalesce(given_class, t.default_class)) AS known_class
    FROM given LEFT JOIN LATERAL (SELECT * FROM pillarbox.tenants WHERE name = tenant LIMIT 1) t ON true
    ORDER BY place  -- so that each gets its number in the order given
  ), mail AS MATERIALIZED (
    SELECT *, pillarbox._new_id() AS id, nextval('pillarbox.message_seq') AS seq, clock_timestamp() AS now,
      1024 + octet_length(subject) + coalesce(octet_length(text), 0) + coalesce(octet_length(html), 0) AS size,
      CASE WHEN pillarbox._look_at(place) THEN
        pillarbox._check_usual(tenant, tenant_id, class, known_class, lane, sender, mailbox, subject, text, html)
      END AS recipient,
      CASE WHEN restricted THEN pillarbox._check_tenant(tenant_id, sender, 1,
        1024 + octet_length(subject) + coalesce(octet_length(text), 0) + coalesce(octet_length(html), 0)) END
    FROM named
  ), message AS (
    INSERT INTO pillarbox.messages (id, tenant_id, size, lane, created_at, class, sender, "to", subject)
    SELECT id, tenant_id, size, lane, now, class, sender, ARRAY[mailbox], subject FROM mail
  ), content AS (
    INSERT INTO pillarbox.contents (message_id, text, html) SELECT id, text, html FROM mail
  ), delivery AS (
    INSERT INTO pillarbox.deliveries (message_id, seq, next_attempt_at, state, tenant_id, size, n, lane, role, recipient)
    SELECT id, seq, now, 'queued', tenant_id, size, 0, lane, 't', recipient FROM mail
  ) SELECT id FROM mail ORDER BY place;
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
    RETURN NEXT pillarbox.enqueue(
      sender => mail->>'sender', "to" => pillarbox._texts(mail->'to', 'to'), subject => mail->>'subject',
      text => coalesce(mail->>'text', text_beside), html => coalesce(mail->>'html', html_beside),
      cc => pillarbox._texts(mail->'cc', 'cc'), bcc => pillarbox._texts(mail->'bcc', 'bcc'),
      reply_to => pillarbox._texts(mail->'reply_to', 'reply_to'),
      raw => coalesce(pillarbox._octets(mail->>'raw', 'raw'), raw_beside),
      headers => nullif(mail->'headers', 'null'), attachments => nullif(mail->'attachments', 'null'),
      tenant => coalesce(mail->>'tenant', 'default'), class => mail->>'class',
      kind => mail->>'kind', priority => coalesce(mail->>'priority', 'normal'),
      send_at => pillarbox._time(mail->>'send_at', 'send_at'), expires_at => pillarbox._time(mail->>'expires_at', 'expires_at'),
      max_attempts => pillarbox._whole(mail->'max_attempts', 'max_attempts'), idempotency_key => mail->>'idempotency_key',
      tags => pillarbox._texts(mail->'tags', 'tags'), metadata => nullif(mail->'metadata', 'null'));
  END LOOP;
  PERFORM pillarbox._look_at(NULL);
END $$;
