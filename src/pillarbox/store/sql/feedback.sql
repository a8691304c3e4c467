-- name: apply_feedback
-- Store and apply a batch of feedback; see `pillarbox._hear` in store/schema/feedback.sql.
SELECT place, message_id, n, is_new
FROM pillarbox._hear(:provider_ids::int4[], :event_ids::text[], :tenant_ids::int4[],
  :message_ids::uuid[], :recipient_numbers::int2[], :recipients::text[], :other_spellings::text[],
  :kinds::text[], :times::timestamptz[],
                     :hard::bool[], :reasons::text[], :data::text[], :raw::text[],
                     :provider_message_ids::text[], :suppress_for::interval)

-- name: catch_up
-- Apply feedback that waited for an attempt to be settled; returns how much. Feedback of a
-- provider that did not get the mail is deleted.
WITH ready AS MATERIALIZED (SELECT * FROM (
  SELECT f.id, f.provider_id = 0 OR EXISTS (
      SELECT FROM pillarbox.attempts a
      WHERE a.message_id = f.message_id AND a.n = f.n
        AND (a.provider_id = f.provider_id OR a.provider_id IS NULL)
        AND starts_with(f.provider_message_id, a.provider_message_id) IS NOT FALSE) AS due
  FROM pillarbox.feedback f JOIN pillarbox.deliveries d ON d.message_id = f.message_id AND d.n = f.n
  WHERE f.waiting AND d.state <> 'processing' ORDER BY f.id LIMIT :limit
    FOR UPDATE OF f SKIP LOCKED) locked LIMIT 500
), dropped AS (
  DELETE FROM pillarbox.feedback f USING ready r WHERE f.id = r.id AND NOT r.due
)
SELECT cardinality(ids) AS count, pillarbox._apply_feedback(ids, :suppress_for::interval)
FROM (SELECT array_agg(id) AS ids FROM ready WHERE due) one WHERE ids IS NOT NULL

-- name: use_tokens
-- Use replay tokens; returns, in the order given, the digest that each was first used with. Null:
-- another process is using it.
WITH asked AS MATERIALIZED (
  SELECT * FROM unnest(:provider_ids::int4[], :tokens::text[], :digests::bytea[],
    :expiry_times::timestamptz[]) WITH ORDINALITY
    AS t(provider_id, token, digest, expires_at, place)
), used AS (
  INSERT INTO pillarbox.feedback_tokens (provider_id, token, digest, expires_at)
  SELECT DISTINCT ON (provider_id, token) provider_id, token, digest, expires_at FROM asked
    ORDER BY provider_id, token, place
  ON CONFLICT DO NOTHING RETURNING provider_id, token, digest
)
SELECT a.place, coalesce(u.digest, k.digest) AS digest
FROM asked a
LEFT JOIN used u ON u.provider_id = a.provider_id AND u.token = a.token
LEFT JOIN pillarbox.feedback_tokens k ON k.provider_id = a.provider_id AND k.token = a.token
ORDER BY a.place

-- name: purge_tokens
-- Delete up to :limit tokens whose requests are refused by their age anyway.
DELETE FROM pillarbox.feedback_tokens WHERE ctid = ANY (ARRAY(
  SELECT * FROM (SELECT ctid FROM pillarbox.feedback_tokens
    WHERE expires_at < now() LIMIT :limit) old LIMIT 10000))
