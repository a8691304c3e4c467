-- Which key made a key or login: it can then never outlive or exceed that key, and is revoked with it.

-- A key that was made before this migration has no parent on record, nor has one of the command line. `made_by` tells them apart:
-- null is not known, from before; 'key', 'session' (an administrator's), 'development' (the keyless API), 'command'.
ALTER TABLE pillarbox.api_keys
  ADD COLUMN parent_id integer REFERENCES pillarbox.api_keys (id),
  ADD COLUMN made_by   text;
ALTER TABLE pillarbox.smtp_logins
  ADD COLUMN parent_id integer REFERENCES pillarbox.api_keys (id),
  ADD COLUMN made_by   text;
