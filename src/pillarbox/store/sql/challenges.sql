-- name: lock_address
-- Lock an address (hashed) in a realm until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended(:realm || encode(:address_hash::bytea, 'hex'), 5077))

-- name: lock_addresses
-- As lock_address, for several addresses; always in the same order, to avoid deadlocks.
SELECT pg_advisory_xact_lock(k.key)
FROM (SELECT DISTINCT hashtextextended(:realm || encode(a.asked, 'hex'), 5077) AS key
  FROM unnest(:address_hashes::bytea[]) AS a(asked)
      ORDER BY 1) AS k

-- name: paused
-- The addresses for which `recent` finds a challenge.
SELECT a.asked FROM unnest(:address_hashes::bytea[]) AS a(asked)
JOIN LATERAL (
  SELECT used_at, created_at FROM pillarbox.challenges WHERE realm = :realm AND asked = a.asked
  ORDER BY created_at DESC LIMIT 1
) AS newest ON true
WHERE newest.used_at IS NULL AND newest.created_at > now() - greatest(:pause::interval, (
  SELECT :longer_pause::interval FROM pillarbox.challenges c
  WHERE c.realm = :realm AND c.asked = a.asked AND c.created_at > now() - interval '1 day'
  HAVING sum(c.tries - (c.used_at IS NOT NULL)::int) >= :wrong_codes))

-- name: recent
-- The newest challenge of an address, if it is unused and younger than the pause: a repeated
-- request gets that one. After :wrong_codes wrong codes within a day the pause is at least
-- :longer_pause.
SELECT id, greatest(extract(epoch FROM expires_at - now()), 0)::float8 AS seconds
FROM (
  SELECT * FROM pillarbox.challenges WHERE realm = :realm AND asked = :address_hash
    ORDER BY created_at DESC LIMIT 1
) AS newest
WHERE used_at IS NULL AND created_at > now() - greatest(:pause::interval, (
  SELECT :longer_pause::interval FROM pillarbox.challenges
  WHERE realm = :realm AND asked = :address_hash AND created_at > now() - interval '1 day'
  HAVING sum(tries - (used_at IS NOT NULL)::int) >= :wrong_codes))

-- name: void_older
-- Void the unused challenges of these addresses and subjects; returns the mails with their codes.
UPDATE pillarbox.challenges SET void = true
WHERE realm = :realm AND (asked = ANY (:address_hashes::bytea[])
  OR subject = ANY (:subjects::int8[])) AND used_at IS NULL AND NOT void
RETURNING message_id

-- name: add_challenges
-- Add challenges, each with its lifetime.
INSERT INTO pillarbox.challenges (realm, id, subject, token, asked, code_hash, expires_at)
SELECT :realm, c.id, c.subject, c.token, c.asked, c.code_hash, now() + c.lifetime
FROM unnest(:ids::uuid[], :subjects::int8[], :tokens::int8[], :address_hashes::bytea[],
  :code_hashes::bytea[], :lifetimes::interval[])
  AS c(id, subject, token, asked, code_hash, lifetime)

-- name: mailed
-- Record which messages carry the codes of which challenges.
UPDATE pillarbox.challenges c SET message_id = m.message_id
FROM unnest(:ids::uuid[], :message_ids::uuid[]) AS m(id, message_id) WHERE c.id = m.id

-- name: find_by_token
-- The challenge of a token.
SELECT id FROM pillarbox.challenges WHERE realm = :realm AND token = :token
  ORDER BY created_at DESC LIMIT 1

-- name: find_by_subject
-- The newest challenge of a subject that is neither used nor void.
SELECT id FROM pillarbox.challenges WHERE realm = :realm AND subject = :subject AND used_at IS NULL
  AND NOT void
ORDER BY created_at DESC LIMIT 1

-- name: try_code
-- Try a code, given as its hashes (none: only count the try). A right code uses the challenge; the
-- last of :max_tries wrong ones voids it. No row if the challenge is not valid. Concurrent tries
-- wait for the row, so they get no more tries than consecutive ones. Comparing hashes reveals
-- nothing by its duration: a nearly right hash cannot be made without the key.
UPDATE pillarbox.challenges
SET tries = tries + 1,
  used_at = CASE WHEN code_hash = ANY (:code_hashes::bytea[])
    AND subject IS NOT NULL THEN now() END,
  void = tries + 1 >= :max_tries AND NOT (code_hash = ANY (:code_hashes::bytea[])
    AND subject IS NOT NULL)
WHERE id = :id AND realm = :realm AND used_at IS NULL AND NOT void AND expires_at > now()
RETURNING subject, used_at IS NOT NULL AS used, void, created_at, asked

-- name: use_challenge
-- Use a challenge whose subject was verified otherwise; no row if it was used before.
UPDATE pillarbox.challenges SET used_at = now() WHERE id = :id AND used_at IS NULL RETURNING id

-- name: challenge
-- The state of a challenge.
SELECT used_at IS NOT NULL AS used, void, expires_at <= now() AS expired
FROM pillarbox.challenges WHERE id = :id AND realm = :realm

-- name: purge_challenges
-- Delete up to :limit challenges that expired a day ago: until then their tries count.
DELETE FROM pillarbox.challenges WHERE id = ANY (ARRAY(
  SELECT * FROM (SELECT id FROM pillarbox.challenges WHERE expires_at < now() - interval '1 day'
                 ORDER BY expires_at LIMIT :limit) old LIMIT 10000))
