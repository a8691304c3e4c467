-- The scope `metrics`: a key of no tenant that reads the metrics of the installation, and may do nothing else.
--
-- The table is small and is read for each request: the checks are validated in the moment that they are added.

ALTER TABLE pillarbox.api_keys
  DROP CONSTRAINT api_keys_scopes_check,
  ADD CONSTRAINT api_keys_scopes_check
    CHECK (cardinality(scopes) > 0 AND scopes <@ '{send,read,manage,admin,metrics}'),
  DROP CONSTRAINT api_keys_check,
  ADD CONSTRAINT api_keys_check CHECK ((tenant_id IS NULL) = (scopes && '{admin,metrics}'));
