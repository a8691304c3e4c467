-- name: add_admin
-- Add an administrator; no row when the address is taken.
INSERT INTO pillarbox.admins (email, name, password) VALUES (:email, :name, :password)
ON CONFLICT (lower(email)) DO NOTHING
RETURNING id, email, name, created_at, disabled_at, password_changed_at, last_login_at

-- name: list_admins
-- All administrators, with the numbers of open sessions and unused recovery codes.
SELECT a.id, a.email, a.name, a.created_at, a.disabled_at, a.password_changed_at, a.last_login_at,
  (SELECT count(*) FROM pillarbox.admin_sessions s
   WHERE s.admin = a.id AND s.ended_at IS NULL AND s.expires_at > now()) AS sessions,
  (SELECT count(*) FROM pillarbox.admin_recovery_codes c
    WHERE c.admin = a.id AND c.used_at IS NULL) AS recovery_codes
FROM pillarbox.admins a ORDER BY a.id

-- name: find_admin
-- The administrator with this address, ignoring case.
SELECT id, email, name, created_at, disabled_at, password_changed_at, last_login_at
FROM pillarbox.admins WHERE lower(email) = lower(:email)

-- name: password
-- The administrator with this address, and the stored hash of the password.
SELECT id, email, name, password, disabled_at IS NOT NULL AS disabled FROM pillarbox.admins
  WHERE lower(email) = lower(:email)

-- name: lock_admin
-- Lock an administrator until the transaction ends, so that disabling them or changing the
-- password waits. No row if they are disabled, have another password hash (null: any), or changed
-- it after :unchanged_since (null: at any time).
SELECT id, email, name FROM pillarbox.admins
WHERE id = :id AND disabled_at IS NULL AND (:password::text IS NULL OR password = :password)
  AND (:unchanged_since::timestamptz IS NULL OR password_changed_at <= :unchanged_since)
FOR NO KEY UPDATE

-- name: change_password
-- Store another password hash.
UPDATE pillarbox.admins SET password = :password, password_changed_at = clock_timestamp()
  WHERE id = :id

-- name: disable_admin
-- Disable an administrator.
UPDATE pillarbox.admins SET disabled_at = coalesce(disabled_at, clock_timestamp()) WHERE id = :id

-- name: enable_admin
-- Enable an administrator.
UPDATE pillarbox.admins SET disabled_at = NULL WHERE id = :id

-- name: end_sessions
-- End all sessions of an administrator.
UPDATE pillarbox.admin_sessions SET ended_at = now() WHERE admin = :admin_id AND ended_at IS NULL

-- name: end_session
-- End one session.
UPDATE pillarbox.admin_sessions SET ended_at = now() WHERE id = :session_id AND ended_at IS NULL

-- name: add_session
-- Start a session, and record the login.
WITH came AS (UPDATE pillarbox.admins SET last_login_at = now() WHERE id = :admin_id)
INSERT INTO pillarbox.admin_sessions (id, admin, expires_at)
  VALUES (:session_id, :admin_id, now() + :lifetime::interval)
RETURNING expires_at

-- name: find_sessions
-- The valid sessions among these, of enabled administrators.
SELECT s.id, s.admin, coalesce(a.name, 'administrator ' || a.id) AS name
FROM pillarbox.admin_sessions s JOIN pillarbox.admins a ON a.id = s.admin
WHERE s.id = ANY (:ids::bytea[]) AND s.ended_at IS NULL AND s.expires_at > now()
  AND a.disabled_at IS NULL

-- name: drop_recovery_codes
-- Delete all recovery codes of an administrator.
DELETE FROM pillarbox.admin_recovery_codes WHERE admin = :admin_id

-- name: add_recovery_codes
-- Store the hashes of new recovery codes.
INSERT INTO pillarbox.admin_recovery_codes (admin, hash) SELECT :admin_id, unnest(:hashes::bytea[])

-- name: use_recovery_code
-- Use a recovery code; no row if it does not exist or was used.
UPDATE pillarbox.admin_recovery_codes SET used_at = now()
  WHERE admin = :admin_id AND hash = :hash AND used_at IS NULL RETURNING admin

-- name: purge_sessions
-- Delete up to :limit sessions that expired a day ago.
DELETE FROM pillarbox.admin_sessions WHERE id = ANY (ARRAY(
  SELECT * FROM (SELECT id FROM pillarbox.admin_sessions WHERE expires_at < now() - interval '1 day'
                 ORDER BY expires_at LIMIT :limit) old LIMIT 10000))
