-- What the default route uses, and names of providers that were removed.

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
