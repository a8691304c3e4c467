-- Webhooks: what customers are told of their deliveries, and how those calls went.

CREATE TABLE pillarbox.webhook_endpoints (
  id                uuid PRIMARY KEY,
  tenant_id         integer NOT NULL REFERENCES pillarbox.tenants (id),
  url               text NOT NULL CHECK (length(url) <= 2048),
  kinds             text[] CHECK (cardinality(kinds) > 0),      -- null: all
  secret            bytea NOT NULL,                             -- sealed: what calls are signed with
  old_secret        bytea,                                      -- sealed: and with this one, too, until then
  old_secret_until  timestamptz,
  enabled           boolean NOT NULL DEFAULT true,
  disabled_at       timestamptz,
  disabled_reason   text CHECK (disabled_reason IN ('failing', 'gone', 'person')),
  failing_since     timestamptz,                                -- nothing but failures since then
  created_at        timestamptz NOT NULL DEFAULT now(),
  CHECK (enabled = (disabled_at IS NULL) AND enabled = (disabled_reason IS NULL)),
  CHECK ((old_secret IS NULL) = (old_secret_until IS NULL))
) WITH (fillfactor = 50);
CREATE INDEX webhook_endpoints_tenant ON pillarbox.webhook_endpoints (tenant_id);
-- What everybody who settles a mail looks into: empty where nobody has webhooks.
CREATE INDEX webhook_endpoints_enabled ON pillarbox.webhook_endpoints (tenant_id) WHERE enabled;

-- Calls to be made, and the log of those that were.
CREATE TABLE pillarbox.webhook_calls (
  id           uuid PRIMARY KEY,              -- version 7; what the receiver tells a repetition by
  seq          bigint GENERATED ALWAYS AS IDENTITY,  -- the order of a message's calls
  endpoint_id  uuid NOT NULL,
  message_id   uuid,                          -- null: a test
  n            smallint,
  kind         text NOT NULL,
  at           timestamptz NOT NULL,          -- when that happened which is told
  payload      jsonb NOT NULL,                -- the `data` of what is sent
  state        text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'delivered', 'failed')),
  attempts     smallint NOT NULL DEFAULT 0,   -- since the call was made, or replayed
  replays      smallint NOT NULL DEFAULT 0,
  next_at      timestamptz NOT NULL,          -- when it is due; while somebody makes the call: when his lease ends
  claim        bigint,                        -- the fence: only its holder may settle
  ended_at     timestamptz,                   -- the last try: when it ended, and how
  took         interval,
  status       smallint,
  error        text                           -- redacted
) WITH (
  -- Turns over like the queue itself: vacuum by count, not by share.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);
-- Neither holds what was delivered: claiming costs the same however long the log is.
CREATE INDEX webhook_calls_due ON pillarbox.webhook_calls (endpoint_id, next_at) WHERE state = 'waiting';
CREATE INDEX webhook_calls_order ON pillarbox.webhook_calls (endpoint_id, message_id, seq) WHERE state = 'waiting';
CREATE INDEX webhook_calls_log ON pillarbox.webhook_calls (endpoint_id, state, id);
CREATE INDEX webhook_calls_message ON pillarbox.webhook_calls (message_id);

CREATE SEQUENCE pillarbox.webhook_claim_seq;

-- Tell the customers whose messages these are what happened to deliveries, in the transaction in which it happens: one
-- element each. `data` is added to what every call says. Does next to nothing where nobody listens.
-- A call of a message whose earlier call waits to be repeated is due no sooner than that.
CREATE FUNCTION pillarbox._tell_customers(
  message_ids uuid[], ns int2[], kinds text[], ats timestamptz[], data jsonb[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM pillarbox.webhook_endpoints e WHERE e.enabled) THEN
    RETURN;
  END IF;
  INSERT INTO pillarbox.webhook_calls (id, endpoint_id, message_id, n, kind, at, payload, next_at)
  SELECT pillarbox._new_id(), e.id, t.message_id, t.n, t.kind, t.at,
    jsonb_strip_nulls(jsonb_build_object(
      'message_id', t.message_id, 'delivery_id', t.message_id || '.' || t.n, 'recipient', d.recipient,
      'state', CASE WHEN t.kind IN ('message.opened', 'message.clicked', 'message.unsubscribed') THEN NULL
                    WHEN t.kind = 'message.deferred' THEN 'queued' ELSE split_part(t.kind, '.', 2) END))
      || jsonb_build_object('kind', m.kind, 'tags', to_jsonb(coalesce(m.tags, '{}')), 'metadata', coalesce(m.metadata, '{}'))
      || coalesce(t.data, '{}'),
    greatest(now(), w.next_at)
  FROM unnest(message_ids, ns, kinds, ats, data) WITH ORDINALITY AS t(message_id, n, kind, at, data, place)
  JOIN LATERAL (SELECT * FROM pillarbox.messages WHERE id = t.message_id LIMIT 1) m ON true
  JOIN pillarbox.webhook_endpoints e ON e.tenant_id = m.tenant_id AND e.enabled AND (e.kinds IS NULL OR t.kind = ANY (e.kinds))
  LEFT JOIN LATERAL (SELECT recipient FROM pillarbox.deliveries WHERE message_id = t.message_id AND n = t.n LIMIT 1) d ON true
  LEFT JOIN LATERAL (  -- sorted by the index: the planner has no other way to look
    SELECT c.next_at FROM pillarbox.webhook_calls c
    WHERE c.endpoint_id = e.id AND c.message_id = t.message_id AND c.state = 'waiting' AND c.claim IS NULL
    ORDER BY c.endpoint_id, c.message_id, c.seq DESC LIMIT 1) w ON true
  ORDER BY t.place;  -- numbered in this order
  IF FOUND THEN
    PERFORM pg_notify('pillarbox_webhooks', '');
  END IF;
END $$;

REVOKE EXECUTE ON FUNCTION pillarbox._tell_customers FROM PUBLIC;
REVOKE ALL ON pillarbox.webhook_endpoints, pillarbox.webhook_calls FROM PUBLIC;
