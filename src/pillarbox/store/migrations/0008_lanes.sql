-- Lanes: a tenant's queue at one priority. One worker at a time dispatches a lane whose order matters (ADR 0012), and what
-- tenants and providers may send in a time is counted here.

CREATE TABLE pillarbox.lanes (
  tenant_id   integer NOT NULL,
  lane        smallint NOT NULL,  -- 0 urgent, 1 normal, 2 bulk
  worker      bigint,             -- who dispatches it, for as long as that worker's lease lasts
  message_id  uuid,               -- of a strict lane: the message to be settled before the next begins
  order_mode  text NOT NULL,      -- these two are the tenant's, kept here for whoever looks at very many lanes
  limited     boolean NOT NULL,   -- whether a rate limit holds
  PRIMARY KEY (tenant_id, lane)
) WITH (fillfactor = 50);

ALTER TABLE pillarbox.workers ADD COLUMN aside boolean NOT NULL DEFAULT false;  -- has no room, and takes no lanes

-- How far each limit is used up: the time until which what has left was allowed for.
CREATE TABLE pillarbox.rates (
  kind       "char" NOT NULL,     -- t(enant), p(rovider)
  id         integer NOT NULL,
  second_at  timestamptz NOT NULL DEFAULT '-infinity',
  hour_at    timestamptz NOT NULL DEFAULT '-infinity',
  day_at     timestamptz NOT NULL DEFAULT '-infinity',
  PRIMARY KEY (kind, id)
) WITH (fillfactor = 50);

ALTER TABLE pillarbox.providers
  ADD COLUMN rate_per_second  integer CHECK (rate_per_second > 0),
  ADD COLUMN rate_per_hour    integer CHECK (rate_per_hour > 0),
  ADD COLUMN rate_per_day     integer CHECK (rate_per_day > 0);

-- How much of one limit was used up says nothing about another: a changed one begins anew, and a raised one helps at once.
CREATE FUNCTION pillarbox._changed_rates(of "char", one integer, old jsonb, new jsonb) RETURNS void LANGUAGE sql AS $$
  UPDATE pillarbox.rates
  SET second_at = CASE WHEN old->'rate_per_second' = new->'rate_per_second' THEN second_at ELSE '-infinity' END,
      hour_at = CASE WHEN old->'rate_per_hour' = new->'rate_per_hour' THEN hour_at ELSE '-infinity' END,
      day_at = CASE WHEN old->'rate_per_day' = new->'rate_per_day' THEN day_at ELSE '-infinity' END
  WHERE kind = of AND id = one AND (old->'rate_per_second', old->'rate_per_hour', old->'rate_per_day')
    IS DISTINCT FROM (new->'rate_per_second', new->'rate_per_hour', new->'rate_per_day')
$$;

CREATE FUNCTION pillarbox._open_lanes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  -- Locks what was used up before the lanes, as a claim does.
  INSERT INTO pillarbox.rates (kind, id) VALUES ('t', NEW.id) ON CONFLICT DO NOTHING;
  PERFORM pillarbox._changed_rates('t', NEW.id, to_jsonb(OLD), to_jsonb(NEW));
  INSERT INTO pillarbox.lanes (tenant_id, lane, order_mode, limited)
    SELECT NEW.id, lane, NEW.order_mode, num_nonnulls(NEW.rate_per_second, NEW.rate_per_hour, NEW.rate_per_day) > 0
    FROM generate_series(0, 2) AS lane
  ON CONFLICT (tenant_id, lane) DO UPDATE SET order_mode = EXCLUDED.order_mode, limited = EXCLUDED.limited;
  RETURN NULL;
END $$;
CREATE TRIGGER open_lanes
  AFTER INSERT OR UPDATE OF order_mode, rate_per_second, rate_per_hour, rate_per_day ON pillarbox.tenants
  FOR EACH ROW EXECUTE FUNCTION pillarbox._open_lanes();
UPDATE pillarbox.tenants SET order_mode = order_mode;

CREATE FUNCTION pillarbox._open_rate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO pillarbox.rates (kind, id) VALUES ('p', NEW.id) ON CONFLICT DO NOTHING;
  PERFORM pillarbox._changed_rates('p', NEW.id, to_jsonb(OLD), to_jsonb(NEW));
  RETURN NULL;
END $$;
CREATE TRIGGER open_rate AFTER INSERT OR UPDATE OF rate_per_second, rate_per_hour, rate_per_day ON pillarbox.providers
  FOR EACH ROW EXECUTE FUNCTION pillarbox._open_rate();
INSERT INTO pillarbox.rates (kind, id) SELECT 'p', id FROM pillarbox.providers;

-- What waits, lane by lane: fresh mails in the order of acceptance, deferred ones as they fall due.
CREATE INDEX deliveries_ready ON pillarbox.deliveries (tenant_id, lane, seq, n) WHERE state = 'queued' AND attempts = 0;
CREATE INDEX deliveries_deferred ON pillarbox.deliveries (tenant_id, lane, next_attempt_at)
  WHERE state = 'queued' AND attempts > 0;
DROP INDEX pillarbox.deliveries_fresh;

-- How many more may leave now under a limit of so many in so many seconds; null without a limit. A tenth of the limit,
-- and at least one, may leave in one go; the rest follows evenly, so that no moment sees more than the limit and a tenth.
CREATE FUNCTION pillarbox._allowance(used_until timestamptz, most integer, seconds integer, at timestamptz)
RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT floor(greatest(1, most / 10) + 0.001
    - greatest(0, extract(epoch FROM nullif(used_until, '-infinity') - at)::float8) * most / seconds)::integer
$$;

-- The time until which a limit is used up once so many more have left.
CREATE FUNCTION pillarbox._used(used_until timestamptz, most integer, seconds integer, at timestamptz, left_now bigint)
RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN most IS NULL THEN used_until
              ELSE greatest(used_until, at) + left_now * interval '1 second' * seconds / most END
$$;

-- Seconds until one more may leave under a limit; null when it may now.
CREATE FUNCTION pillarbox._wait(used_until timestamptz, most integer, seconds integer, at timestamptz)
RETURNS float8 LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN wait > 0.001 THEN wait END
  FROM (SELECT extract(epoch FROM nullif(used_until, '-infinity') - at)::float8
          - (greatest(1, most / 10) - 1) * seconds::float8 / most AS wait) AS one
$$;

REVOKE EXECUTE ON FUNCTION pillarbox._open_lanes, pillarbox._open_rate, pillarbox._changed_rates, pillarbox._allowance, pillarbox._used,
  pillarbox._wait FROM PUBLIC;
REVOKE ALL ON pillarbox.lanes, pillarbox.rates FROM PUBLIC;
