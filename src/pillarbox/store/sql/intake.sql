-- name: accept
-- Store a batch of checked mails, as `pillarbox.enqueue` stores one; one element of each array for each mail. Lists and
-- JSON come as text in an array, for arrays cannot hold arrays of different lengths. Answers with a verdict for each mail,
-- in order, and with the time: queued and pending mails were stored; a known_key was used before, so nothing was; all
-- other verdicts name what is wrong. Only what the database alone can know is checked here.
--
-- Arrays are taken apart in SELECT lists, which hands elements on one by one; in FROM they would be copied first. The order
-- of the arrays is the order of acceptance. Keys are taken in one order by everybody, and not waited for long: who holds one
-- in an open transaction shall not hold up the others. An array that is shorter than the first goes on with nulls.
WITH mail AS MATERIALIZED (
  SELECT *, CASE
      WHEN class NOT IN (SELECT name FROM pillarbox.classes) THEN 'unknown_class'
      WHEN octet_length(metadata::text) > 16384 THEN 'big_metadata'
      WHEN send_at > now + interval '366 days' THEN 'late_send_at'
      WHEN expires_at <= greatest(now, send_at) THEN 'early_expires_at'
    END AS fault
  FROM (
    SELECT *, nextval('pillarbox.message_seq') AS seq, clock_timestamp() AS now
    FROM (
      SELECT generate_subscripts($1::uuid[], 1) AS place, unnest($1::uuid[]) AS id, unnest($2::int4[]) AS tenant_id,
        unnest($3::int4[]) AS size, unnest($4::int2[]) AS lane, unnest($5::int2[]) AS max_attempts,
        unnest($6::timestamptz[]) AS send_at, unnest($7::timestamptz[]) AS expires_at, unnest($8::text[]) AS class,
        unnest($9::text[]) AS kind, unnest($10::text[]) AS sender, unnest($11::text[])::text[] AS "to",
        unnest($12::text[])::text[] AS cc, unnest($13::text[])::text[] AS reply_to, unnest($14::text[]) AS subject,
        unnest($15::text[])::jsonb AS headers, unnest($16::text[])::text[] AS tags, unnest($17::text[])::jsonb AS metadata,
        unnest($18::text[])::text[] AS recipients, unnest($19::text[]) AS roles, unnest($20::text[]) AS key,
        unnest($21::bytea[]) AS request_hash
      ORDER BY place
    ) AS given
    OFFSET 0
  ) AS numbered
), fresh AS (
  INSERT INTO pillarbox.idempotency_keys (tenant_id, key, message_id, request_hash)
  SELECT tenant_id, key, id, request_hash
  FROM mail, (SELECT set_config('lock_timeout', '1s', true) AS is_set OFFSET 0) AS patience
  WHERE key IS NOT NULL AND fault IS NULL AND is_set IS NOT NULL
  ORDER BY tenant_id, key
  ON CONFLICT DO NOTHING
  RETURNING message_id
), stored AS NOT MATERIALIZED (
  SELECT * FROM mail WHERE fault IS NULL AND (key IS NULL OR id IN (SELECT message_id FROM fresh))
), message AS (
  INSERT INTO pillarbox.messages (id, tenant_id, size, lane, max_attempts, created_at, send_at, expires_at, class, kind, sender,
                                  "to", cc, reply_to, subject, headers, tags, metadata)
  SELECT id, tenant_id, size, lane, max_attempts, now, send_at, expires_at, class, kind, sender, "to", cc, reply_to, subject,
    headers, tags, metadata
  FROM stored
), content AS (
  INSERT INTO pillarbox.contents (message_id, text, html, raw, attachments)
  SELECT id, text, html, raw, attachments::jsonb
  FROM (SELECT unnest($1::uuid[]) AS id, unnest($22::text[]) AS text, unnest($23::text[]) AS html,
          unnest($24::bytea[]) AS raw, unnest($25::text[]) AS attachments) AS given
  WHERE (id IN (SELECT id FROM stored)) IS TRUE  -- so written it is a look-up: a join would gather all bodies first
), delivery AS (
  INSERT INTO pillarbox.deliveries (message_id, seq, next_attempt_at, state, tenant_id, size, n, lane, role, recipient)
  SELECT id, seq, greatest(now, send_at), CASE WHEN send_at > now THEN 'pending' ELSE 'queued' END::pillarbox.state,
    tenant_id, size, generate_series(0, length(roles) - 1), lane, unnest(string_to_array(roles, NULL))::"char",
    unnest(recipients)
  FROM stored
)
SELECT extract(epoch FROM max(now))::float8 AS now, array_agg(
    CASE WHEN fault IS NOT NULL THEN fault
      WHEN key IS NOT NULL AND id NOT IN (SELECT message_id FROM fresh) THEN 'known_key'
      WHEN send_at > now THEN 'pending' ELSE 'queued' END
    ORDER BY place) AS verdicts
FROM mail

-- name: known_keys
-- What was accepted under these keys of tenants, and whether it was scheduled for later.
SELECT k.tenant_id, k.key, k.message_id, k.request_hash, coalesce(m.send_at > m.created_at, false) AS scheduled
FROM unnest($1::int4[], $2::text[]) AS asked(tenant_id, key)
JOIN pillarbox.idempotency_keys k ON k.tenant_id = asked.tenant_id AND k.key = asked.key
LEFT JOIN pillarbox.messages m ON m.id = k.message_id

-- name: clock
-- The database's time, in seconds since 1970.
SELECT extract(epoch FROM clock_timestamp())::float8
