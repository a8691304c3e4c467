-- Triggers of `accounts`: status, activation tokens, changes of the address.

-- An account that is inserted as active counts as activated.
CREATE OR REPLACE FUNCTION {schema}.trg_before_account_insert() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NEW.status = 'active' AND NEW.activated_at IS NULL THEN
    NEW.activated_at := NEW.created_at;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER before_account_insert BEFORE INSERT ON {schema}.accounts
  FOR EACH ROW EXECUTE FUNCTION {schema}.trg_before_account_insert();

-- Issue the activation token of a provisioned account in the same transaction. An AFTER trigger:
-- with INSERT ... ON CONFLICT, only then is it known that the row was inserted.
CREATE OR REPLACE FUNCTION {schema}.trg_after_account_insert() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO {schema}.tokens (account, action) VALUES (NEW.id, 'activation');
  RETURN NULL;
END $$;
CREATE TRIGGER after_account_insert AFTER INSERT ON {schema}.accounts
  FOR EACH ROW WHEN (NEW.status = 'provisioned')
  EXECUTE FUNCTION {schema}.trg_after_account_insert();

-- Record the times of status changes. A suspended account that was never activated becomes
-- provisioned again.
CREATE OR REPLACE FUNCTION {schema}.trg_before_account_status_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ts bigint := extract(epoch FROM now());
BEGIN
  IF NEW.status = OLD.status THEN
    RETURN NEW;
  END IF;
  NEW.status_changed_at := ts;
  IF NEW.status = 'active' AND OLD.status = 'provisioned' THEN
    NEW.activated_at := ts;
  ELSIF NEW.status = 'active' AND OLD.status = 'suspended' THEN
    NEW.unsuspended_at := ts;
    NEW.suspended_at := NULL;
    IF OLD.activated_at IS NULL THEN -- never activated
      NEW.status := 'provisioned';
    END IF;
  ELSIF NEW.status = 'suspended' THEN
    NEW.suspended_at := ts;
    NEW.unsuspended_at := NULL;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER before_account_status_change BEFORE UPDATE OF status ON {schema}.accounts
  FOR EACH ROW EXECUTE FUNCTION {schema}.trg_before_account_status_change();

-- Release tokens that waited for another status. Waits for rows that a collector has locked: it
-- may be about to hold them because of the old status.
CREATE OR REPLACE FUNCTION {schema}.trg_after_account_status_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE {schema}.waiting SET held = NULL, held_until = NULL
  WHERE token = ANY (ARRAY(SELECT t.id FROM {schema}.tokens t
    WHERE t.account = NEW.id AND t.consumed_at IS NULL
                           AND t.expires_at > extract(epoch FROM now())))
    AND held IS DISTINCT FROM 'rendering';
  IF FOUND THEN
    NOTIFY token_insert;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER after_account_status_change AFTER UPDATE OF status ON {schema}.accounts
  FOR EACH ROW WHEN (NEW.status <> OLD.status)
  EXECUTE FUNCTION {schema}.trg_after_account_status_change();

-- Void links that were sent to the old address: reading that mailbox proves nothing about the
-- new one. Waiting tokens go to the new address; waits for a collector that has locked some with
-- the old one.
CREATE OR REPLACE FUNCTION {schema}.trg_after_account_email_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ts bigint := floor(extract(epoch FROM now()));
  open_tokens bigint[] := ARRAY(SELECT t.id FROM {schema}.tokens t
                                WHERE t.account = NEW.id AND t.consumed_at IS NULL
                                  AND t.expires_at > ts);
BEGIN
  PERFORM FROM {schema}.waiting WHERE token = ANY (open_tokens) ORDER BY token FOR UPDATE;
  UPDATE {schema}.tokens SET expires_at = ts
  WHERE id IN (SELECT c.token FROM {schema}.collected c WHERE c.token = ANY (open_tokens));
  RETURN NULL;
END $$;
CREATE TRIGGER after_account_email_change AFTER UPDATE OF email ON {schema}.accounts
  FOR EACH ROW WHEN (lower(NEW.email) <> lower(OLD.email))
  EXECUTE FUNCTION {schema}.trg_after_account_email_change();
