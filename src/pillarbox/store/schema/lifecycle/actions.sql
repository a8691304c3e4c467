-- Triggers of `actions`: each action is a value of the enum token_action.

-- Add a new action to the enum token_action; it can be used once this transaction has committed.
CREATE OR REPLACE FUNCTION {schema}.trg_before_action_insert() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  NEW.number := coalesce(NEW.number, (SELECT max(number) + 1 FROM {schema}.actions));
  NEW.template := coalesce(NEW.template, NEW.name);
  IF NOT EXISTS (SELECT FROM pg_enum WHERE enumtypid = '{schema}.token_action'::regtype
    AND enumlabel = NEW.name) THEN
    EXECUTE format('ALTER TYPE {schema}.token_action ADD VALUE IF NOT EXISTS %L', NEW.name);
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER before_action_insert BEFORE INSERT ON {schema}.actions
  FOR EACH ROW EXECUTE FUNCTION {schema}.trg_before_action_insert();

-- Refuse to remove or rename an action: PostgreSQL cannot remove a value of an enum, and tokens
-- may have it.
CREATE OR REPLACE FUNCTION {schema}.trg_before_action_removed() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'action % cannot be renamed or removed', OLD.name USING ERRCODE = 'PB409',
    HINT = 'set eligible = ''{}'' so that no mail leaves for it';
END $$;
CREATE TRIGGER before_action_removed BEFORE DELETE ON {schema}.actions
  FOR EACH ROW EXECUTE FUNCTION {schema}.trg_before_action_removed();
CREATE TRIGGER before_action_renamed BEFORE UPDATE OF name ON {schema}.actions
  FOR EACH ROW WHEN (NEW.name <> OLD.name) EXECUTE FUNCTION {schema}.trg_before_action_removed();
