-- What the default route uses; names of providers that were removed; how long mails wait for a provider.

ALTER TABLE pillarbox.providers
  ADD COLUMN release_only boolean NOT NULL DEFAULT false;  -- only where a route or a person names it

-- Whether a provider that sends mails out was ever configured for the default route: from then on nothing is captured
-- unless a route says so. Those of a demo do not count: they lead to this machine.
ALTER TABLE pillarbox.installation ADD COLUMN sends_out boolean NOT NULL DEFAULT false;
UPDATE pillarbox.installation SET sends_out = EXISTS (
  SELECT FROM pillarbox.providers
  WHERE kind <> 'capture' AND NOT (name LIKE 'demo-%' AND starts_with(settings ->> 'url', 'http://127.0.0.1:') IS TRUE));

-- A removed provider keeps its name, and does not stand in the way of another of that name.
ALTER TABLE pillarbox.providers DROP CONSTRAINT providers_name_key;
UPDATE pillarbox.providers SET name = regexp_replace(name, '-removed-' || id || '$', '') WHERE removed_at IS NOT NULL;
CREATE UNIQUE INDEX providers_name ON pillarbox.providers (name) WHERE removed_at IS NULL;

-- Null: for ever. Mails of existing classes get the default, too; their time begins with this version.
ALTER TABLE pillarbox.classes
  ADD COLUMN max_wait interval DEFAULT interval '5 days' CHECK (max_wait > interval '0');

-- Since when a worker found no provider for it, while it found some for other mails; null once anything was attempted.
ALTER TABLE pillarbox.deliveries ADD COLUMN waiting_since timestamptz;

ALTER TABLE pillarbox.installation
  ADD COLUMN worked_until timestamptz,       -- when a worker was last seen running
  ADD COLUMN no_provider_since timestamptz;  -- since when no worker finds a provider for any mail; null: one does

-- Times without a running worker: nobody looked for a provider then.
CREATE TABLE pillarbox.worker_gaps (
  began  timestamptz NOT NULL,
  ended  timestamptz NOT NULL CHECK (ended > began)
);
REVOKE ALL ON pillarbox.worker_gaps FROM PUBLIC;

-- How long workers have run since a moment, up to their last report: what came after it may become a gap. Null: none ever did.
CREATE FUNCTION pillarbox._worked_since(moment timestamptz) RETURNS interval LANGUAGE sql STABLE AS $$
  SELECT i.worked_until - $1 - coalesce((
    SELECT sum(g.ended - greatest(g.began, $1)) FROM pillarbox.worker_gaps g WHERE g.ended > $1), interval '0')
  FROM pillarbox.installation i
$$;
REVOKE EXECUTE ON FUNCTION pillarbox._worked_since FROM PUBLIC;

-- Of a mail that failed over within one claim, each try: 0 the first. Settling of earlier versions leaves it out.
ALTER TABLE pillarbox.attempts ADD COLUMN step smallint NOT NULL DEFAULT 0;

-- `updated_at` moves with feedback and events, too. `message_id` is that of the message: an index has it as text.
CREATE OR REPLACE VIEW pillarbox.delivery_logs AS
SELECT
  (d.seq << 7) | d.n AS id,
  m.id::varchar(255) AS message_id,
  t.name::varchar(255) AS tenant_id,
  d.state::varchar(50) AS status,
  p.name::varchar(50) AS provider,
  last.provider_message_id::varchar(255) AS provider_message_id,
  greatest(d.attempts - 1, 0)::int AS retry_count,
  CASE WHEN last.verdict <> 'accepted' THEN concat_ws(' ', last.reason, last.code, last.reply) END AS last_error,
  m.created_at,
  greatest(m.created_at, d.claimed_at, d.settled_at, last.ended_at, d.waiting_since,
    -- a time that has come
    CASE WHEN d.state <> 'pending' AND d.attempts = 0 THEN least(d.next_attempt_at, now()) END,
    (SELECT max(e.at) FROM pillarbox.events e WHERE e.message_id = d.message_id AND (e.n = d.n OR e.n IS NULL)),
    (SELECT max(f.heard_at) FROM pillarbox.feedback f WHERE f.message_id = d.message_id AND f.n = d.n AND NOT f.waiting)
  ) AS updated_at
FROM pillarbox.messages m
JOIN pillarbox.deliveries d ON d.message_id = m.id
JOIN pillarbox.tenants t ON t.id = d.tenant_id
LEFT JOIN pillarbox.providers p ON p.id = d.provider_id
LEFT JOIN LATERAL (
  SELECT a.* FROM pillarbox.attempts a WHERE a.message_id = d.message_id AND a.n = d.n ORDER BY a.claim DESC, a.step DESC LIMIT 1
) last ON true;
