-- Failed logins of all processes, counted for a minute each: by keyed hashes of addresses and names, never in clear.
--
-- Unlogged: losing the counts in a crash forgives a minute's failures, and guessing costs no WAL.

CREATE UNLOGGED TABLE pillarbox.auth_failures (
  place     bytea PRIMARY KEY CHECK (octet_length(place) = 16),  -- HMAC of an address, or of an address and a name
  began_at  timestamptz NOT NULL DEFAULT now(),                  -- the first of them
  failures  integer NOT NULL CHECK (failures > 0)
);
CREATE INDEX auth_failures_began ON pillarbox.auth_failures (began_at);  -- for retention

REVOKE ALL ON pillarbox.auth_failures FROM PUBLIC;
