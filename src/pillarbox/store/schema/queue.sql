-- Lanes, rate limits, provider budgets, the wake-up hint and the availability of the database.
-- The statements that claim and settle are in store/sql/queue.sql.

-- Send the wake-up hint. The trigger is deferred: the hint is decided at COMMIT, so that an open
-- transaction cannot suppress the hints of others. At most one hint in ten milliseconds, since
-- NOTIFY serialises commits. The time of the last one is a sequence, because sequences ignore
-- transactions and snapshots. Workers look again after a hint, which covers mails whose hint was
-- suppressed.
CREATE OR REPLACE FUNCTION pillarbox._wake() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  -- Runs at every commit: one expression, no query. (For the same reason the trigger has no WHEN
  -- clause, which PostgreSQL would parse again for each statement.)
  IF floor(date_part('epoch', clock_timestamp()) * 1000)
     - coalesce(pg_sequence_last_value('pillarbox.wake_clock'), 0)
     NOT BETWEEN 0 AND 9 AND (NEW.send_at IS NULL OR NEW.send_at <= NEW.created_at) THEN
    PERFORM setval('pillarbox.wake_clock',
      floor(date_part('epoch', clock_timestamp()) * 1000)::bigint),
      pg_notify('pillarbox_wake', '');
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER wake AFTER INSERT ON pillarbox.messages DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION pillarbox._wake();

-- Reset what was used of each rate limit that was changed: a raised limit helps at once.
CREATE OR REPLACE FUNCTION pillarbox._changed_rates(of "char", one integer, old jsonb, new jsonb)
  RETURNS void LANGUAGE sql AS $$
  UPDATE pillarbox.rates
  SET second_at = CASE WHEN old->'rate_per_second' = new->'rate_per_second' THEN second_at
    ELSE '-infinity' END,
      hour_at = CASE WHEN old->'rate_per_hour' = new->'rate_per_hour' THEN hour_at
        ELSE '-infinity' END,
      day_at = CASE WHEN old->'rate_per_day' = new->'rate_per_day' THEN day_at ELSE '-infinity' END
  WHERE kind = of AND id = one AND (old->'rate_per_second', old->'rate_per_hour',
    old->'rate_per_day')
    IS DISTINCT FROM (new->'rate_per_second', new->'rate_per_hour', new->'rate_per_day')
$$;

-- Keep the lanes and the rate row of a tenant in step with its settings.
CREATE OR REPLACE FUNCTION pillarbox._open_lanes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  -- Locks the rate row before the lanes, in the order of a claim.
  INSERT INTO pillarbox.rates (kind, id) VALUES ('t', NEW.id) ON CONFLICT DO NOTHING;
  PERFORM pillarbox._changed_rates('t', NEW.id, to_jsonb(OLD), to_jsonb(NEW));
  INSERT INTO pillarbox.lanes (tenant_id, lane, order_mode, limited)
    SELECT NEW.id, lane, NEW.order_mode,
      num_nonnulls(NEW.rate_per_second, NEW.rate_per_hour, NEW.rate_per_day) > 0
    FROM generate_series(0, 2) AS lane
  ON CONFLICT (tenant_id, lane) DO UPDATE SET order_mode = EXCLUDED.order_mode,
  limited = EXCLUDED.limited;
  RETURN NULL;
END $$;
CREATE TRIGGER open_lanes
  AFTER INSERT OR UPDATE OF order_mode, rate_per_second, rate_per_hour, rate_per_day
    ON pillarbox.tenants
  FOR EACH ROW EXECUTE FUNCTION pillarbox._open_lanes();

-- Keep the rate row of a provider in step with its limits.
CREATE OR REPLACE FUNCTION pillarbox._open_rate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO pillarbox.rates (kind, id) VALUES ('p', NEW.id) ON CONFLICT DO NOTHING;
  PERFORM pillarbox._changed_rates('p', NEW.id, to_jsonb(OLD), to_jsonb(NEW));
  RETURN NULL;
END $$;
CREATE TRIGGER open_rate AFTER INSERT OR UPDATE OF rate_per_second, rate_per_hour, rate_per_day
  ON pillarbox.providers
  FOR EACH ROW EXECUTE FUNCTION pillarbox._open_rate();

-- How many more mails may leave now under a limit of `most` mails in `seconds`; null without a
-- limit. A tenth of the limit, and at least one mail, may leave at once; the rest follows
-- evenly. So no period sees more than the limit and a tenth.
CREATE OR REPLACE FUNCTION pillarbox._allowance(used_until timestamptz, most integer,
  seconds integer, at timestamptz)
RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT floor(greatest(1, most / 10) + 0.001
    - greatest(0, extract(epoch FROM nullif(used_until,
    '-infinity') - at)::float8) * most / seconds)::integer
$$;

-- The time until which a limit is used up after `left_now` more mails have left.
CREATE OR REPLACE FUNCTION pillarbox._used(used_until timestamptz, most integer, seconds integer,
  at timestamptz, left_now bigint)
RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN most IS NULL THEN used_until
              ELSE greatest(used_until, at) + left_now * interval '1 second' * seconds / most END
$$;

-- Seconds until one more mail may leave under a limit; null if it may leave now.
CREATE OR REPLACE FUNCTION pillarbox._wait(used_until timestamptz, most integer, seconds integer,
  at timestamptz)
RETURNS float8 LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN wait > 0.001 THEN wait END
  FROM (SELECT extract(epoch FROM nullif(used_until, '-infinity') - at)::float8
          - (greatest(1, most / 10) - 1) * seconds::float8 / most AS wait) AS one
$$;

-- Ask for permission to send mails through provider `of`: one array element per mail, with its
-- lane and its number of recipients. Rates count mails; the budget counts recipients, as
-- providers bill them. For each mail: the seconds to wait and what holds it back; 0 if it may
-- leave now, which is then counted.
CREATE OR REPLACE FUNCTION pillarbox._spend(of integer, lanes smallint[], recipients integer[])
RETURNS TABLE (wait float8, why text) LANGUAGE plpgsql AS $$
DECLARE
  p pillarbox.providers;
  r pillarbox.rates;
  at timestamptz := clock_timestamp();
  this_month date := date_trunc('month', at AT TIME ZONE 'UTC');
  spent bigint := 0;
  reserve float8;
  kept float8;
BEGIN
  SELECT * INTO p FROM pillarbox.providers WHERE id = of;
  SELECT * INTO r FROM pillarbox.rates WHERE kind = 'p' AND id = of FOR UPDATE;
  IF p.price_per_thousand IS NOT NULL THEN
    INSERT INTO pillarbox.provider_spending VALUES (of, this_month, 0) ON CONFLICT DO NOTHING;
    SELECT mails INTO spent FROM pillarbox.provider_spending s
      WHERE s.provider_id = of AND s.month = this_month FOR UPDATE;
  END IF;
  FOR i IN 1 .. cardinality(lanes) LOOP
    reserve := (CASE lanes[i] WHEN 0 THEN 0 WHEN 1 THEN p.reserve_urgent
      ELSE p.reserve_urgent + p.reserve_normal END) / 100.0;
    kept := floor(greatest(1, p.rate_per_day / 10) * reserve) * 86400 / p.rate_per_day;
    SELECT * INTO wait, why FROM (VALUES
      (pillarbox._wait(r.second_at, p.rate_per_second, 1, at), 'rate_per_second'),
      (pillarbox._wait(r.hour_at, p.rate_per_hour, 3600, at), 'rate_per_hour'),
      (pillarbox._wait(CASE WHEN kept > 0 THEN greatest(r.day_at, at) + kept * interval '1 second'
        ELSE r.day_at END,
                       p.rate_per_day, 86400, at), 'rate_per_day'),
      (CASE WHEN (spent + recipients[i]) * p.price_per_thousand / 1000
                 > p.budget_per_month * (1 - reserve)
            THEN extract(epoch FROM
              (this_month + interval '1 month') AT TIME ZONE 'UTC' - at)::float8
       END, 'budget_per_month')
    ) AS one(seconds, name) ORDER BY seconds DESC NULLS LAST LIMIT 1;
    IF wait IS NULL THEN
      wait := 0;
      why := NULL;
      r.second_at := pillarbox._used(r.second_at, p.rate_per_second, 1, at, 1);
      r.hour_at := pillarbox._used(r.hour_at, p.rate_per_hour, 3600, at, 1);
      r.day_at := pillarbox._used(r.day_at, p.rate_per_day, 86400, at, 1);
      spent := spent + recipients[i];
    END IF;
    RETURN NEXT;
  END LOOP;
  UPDATE pillarbox.rates SET second_at = r.second_at, hour_at = r.hour_at, day_at = r.day_at
    WHERE kind = 'p' AND id = of;
  IF p.price_per_thousand IS NOT NULL THEN
    UPDATE pillarbox.provider_spending s SET mails = spent
      WHERE s.provider_id = of AND s.month = this_month;
  END IF;
END $$;

-- Note that the database is available; return for how many seconds it has been, without a gap of
-- a third of the shortest lease. Workers renew leases every quarter, so no lease runs out in a
-- shorter gap. `lease` is that of the calling process. The row is written at most once a second
-- (for short leases: four times in such a gap), so that processes do not wait for each other.
-- Uses the clock, not the start of the transaction: a stalled statement must not set the time
-- back.
CREATE OR REPLACE FUNCTION pillarbox._available_for(lease float8) RETURNS float8
  LANGUAGE plpgsql AS $$
DECLARE
  shortest  float8 := greatest(least(lease, (SELECT min(w.lease) FROM pillarbox.workers w
    WHERE w.reaped_at IS NULL)), 1);
  gap       interval := shortest / 3 * interval '1 second';
  seen      pillarbox.availability;
BEGIN
  SELECT * INTO seen FROM pillarbox.availability;
  -- Missing, old or, when the server's clock was set back, in the future.
  IF (seen.touched_at BETWEEN clock_timestamp() - least(gap / 4,
  interval '1 second') AND clock_timestamp()) IS NOT TRUE THEN
    INSERT INTO pillarbox.availability AS a DEFAULT VALUES
    ON CONFLICT (only_row) DO UPDATE SET
      since = CASE WHEN a.touched_at BETWEEN clock_timestamp() - gap AND clock_timestamp() + gap
        THEN a.since ELSE clock_timestamp() END,
      touched_at = clock_timestamp()
    RETURNING * INTO seen;
  END IF;
  RETURN greatest(extract(epoch FROM clock_timestamp() - seen.since), 0);
END $$;

-- How long workers have run since a moment, up to their last report: the time after it may
-- become a gap. Null if no worker ever ran.
CREATE OR REPLACE FUNCTION pillarbox._worked_since(moment timestamptz) RETURNS interval
  LANGUAGE sql STABLE AS $$
  SELECT i.worked_until - $1 - coalesce((
    SELECT sum(g.ended - greatest(g.began, $1)) FROM pillarbox.worker_gaps g WHERE g.ended > $1),
      interval '0')
  FROM pillarbox.installation i
$$;

-- Drop the contents of those messages whose class is secret and of which nothing is left to
-- send. Volatile: each statement in it takes a new snapshot and sees what the calling statement
-- has changed. The rows are locked first: of two settlements that end the last deliveries of a
-- message at the same time, the second waits for the first and then sees its deliveries settled.
-- Otherwise each would leave the body to the other.
CREATE OR REPLACE FUNCTION pillarbox._drop_secret_contents(ids uuid[]) RETURNS void
  LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM FROM pillarbox.contents c
  JOIN pillarbox.messages m ON m.id = c.message_id
  JOIN pillarbox.classes k ON k.name = m.class AND k.secret
  WHERE c.message_id = ANY (ids)
  ORDER BY c.message_id FOR UPDATE OF c;
  DELETE FROM pillarbox.contents c
  USING pillarbox.messages m, pillarbox.classes k
  WHERE c.message_id = ANY (ids) AND m.id = c.message_id AND k.name = m.class AND k.secret
    AND NOT EXISTS (SELECT FROM pillarbox.deliveries d
                    WHERE d.message_id = c.message_id
                      AND d.state::text IN ('pending', 'queued', 'processing', 'held'));
END $$;
