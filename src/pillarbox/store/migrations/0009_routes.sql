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

REVOKE ALL ON pillarbox.routes, pillarbox.provider_health, pillarbox.provider_events, pillarbox.provider_spending,
  pillarbox.suppressions FROM PUBLIC;
