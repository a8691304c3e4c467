-- Signing in by a code in a mail: challenges, and Pillarbox's own administrators with what gets them in.

-- One row for each code asked for, by somebody who has an account or not: nobody shall learn which.
CREATE TABLE pillarbox.challenges (
  id          uuid PRIMARY KEY,
  realm       text NOT NULL,                              -- 'admin', or 'accounts:' and the schema of the accounts
  subject     bigint,                                     -- the administrator or account; null: nobody has this address
  token       bigint,                                     -- the token that asked for it, if one did
  asked       bytea NOT NULL,                             -- keyed hash of the address that was given
  code_hash   bytea NOT NULL,                             -- keyed hash of the id and the code
  message_id  uuid,                                       -- the mail that carries the code
  tries       smallint NOT NULL DEFAULT 0,                -- how often a code was given
  created_at  timestamptz NOT NULL DEFAULT now(),
  expires_at  timestamptz NOT NULL,
  used_at     timestamptz,
  void        boolean NOT NULL DEFAULT false              -- tried too often, or a newer one took its place
);
CREATE INDEX challenges_asked ON pillarbox.challenges (realm, asked, created_at);
CREATE INDEX challenges_subject ON pillarbox.challenges (realm, subject) WHERE used_at IS NULL AND NOT void;
CREATE INDEX challenges_token ON pillarbox.challenges (realm, token) WHERE token IS NOT NULL;
CREATE INDEX challenges_expires ON pillarbox.challenges (expires_at);  -- for retention

CREATE TABLE pillarbox.admins (
  id                   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  email                text NOT NULL CHECK (length(email) <= 320),
  name                 text CHECK (length(name) BETWEEN 1 AND 200),
  password             text NOT NULL,                     -- Argon2id, with its salt and parameters
  created_at           timestamptz NOT NULL DEFAULT now(),
  disabled_at          timestamptz,
  password_changed_at  timestamptz NOT NULL DEFAULT now(),
  last_login_at        timestamptz
);
CREATE UNIQUE INDEX admins_email ON pillarbox.admins (lower(email));

-- Made by us, of 80 random bits: one SHA-256 is enough, as for keys.
CREATE TABLE pillarbox.admin_recovery_codes (
  admin    bigint NOT NULL REFERENCES pillarbox.admins (id),
  hash     bytea NOT NULL CHECK (octet_length(hash) = 32),
  used_at  timestamptz,
  PRIMARY KEY (admin, hash)
);

CREATE TABLE pillarbox.admin_sessions (
  id          bytea PRIMARY KEY CHECK (octet_length(id) = 32),  -- SHA-256 of the session's secret
  admin       bigint NOT NULL REFERENCES pillarbox.admins (id),
  created_at  timestamptz NOT NULL DEFAULT now(),
  expires_at  timestamptz NOT NULL,
  ended_at    timestamptz                                 -- logged out, or ended with the password or the administrator
);
CREATE INDEX admin_sessions_admin ON pillarbox.admin_sessions (admin) WHERE ended_at IS NULL;
CREATE INDEX admin_sessions_expires ON pillarbox.admin_sessions (expires_at);  -- for retention

REVOKE ALL ON pillarbox.challenges, pillarbox.admins, pillarbox.admin_recovery_codes, pillarbox.admin_sessions FROM PUBLIC;
