-- The tables of the spine. Rows of a message are tied by its id without foreign keys: only the functions of
-- this schema write them, and a key check per insert would cost as much as the insert (ADR 0003).

CREATE TYPE pillarbox.state AS ENUM (
  'pending',     -- waits for its send_at
  'queued',      -- due now, or at next_attempt_at after a deferral
  'processing',  -- a worker holds the claim
  'sent', 'failed', 'cancelled',
  'held',        -- an attempt's end is unknown and a person decides
  'delivered', 'bounced', 'complained'
);

CREATE TABLE pillarbox.tenants (
  id              integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name            text NOT NULL UNIQUE CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$'),
  default_sender  text,
  created_at      timestamptz NOT NULL DEFAULT now()
);
INSERT INTO pillarbox.tenants (name) VALUES ('default');

CREATE TABLE pillarbox.classes (
  name               text PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$'),
  retry              text CHECK (retry IN ('quadratic', 'esp', 'lifecycle')),  -- null: the provider's policy
  unknown            text NOT NULL DEFAULT 'resend' CHECK (unknown IN ('resend', 'hold')),
  secret             boolean NOT NULL DEFAULT false,  -- bodies are masked, and dropped once settled
  content_retention  interval,                        -- null: the installation's setting
  created_at         timestamptz NOT NULL DEFAULT now()
);
INSERT INTO pillarbox.classes (name, retry, unknown, secret) VALUES
  ('transactional', NULL, 'resend', false),
  ('lifecycle', 'lifecycle', 'resend', true),
  ('bulk', NULL, 'resend', false);

CREATE TABLE pillarbox.messages (
  id               uuid PRIMARY KEY,  -- version 7: ordered by time
  tenant_id        integer NOT NULL,
  size             integer NOT NULL,  -- octets, as it will be sent, roughly
  lane             smallint NOT NULL, -- 0 urgent, 1 normal, 2 bulk
  max_attempts     smallint,
  created_at       timestamptz NOT NULL,
  send_at          timestamptz,
  expires_at       timestamptz,
  class            text NOT NULL,
  kind             text,
  sender           text NOT NULL,
  "to"             text[] NOT NULL,
  cc               text[],
  reply_to         text[],
  subject          text NOT NULL,
  headers          jsonb,
  tags             text[],
  metadata         jsonb
);

-- Beside the messages, not in them: few mails have a key, and every mail would pay for the index.
CREATE TABLE pillarbox.idempotency_keys (
  tenant_id     integer NOT NULL,
  key           text NOT NULL,
  message_id    uuid NOT NULL,
  request_hash  bytea NOT NULL,
  PRIMARY KEY (tenant_id, key)
);
CREATE INDEX idempotency_keys_message ON pillarbox.idempotency_keys (message_id);  -- and so by age

CREATE TABLE pillarbox.contents (
  message_id   uuid PRIMARY KEY,
  text         text,
  html         text,
  raw          bytea,
  attachments  jsonb
) WITH (
  -- Mails of a few KB stay in their row: moving them out to TOAST costs more than storing them.
  toast_tuple_target = 8160
);

CREATE SEQUENCE pillarbox.message_seq;
CREATE SEQUENCE pillarbox.claim_seq;

CREATE TABLE pillarbox.deliveries (
  message_id       uuid NOT NULL,
  seq              bigint NOT NULL,    -- order of acceptance, one per message
  claim            bigint,             -- the fence: only its holder may settle
  worker           bigint,
  claimed_at       timestamptz,
  next_attempt_at  timestamptz NOT NULL,
  settled_at       timestamptz,
  state            pillarbox.state NOT NULL,
  tenant_id        integer NOT NULL,
  size             integer NOT NULL,
  provider_id      integer,
  n                smallint NOT NULL,  -- 0, 1, 2 …: the recipient's number within the message
  attempts         smallint NOT NULL DEFAULT 0,
  lane             smallint NOT NULL,
  role             "char" NOT NULL,    -- t(o), c(c), b(cc)
  recipient        text NOT NULL,
  reason           text,
  retry            text,               -- the retry policy followed, once it was deferred
  PRIMARY KEY (message_id, n)
) WITH (
  -- A queue table turns over completely every few seconds under load: vacuum by count, not by share.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 200000
);
-- Sent deliveries are in neither of these: claiming costs the same however long the history is. Two, not one for each
-- state: every insert pays for each predicate.
CREATE INDEX deliveries_fresh ON pillarbox.deliveries (lane, seq, n) WHERE state = 'queued' AND attempts = 0;
CREATE INDEX deliveries_live ON pillarbox.deliveries (state, next_attempt_at)
  WHERE state IN ('pending', 'queued', 'processing', 'failed', 'held') AND (attempts > 0 OR state <> 'queued');

CREATE TABLE pillarbox.attempts (
  message_id           uuid NOT NULL,
  claim                bigint NOT NULL,  -- rows of one message with the same claim are one attempt
  worker               bigint,
  started_at           timestamptz NOT NULL,
  ended_at             timestamptz NOT NULL,
  provider_id          integer,
  n                    smallint NOT NULL,
  code                 smallint,
  verdict              text NOT NULL,
  reason               text,
  reply                text,             -- redacted
  provider_message_id  text,
  PRIMARY KEY (message_id, n, claim)
);

CREATE TABLE pillarbox.conversations (
  message_id  uuid NOT NULL,
  claim       bigint NOT NULL,
  lines       text NOT NULL,             -- redacted
  PRIMARY KEY (message_id, claim)
);

CREATE TABLE pillarbox.events (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  message_id  uuid NOT NULL,
  n           smallint,                  -- null: about the whole message
  at          timestamptz NOT NULL DEFAULT now(),
  kind        text NOT NULL,
  data        jsonb
);
CREATE INDEX events_message ON pillarbox.events (message_id);

CREATE TABLE pillarbox.providers (
  id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name        text NOT NULL UNIQUE CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$'),
  kind        text NOT NULL,
  settings    jsonb NOT NULL DEFAULT '{}',
  secret      bytea,                     -- sealed
  enabled     boolean NOT NULL DEFAULT true,
  retry       text CHECK (retry IN ('quadratic', 'esp', 'lifecycle')),  -- null: the kind's policy
  removed_at  timestamptz,
  created_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE pillarbox.captured (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  provider_id  integer NOT NULL,
  message_id   uuid NOT NULL,
  at           timestamptz NOT NULL DEFAULT now(),
  sender       text NOT NULL,
  recipients   text[] NOT NULL,
  content      bytea NOT NULL
);
CREATE INDEX captured_message ON pillarbox.captured (message_id);

-- A worker's lease covers all its claims; one heartbeat extends them all (ADR 0002).
CREATE TABLE pillarbox.workers (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name         text NOT NULL,
  started_at   timestamptz NOT NULL DEFAULT now(),
  lease_until  timestamptz NOT NULL,
  reaped_at    timestamptz,              -- its claims were taken away; it must register anew
  stopped_at   timestamptz
) WITH (fillfactor = 50);

-- A random key of the installation, so that redacted values correlate across processes and rotations.
CREATE TABLE pillarbox.installation (
  only_row       boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  redaction_key  bytea NOT NULL
);
INSERT INTO pillarbox.installation (redaction_key)
  VALUES (sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')));

-- Mails compress well with lz4 and cheaply; builds without it keep pglz.
DO $$
BEGIN
  ALTER TABLE pillarbox.contents ALTER COLUMN text SET COMPRESSION lz4, ALTER COLUMN html SET COMPRESSION lz4,
    ALTER COLUMN raw SET COMPRESSION lz4, ALTER COLUMN attachments SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
  NULL;
END $$;
