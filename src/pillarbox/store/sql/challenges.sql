-- name: lock_address
-- Let whoever asks for the same address (:address_hash, hashed) in the same realm (:realm) wait
-- until this transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended(:realm || encode(:address_hash::bytea, 'hex'), 5077))

-- name: lock_addresses
-- As lock_address, for several addresses (:address_hashes, hashed), in one order for everybody, so
-- that two who lock do not wait for each other.
SELECT pg_advisory_xact_lock(k.key)
FROM (SELECT DISTINCT hashtextextended(:realm || encode(a.asked, 'hex'), 5077) AS key
  FROM unnest(:address_hashes::bytea[]) AS a(asked)
      ORDER BY 1) AS k

-- name: paused
-- Which of the addresses (:address_hashes, hashed) in a realm (:realm) get no new challenge yet:
-- those that `recent` finds one for.
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
-- The newest challenge for an address (:address_hash, hashed) in a realm (:realm), if it was not
-- used and is younger than the pause (:pause): whoever asks again gets that one. The pause is
-- :longer_pause at least where codes were wrong :wrong_codes times within a day.
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
-- Void the unused challenges for addresses (:address_hashes, hashed) and of subjects (:subjects)
-- in a realm (:realm); gives the mails that carry their codes.
UPDATE pillarbox.challenges SET void = true
WHERE realm = :realm AND (asked = ANY (:address_hashes::bytea[])
  OR subject = ANY (:subjects::int8[])) AND used_at IS NULL AND NOT void
RETURNING message_id

-- name: add_challenges
-- Add challenges in a realm (:realm), each with the time that it lasts.
INSERT INTO pillarbox.challenges (realm, id, subject, token, asked, code_hash, expires_at)
SELECT :realm, c.id, c.subject, c.token, c.asked, c.code_hash, now() + c.lifetime
FROM unnest(:ids::uuid[], :subjects::int8[], :tokens::int8[], :address_hashes::bytea[],
  :code_hashes::bytea[], :lifetimes::interval[])
  AS c(id, subject, token, asked, code_hash, lifetime)

-- name: mailed
-- Note which mails (:message_ids) carry the codes of challenges (:ids).
UPDATE pillarbox.challenges c SET message_id = m.message_id
FROM unnest(:ids::uuid[], :message_ids::uuid[]) AS m(id, message_id) WHERE c.id = m.id

-- name: find_by_token
-- The challenge that a token (:token) asked for, in a realm (:realm).
SELECT id FROM pillarbox.challenges WHERE realm = :realm AND token = :token
  ORDER BY created_at DESC LIMIT 1

-- name: find_by_subject
-- The newest challenge of a subject (:subject), in a realm (:realm), that may be in force.
SELECT id FROM pillarbox.challenges WHERE realm = :realm AND subject = :subject AND used_at IS NULL
  AND NOT void
ORDER BY created_at DESC LIMIT 1

-- name: try_code
-- Give a code for a challenge (:id) of a realm (:realm), as its hashes (:code_hashes; without any
-- it only counts as a try). A right one uses the challenge up; the last wrong one of :max_tries
-- voids it. No row when it is not in force. Guesses that come at once wait for each other's row,
-- so that they have no more tries than one after the other. Comparing hashes tells nothing by the
-- time it takes: nobody without the key makes one that is nearly right.
UPDATE pillarbox.challenges
SET tries = tries + 1,
  used_at = CASE WHEN code_hash = ANY (:code_hashes::bytea[])
    AND subject IS NOT NULL THEN now() END,
  void = tries + 1 >= :max_tries AND NOT (code_hash = ANY (:code_hashes::bytea[])
    AND subject IS NOT NULL)
WHERE id = :id AND realm = :realm AND used_at IS NULL AND NOT void AND expires_at > now()
RETURNING subject, used_at IS NOT NULL AS used, void, created_at, asked

-- name: use_challenge
-- Use a challenge (:id) up whose subject proved itself otherwise; no row when it was used before.
UPDATE pillarbox.challenges SET used_at = now() WHERE id = :id AND used_at IS NULL RETURNING id

-- name: challenge
-- What became of a challenge (:id) of a realm (:realm).
SELECT used_at IS NOT NULL AS used, void, expires_at <= now() AS expired
FROM pillarbox.challenges WHERE id = :id AND realm = :realm

-- name: purge_challenges
-- Delete up to :limit challenges that ran out a day ago: so long their tries count.
DELETE FROM pillarbox.challenges WHERE id = ANY (ARRAY(
  SELECT * FROM (SELECT id FROM pillarbox.challenges WHERE expires_at < now() - interval '1 day'
                 ORDER BY expires_at LIMIT :limit) old LIMIT 10000))
