-- Routes: which providers a mail may leave through, in which order; how healthy they are; what they may send and cost.

CREATE TABLE pillarbox.routes (
  id                 integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id          integer REFERENCES pillarbox.tenants (id),  -- null: for all tenants, after their own
  name               text NOT NULL CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$'),
  place              integer NOT NULL,                           -- the first rule that fits decides
  -- What a mail must be like: null fits all; of a list one must fit.
  sender_domains     text[] CHECK (cardinality(sender_domains) > 0),
  recipient_domains  text[] CHECK (cardinality(recipient_domains) > 0),
  tags               text[] CHECK (cardinality(tags) > 0),
  lanes              smallint[] CHECK (cardinality(lanes) > 0),
  classes            text[] CHECK (cardinality(classes) > 0),
  kinds              text[] CHECK (cardinality(kinds) > 0),
  min_size           integer CHECK (min_size >= 0),
  max_size           integer CHECK (max_size >= 0),
  -- Where it goes: in this order; with weights, the first is drawn by them and the rest follow by weight.
  providers          integer[] NOT NULL CHECK (cardinality(providers) > 0),
  weights            integer[] CHECK (cardinality(weights) = cardinality(providers)),
  enabled            boolean NOT NULL DEFAULT true,
  created_at         timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX routes_name ON pillarbox.routes (coalesce(tenant_id, 0), name);

-- How each provider is, as all processes see it. A row comes with the first trouble.
CREATE TABLE pillarbox.provider_health (
  provider_id  integer PRIMARY KEY,
  state        text NOT NULL DEFAULT 'closed' CHECK (state IN ('closed', 'open', 'half_open')),  -- of the circuit breaker
  reason       text,                                -- of the last failure
  since        timestamptz NOT NULL DEFAULT now(),  -- of the state
  opened       integer NOT NULL DEFAULT 0,          -- how often it opened, less those forgiven: the longer, the more often
  retry_at     timestamptz,                         -- when an open one may be probed
  held_until   timestamptz,                         -- the provider asked for a pause until then
  checked_at   timestamptz,                         -- the last active check: when, and what it said, redacted
  check_ok     boolean,
  check_said   text
) WITH (fillfactor = 50);

-- What became of providers, for people: opened, closed, checks that failed.
CREATE TABLE pillarbox.provider_events (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  provider_id  integer NOT NULL,
  at           timestamptz NOT NULL DEFAULT now(),
  kind         text NOT NULL,
  data         jsonb
);
CREATE INDEX provider_events_provider ON pillarbox.provider_events (provider_id, id);

ALTER TABLE pillarbox.providers
  ADD COLUMN webhook_secret      bytea,             -- sealed: what feedback is signed with
  ADD COLUMN price_per_thousand  numeric(12, 4) CHECK (price_per_thousand >= 0),
  ADD COLUMN budget_per_month    numeric(14, 2) CHECK (budget_per_month >= 0),
  -- Of the day's rate and the month's budget, in percent: what only urgent mails may use, and what bulk ones may not.
  ADD COLUMN reserve_urgent      smallint NOT NULL DEFAULT 10 CHECK (reserve_urgent BETWEEN 0 AND 100),
  ADD COLUMN reserve_normal      smallint NOT NULL DEFAULT 20 CHECK (reserve_normal BETWEEN 0 AND 100),
  ADD CHECK (reserve_urgent + reserve_normal <= 100),
  ADD CHECK (budget_per_month IS NULL OR price_per_thousand > 0);

-- What left through each provider with a price, by month (UTC).
CREATE TABLE pillarbox.provider_spending (
  provider_id  integer NOT NULL,
  month        date NOT NULL,
  mails        bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (provider_id, month)
) WITH (fillfactor = 50);

-- A person's choice of provider for a delivery, before all rules.
ALTER TABLE pillarbox.deliveries ADD COLUMN via integer;

-- A tenant's dead letters, newest first.
CREATE INDEX deliveries_failed ON pillarbox.deliveries (tenant_id, message_id) WHERE state = 'failed';

ALTER TABLE pillarbox.classes DROP CONSTRAINT classes_unknown_check,
  ADD CONSTRAINT classes_unknown_check CHECK (unknown IN ('resend', 'hold', 'wait'));

-- Addresses that a tenant's mails are not sent to.
CREATE TABLE pillarbox.suppressions (
  tenant_id   integer NOT NULL,
  address     text NOT NULL CHECK (address = lower(address)),
  reason      text NOT NULL CHECK (reason IN ('hard_bounce', 'complaint', 'unsubscribed', 'manual')),
  note        text,
  message_id  uuid,                                 -- whose feedback added it
  created_at  timestamptz NOT NULL DEFAULT now(),
  expires_at  timestamptz,
  PRIMARY KEY (tenant_id, address)
);
CREATE INDEX suppressions_expiry ON pillarbox.suppressions (expires_at) WHERE expires_at IS NOT NULL;

REVOKE ALL ON pillarbox.routes, pillarbox.provider_health, pillarbox.provider_events, pillarbox.provider_spending,
  pillarbox.suppressions FROM PUBLIC;

-- Ask for the right to send mails through provider `of`, one array element for each: its lane, and its recipients. The
-- rates count mails, the budget recipients, as providers bill them. For each the seconds to wait, 0 when it may leave
-- now, and then that much is used up; and what holds it back.
CREATE FUNCTION pillarbox._spend(of integer, lanes smallint[], recipients integer[])
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
    SELECT mails INTO spent FROM pillarbox.provider_spending s WHERE s.provider_id = of AND s.month = this_month FOR UPDATE;
  END IF;
  FOR i IN 1 .. cardinality(lanes) LOOP
    reserve := (CASE lanes[i] WHEN 0 THEN 0 WHEN 1 THEN p.reserve_urgent ELSE p.reserve_urgent + p.reserve_normal END) / 100.0;
    kept := floor(greatest(1, p.rate_per_day / 10) * reserve) * 86400 / p.rate_per_day;
    SELECT * INTO wait, why FROM (VALUES
      (pillarbox._wait(r.second_at, p.rate_per_second, 1, at), 'rate_per_second'),
      (pillarbox._wait(r.hour_at, p.rate_per_hour, 3600, at), 'rate_per_hour'),
      (pillarbox._wait(CASE WHEN kept > 0 THEN greatest(r.day_at, at) + kept * interval '1 second' ELSE r.day_at END,
                       p.rate_per_day, 86400, at), 'rate_per_day'),
      (CASE WHEN (spent + recipients[i]) * p.price_per_thousand / 1000 > p.budget_per_month * (1 - reserve)
            THEN extract(epoch FROM (this_month + interval '1 month') AT TIME ZONE 'UTC' - at)::float8 END, 'budget_per_month')
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
  UPDATE pillarbox.rates SET second_at = r.second_at, hour_at = r.hour_at, day_at = r.day_at WHERE kind = 'p' AND id = of;
  IF p.price_per_thousand IS NOT NULL THEN
    UPDATE pillarbox.provider_spending s SET mails = spent WHERE s.provider_id = of AND s.month = this_month;
  END IF;
END $$;
REVOKE EXECUTE ON FUNCTION pillarbox._spend FROM PUBLIC;
