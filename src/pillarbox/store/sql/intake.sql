-- name: accept
-- Store a batch of checked mails; returns a verdict for each and the time, in seconds since 1970.
-- The arguments are the columns of MailRow in their order; they have numbers because the caller
-- passes the transposed rows as they are. If another transaction holds an idempotency key, the
-- statement waits one second: an application that keeps its transaction open must not block others.
SELECT verdicts, extract(epoch FROM stored_at)::float8 AS now
FROM pillarbox._store_mails(
  ids => $1, tenant_ids => $2, sizes => $3, lanes => $4, classes => $5, senders => $6,
  mailboxes => $7, subjects => $8, recipients => $9, roles => $10, texts => $11, htmls => $12,
  raws => $13, attachments => $14::text[]::jsonb[], fields => $15::text[]::jsonb[], keys => $16,
  key_timeout => '1s')

-- name: known_keys
-- For each mail, in order: the mail that was accepted under its idempotency key, whether it was
-- scheduled for later, whether it was the same request, and the hash if version 0.1.0 stored it.
SELECT k.message_id,
  coalesce(m.send_at > m.created_at, false) AS is_scheduled,
  k.request_hash = pillarbox._request_hash(
    given.fields::jsonb, given.text, given.html, given.raw, given.attachments::jsonb) AS is_same,
  CASE WHEN octet_length(k.request_hash) = 32 THEN k.request_hash END AS hash_of_0_1_0
FROM unnest(
  :tenant_ids::int4[], :keys::text[], :fields::text[], :texts::text[], :htmls::text[],
  :raws::bytea[], :attachments::text[]
) WITH ORDINALITY AS given(tenant_id, key, fields, text, html, raw, attachments, position)
LEFT JOIN pillarbox.idempotency_keys k ON k.tenant_id = given.tenant_id AND k.key = given.key
LEFT JOIN pillarbox.messages m ON m.id = k.message_id
ORDER BY position

-- name: clock
-- The database's time, in seconds since 1970.
SELECT extract(epoch FROM clock_timestamp())::float8
