-- name: lock_address
-- Let whoever asks for the same address ($2, hashed) in the same realm ($1) wait until this transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended($1 || encode($2::bytea, 'hex'), 5077))

-- name: lock_addresses
-- As lock_address, for several addresses ($2, hashed), in one order for everybody, so that two who lock do not wait for
-- each other.
SELECT pg_advisory_xact_lock(k.key)
FROM (SELECT DISTINCT hashtextextended($1 || encode(a.asked, 'hex'), 5077) AS key FROM unnest($2::bytea[]) AS a(asked)
      ORDER BY 1) AS k

-- name: paused
-- Which of the addresses ($2, hashed) in a realm ($1) get no new challenge yet: those that `recent` finds one for.
SELECT a.asked FROM unnest($2::bytea[]) AS a(asked)
JOIN LATERAL (
  SELECT used_at, created_at FROM pillarbox.challenges WHERE realm = $1 AND asked = a.asked
  ORDER BY created_at DESC LIMIT 1
) AS newest ON true
WHERE newest.used_at IS NULL AND newest.created_at > now() - greatest($3::interval, (
  SELECT $5::interval FROM pillarbox.challenges c
  WHERE c.realm = $1 AND c.asked = a.asked AND c.created_at > now() - interval '1 day'
  HAVING sum(c.tries - (c.used_at IS NOT NULL)::int) >= $4))

-- name: recent
-- The newest challenge for an address ($2, hashed) in a realm ($1), if it was not used and is younger than the pause ($3):
-- whoever asks again gets that one. The pause is $5 at least where codes were wrong $4 times within a day.
SELECT id, greatest(extract(epoch FROM expires_at - now()), 0)::float8 AS seconds
FROM (
  SELECT * FROM pillarbox.challenges WHERE realm = $1 AND asked = $2 ORDER BY created_at DESC LIMIT 1
) AS newest
WHERE used_at IS NULL AND created_at > now() - greatest($3::interval, (
  SELECT $5::interval FROM pillarbox.challenges
  WHERE realm = $1 AND asked = $2 AND created_at > now() - interval '1 day'
  HAVING sum(tries - (used_at IS NOT NULL)::int) >= $4))

-- name: void_older
-- Void the unused challenges for addresses ($2, hashed) and of subjects ($3) in a realm ($1); gives the
-- mails that carry their codes.
UPDATE pillarbox.challenges SET void = true
WHERE realm = $1 AND (asked = ANY ($2::bytea[]) OR subject = ANY ($3::int8[])) AND used_at IS NULL AND NOT void
RETURNING message_id

-- name: add_challenges
-- Add challenges in a realm ($1), each with the time that it lasts.
INSERT INTO pillarbox.challenges (realm, id, subject, token, asked, code_hash, expires_at)
SELECT $1, c.id, c.subject, c.token, c.asked, c.code_hash, now() + c.lifetime
FROM unnest($2::uuid[], $3::int8[], $4::int8[], $5::bytea[], $6::bytea[], $7::interval[])
  AS c(id, subject, token, asked, code_hash, lifetime)

-- name: mailed
-- Note which mails ($2) carry the codes of challenges ($1).
UPDATE pillarbox.challenges c SET message_id = m.message_id
FROM unnest($1::uuid[], $2::uuid[]) AS m(id, message_id) WHERE c.id = m.id

-- name: find_by_token
-- The challenge that a token ($2) asked for, in a realm ($1).
SELECT id FROM pillarbox.challenges WHERE realm = $1 AND token = $2 ORDER BY created_at DESC LIMIT 1

-- name: find_by_subject
-- The newest challenge of a subject ($2), in a realm ($1), that may be in force.
SELECT id FROM pillarbox.challenges WHERE realm = $1 AND subject = $2 AND used_at IS NULL AND NOT void
ORDER BY created_at DESC LIMIT 1

-- name: try_code
-- Give a code for a challenge ($1) of a realm ($2), as its hashes ($3; without any it only counts as a try). A right one
-- uses the challenge up; the last wrong one of $4 voids it. No row when it is not in force. Guesses that come at once wait
-- for each other's row, so that they have no more tries than one after the other. Comparing hashes tells nothing by the time
-- it takes: nobody without the key makes one that is nearly right.
UPDATE pillarbox.challenges
SET tries = tries + 1,
  used_at = CASE WHEN code_hash = ANY ($3::bytea[]) AND subject IS NOT NULL THEN now() END,
  void = tries + 1 >= $4 AND NOT (code_hash = ANY ($3::bytea[]) AND subject IS NOT NULL)
WHERE id = $1 AND realm = $2 AND used_at IS NULL AND NOT void AND expires_at > now()
RETURNING subject, used_at IS NOT NULL AS used, void, created_at, asked

-- name: use_challenge
-- Use a challenge ($1) up whose subject proved itself otherwise; no row when it was used before.
UPDATE pillarbox.challenges SET used_at = now() WHERE id = $1 AND used_at IS NULL RETURNING id

-- name: challenge
-- What became of a challenge ($1) of a realm ($2).
SELECT used_at IS NOT NULL AS used, void, expires_at <= now() AS expired
FROM pillarbox.challenges WHERE id = $1 AND realm = $2

-- name: purge_challenges
-- Delete up to $1 challenges that ran out a day ago: so long their tries count.
DELETE FROM pillarbox.challenges WHERE id = ANY (ARRAY(
  SELECT * FROM (SELECT id FROM pillarbox.challenges WHERE expires_at < now() - interval '1 day'
                 ORDER BY expires_at LIMIT $1) old LIMIT 10000))
