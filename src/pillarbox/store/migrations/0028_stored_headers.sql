-- Header fields can be made of other fields of a mail. Copies of store/schema/accept*.sql.

-- The header fields that are stored of a mail: those given, and those that other fields make.
CREATE OR REPLACE FUNCTION pillarbox._stored_headers(fields jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT nullif(fields->'headers', 'null')
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
      pillarbox._stored_headers(fields), pillarbox._texts(fields->'tags', 'tags'), nullif(fields->'metadata', 'null')
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

REVOKE EXECUTE ON FUNCTION pillarbox._stored_headers FROM PUBLIC;
