-- Storing mails: `_store_mails`, the only function that writes batches, and the hash of a request.

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
-- copied first. All callers insert keys in the same order, so that two statements cannot deadlock.
-- `key_timeout` limits the wait for a key that an open transaction of another session holds.
CREATE OR REPLACE FUNCTION pillarbox._store_mails(
  ids uuid[],
  tenant_ids integer[],
  sizes integer[],
  lanes smallint[],
  classes text[],
  senders text[],
  mailboxes text[],
  subjects text[],
  recipients text[],
  roles text[],
  texts text[],
  htmls text[],
  raws bytea[],
  attachments jsonb[],
  fields jsonb[],
  keys text[] DEFAULT NULL,
  key_timeout text DEFAULT NULL,
  OUT verdicts text[],
  OUT stored_at timestamptz
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
  stored_at := clock_timestamp();
  -- Most batches have nothing to check: every installation has these classes.
  IF classes <@ '{transactional,lifecycle,bulk}' AND (
    fields IS NULL
    OR (cardinality(ids) = 1 AND NOT fields[1] ?| '{send_at,expires_at,metadata}')
  ) THEN
    verdicts := array_fill('queued'::text, ARRAY[cardinality(ids)]);
  ELSE
    SELECT array_agg(CASE
        WHEN class NOT IN (SELECT name FROM pillarbox.classes) THEN 'unknown_class'
        WHEN octet_length(fields->>'metadata') > 16384 THEN 'big_metadata'
        WHEN send_at > stored_at + interval '366 days' OR send_at = '-infinity'
          THEN 'late_send_at'
        WHEN expires_at <= greatest(stored_at, send_at) OR expires_at = 'infinity'
          THEN 'early_expires_at'
        WHEN send_at > stored_at THEN 'pending'
        ELSE 'queued' END)
      INTO verdicts
      FROM (
        SELECT class, fields,
          (fields->>'send_at')::timestamptz AS send_at,
          (fields->>'expires_at')::timestamptz AS expires_at
        FROM (SELECT unnest(classes) AS class, unnest(fields) AS fields) AS given
      ) AS timed;
  END IF;
  IF keys IS NOT NULL THEN
    PERFORM set_config('lock_timeout', key_timeout, true) WHERE key_timeout IS NOT NULL;
    WITH mail AS MATERIALIZED (
      SELECT id, tenant_id, key, verdict,
        key IS NOT NULL AND verdict IN ('queued', 'pending') AS takes_key,
        CASE WHEN key IS NOT NULL THEN
          pillarbox._request_hash(fields, text, html, raw, attachments)
        END AS request_hash
      FROM (
        SELECT unnest(ids) AS id,
          unnest(tenant_ids) AS tenant_id,
          unnest(keys) AS key,
          unnest(verdicts) AS verdict,
          unnest(fields) AS fields,
          unnest(texts) AS text,
          unnest(htmls) AS html,
          unnest(raws) AS raw,
          unnest(attachments) AS attachments
      ) AS given
    ), fresh AS (
      INSERT INTO pillarbox.idempotency_keys (tenant_id, key, message_id, request_hash)
      SELECT tenant_id, key, id, request_hash
      FROM mail
      WHERE takes_key
      ORDER BY tenant_id, key
      ON CONFLICT DO NOTHING
      RETURNING message_id
    )
    SELECT array_agg(CASE
        WHEN takes_key AND id NOT IN (SELECT message_id FROM fresh) THEN 'known_key'
        ELSE verdict END)
      INTO verdicts
      FROM mail;
  END IF;
  INSERT INTO pillarbox.messages (
      id, tenant_id, size, lane, max_attempts, created_at, send_at, expires_at, class, kind, sender,
      "to", cc, reply_to, subject, headers, tags, metadata)
    SELECT id, tenant_id, size, lane,
      (fields->>'max_attempts')::smallint,
      stored_at,
      (fields->>'send_at')::timestamptz,
      (fields->>'expires_at')::timestamptz,
      class,
      fields->>'kind',
      sender,
      CASE WHEN starts_with(mailboxes, '{') THEN mailboxes::text[] ELSE ARRAY[mailboxes] END,
      pillarbox._texts(fields->'cc', 'cc'),
      pillarbox._texts(fields->'reply_to', 'reply_to'),
      subject,
      pillarbox._stored_headers(fields),
      pillarbox._texts(fields->'tags', 'tags'),
      nullif(fields->'metadata', 'null')
    FROM (
      SELECT unnest(ids) AS id,
        unnest(tenant_ids) AS tenant_id,
        unnest(sizes) AS size,
        unnest(lanes) AS lane,
        unnest(classes) AS class,
        unnest(senders) AS sender,
        unnest(mailboxes) AS mailboxes,
        unnest(subjects) AS subject,
        unnest(fields) AS fields,
        unnest(verdicts) AS verdict
    ) AS given
    WHERE verdict IN ('queued', 'pending');
  INSERT INTO pillarbox.contents (message_id, text, html, raw, attachments)
    SELECT id, text, html, raw, attachments
    FROM (
      SELECT unnest(ids) AS id,
        unnest(texts) AS text,
        unnest(htmls) AS html,
        unnest(raws) AS raw,
        unnest(attachments) AS attachments,
        unnest(verdicts) AS verdict
    ) AS given
    WHERE verdict IN ('queued', 'pending');
  -- One row per recipient: generate_series and the two unnest calls advance together.
  INSERT INTO pillarbox.deliveries (
      message_id, seq, next_attempt_at, state, tenant_id, size, n, lane, role, recipient)
    SELECT id, seq,
      CASE WHEN verdict = 'pending' THEN (fields->>'send_at')::timestamptz ELSE stored_at END,
      verdict::pillarbox.state,
      tenant_id,
      size,
      generate_series(0, length(roles) - 1),
      lane,
      unnest(string_to_array(roles, NULL))::"char",
      unnest(CASE WHEN starts_with(recipients, '{') THEN recipients::text[]
                  ELSE ARRAY[recipients] END)
    FROM (
      SELECT *, nextval('pillarbox.message_seq') AS seq
      FROM (
        SELECT unnest(ids) AS id,
          unnest(tenant_ids) AS tenant_id,
          unnest(sizes) AS size,
          unnest(lanes) AS lane,
          unnest(roles) AS roles,
          unnest(recipients) AS recipients,
          unnest(fields) AS fields,
          unnest(verdicts) AS verdict
      ) AS given
      WHERE verdict IN ('queued', 'pending')
      OFFSET 0  -- keeps PostgreSQL from merging the subqueries: one number per mail
    ) AS numbered;
END $$;

-- The hash by which a repeated request is recognised: two requests with the same idempotency key
-- are the same if they have the same hash, whether they came by SQL or by HTTP. It begins with the
-- number of its version, 2; hashes of version 0.1.0 have 32 bytes and no number.
--
-- `fields` are the fields as given; nulls, empty lists, empty headers and the default priority
-- count as not given, one string counts as a list of one, and a time counts in any zone.
CREATE OR REPLACE FUNCTION pillarbox._request_hash(
  fields jsonb, text text, html text, raw bytea, attachments jsonb
) RETURNS bytea LANGUAGE plpgsql STABLE AS $$
BEGIN
  -- The SHA-256 of a JSON array of five: fields, hashes of text, html and raw, and attachments.
  RETURN '\x02' || sha256(convert_to(jsonb_build_array(
    (SELECT jsonb_object_agg(field.key, CASE
        WHEN field.key IN ('send_at', 'expires_at')
          THEN to_jsonb(extract(epoch FROM (field.value #>> '{}')::timestamptz))
        WHEN field.key = ANY (pillarbox._list_fields()) AND jsonb_typeof(field.value) = 'string'
          THEN jsonb_build_array(field.value)
        ELSE field.value END)
      FROM jsonb_each(fields) AS field
      WHERE field.key NOT IN ('tenant', 'idempotency_key', 'text', 'html', 'raw', 'attachments')
        AND field.value NOT IN ('null', '[]')
        AND (field.key, field.value) NOT IN (('headers', '{}'), ('priority', '"normal"'))),
    encode(sha256(convert_to(text, 'UTF8')), 'hex'),
    encode(sha256(convert_to(html, 'UTF8')), 'hex'),
    encode(sha256(raw), 'hex'),
    (SELECT jsonb_agg(
        jsonb_build_array(
          file->>'filename',
          coalesce(file->>'content_type', 'application/octet-stream'),
          file->>'content_id',
          encode(sha256(decode(file->>'content', 'base64')), 'hex'))
        ORDER BY position)
      FROM jsonb_array_elements(attachments) WITH ORDINALITY AS given(file, position))
  )::text, 'UTF8'));
END $$;

-- The hash that version 0.1.0 stored for a request by SQL. Keys of that version are compared with
-- it until retention drops them.
CREATE OR REPLACE FUNCTION pillarbox._request_hash_1(
  sender text, "to" text[], cc text[], bcc text[], reply_to text[], subject text, text text,
  html text, raw bytea, headers jsonb, attachments jsonb, class text, kind text, priority text,
  send_at timestamptz, expires_at timestamptz, max_attempts integer, tags text[], metadata jsonb
) RETURNS bytea LANGUAGE sql STABLE AS $$
  SELECT sha256(convert_to(ROW(
    sender, nullif("to", '{}'), nullif(cc, '{}'), nullif(bcc, '{}'), nullif(reply_to, '{}'),
    subject, text, html, encode(sha256(raw), 'hex'), nullif(headers, '{}'),
    nullif(attachments, '[]'), class, kind, priority, extract(epoch FROM send_at),
    extract(epoch FROM expires_at), max_attempts, nullif(tags, '{}'), metadata)::text, 'UTF8'))
$$;
