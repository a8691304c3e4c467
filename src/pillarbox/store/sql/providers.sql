-- name: list_providers
-- Every provider that was not removed, in the order in which they were added.
SELECT id, name, kind, settings, secret, webhook_secret, enabled, retry, rate_per_second,
  rate_per_hour, rate_per_day,
  price_per_thousand, budget_per_month, reserve_urgent, reserve_normal, release_only
FROM pillarbox.providers WHERE removed_at IS NULL ORDER BY id

-- name: reserve_provider_id
-- The id of a provider to be added: its sealed secrets are bound to it.
SELECT nextval(pg_get_serial_sequence('pillarbox.providers', 'id'))::integer

-- name: add_provider
-- Add a provider; no row if the name is taken. With :sends_out it ends capturing by default.
WITH added AS (
  INSERT INTO pillarbox.providers (id, name, kind, settings, secret, retry, webhook_secret,
    release_only) OVERRIDING SYSTEM VALUE
  VALUES (:id, :name, :kind, :settings::jsonb, :secret, :retry, :webhook_secret, :release_only)
    ON CONFLICT DO NOTHING RETURNING id
), counted AS (
  UPDATE pillarbox.installation SET sends_out = true
    WHERE :sends_out::bool AND NOT sends_out AND EXISTS (SELECT FROM added)
)
SELECT id FROM added

-- name: sends_out
-- Whether a provider that sends mails out was ever configured for the default route.
SELECT sends_out FROM pillarbox.installation

-- name: release_only
-- Exclude a provider from the default route, or include it; no row if there is none of that name.
WITH changed AS (
  UPDATE pillarbox.providers SET release_only = :release_only
    WHERE name = :name AND removed_at IS NULL RETURNING id, kind
), counted AS (
  UPDATE pillarbox.installation SET sends_out = true
  WHERE NOT :release_only AND NOT sends_out
    AND EXISTS (SELECT FROM changed WHERE kind <> ALL (:kinds_that_keep::text[]))
)
SELECT id FROM changed

-- name: enable_provider
-- Enable or disable a provider; no row if there is none of that name. Enabling one with an open
-- circuit breaker makes the breaker half-open, so that it is tried at once.
WITH before AS (
  SELECT id, enabled FROM pillarbox.providers WHERE name = :name AND removed_at IS NULL FOR UPDATE
), switched AS (
  UPDATE pillarbox.providers p SET enabled = :enabled FROM before WHERE p.id = before.id
    RETURNING p.id
), tried AS (
  UPDATE pillarbox.provider_health h SET state = 'half_open', since = clock_timestamp(),
    retry_at = now(), held_until = NULL
  FROM before WHERE h.provider_id = before.id AND :enabled AND NOT before.enabled
    AND h.state = 'open' RETURNING h.provider_id
), told AS (
  INSERT INTO pillarbox.provider_events (provider_id, kind, data)
  SELECT provider_id, 'half_opened', jsonb_build_object('reason', 'enabled') FROM tried
)
SELECT id, (SELECT count(pg_notify('pillarbox_health', '')) FROM tried) FROM switched

-- name: limit_provider
-- Set the rate limits of a provider (null: none); no row if there is none of that name.
UPDATE pillarbox.providers SET rate_per_second = :per_second, rate_per_hour = :per_hour,
  rate_per_day = :per_day
WHERE name = :name AND removed_at IS NULL RETURNING id

-- name: price_provider
-- Set the price, budget and reserves of a provider; no row if there is none of that name.
UPDATE pillarbox.providers
SET price_per_thousand = :price_per_thousand, budget_per_month = :budget_per_month,
  reserve_urgent = :reserve_urgent, reserve_normal = :reserve_normal
WHERE name = :name AND removed_at IS NULL RETURNING id

-- name: set_feedback
-- Change the settings that verify a provider's feedback; a null secret keeps the current one.
UPDATE pillarbox.providers SET settings = settings || :settings::jsonb,
  webhook_secret = coalesce(:webhook_secret, webhook_secret)
WHERE id = :id AND removed_at IS NULL RETURNING id

-- name: remove_provider
-- Delete a provider's secrets and free its name; attempts keep referring to its row.
UPDATE pillarbox.providers SET removed_at = now(), enabled = false, secret = NULL,
  webhook_secret = NULL
WHERE name = :name AND removed_at IS NULL RETURNING id

-- name: sealed_secrets
-- All stored secrets.
SELECT id, secret, webhook_secret FROM pillarbox.providers
WHERE secret IS NOT NULL OR webhook_secret IS NOT NULL FOR UPDATE

-- name: reseal_secret
-- Replace the sealed secret of a provider.
UPDATE pillarbox.providers SET secret = :sealed WHERE id = :id

-- name: reseal_webhook_secret
-- Replace the sealed webhook secret of a provider.
UPDATE pillarbox.providers SET webhook_secret = :sealed WHERE id = :id

-- name: list_classes
-- All message classes.
SELECT name, retry, unknown, secret, content_retention, max_wait FROM pillarbox.classes
  ORDER BY name

-- name: put_class
-- Add or change a message class. With another retention the walks start again: what they passed
-- may be too old now.
WITH anew AS (
  DELETE FROM pillarbox.retention_walks
  WHERE EXISTS (SELECT FROM pillarbox.classes WHERE name = :name AND content_retention IS DISTINCT
    FROM :content_retention::interval)
)
INSERT INTO pillarbox.classes (name, retry, unknown, secret, content_retention, max_wait)
  VALUES (:name, :retry, :unknown, :secret, :content_retention, :max_wait)
ON CONFLICT (name) DO UPDATE SET retry = excluded.retry, unknown = excluded.unknown,
  secret = excluded.secret,
  content_retention = excluded.content_retention, max_wait = excluded.max_wait

-- name: capture
-- Store a captured mail.
INSERT INTO pillarbox.captured (provider_id, message_id, sender, recipients, content)
  VALUES (:provider_id, :message_id, :sender, :recipients, :content)
RETURNING id

-- name: redaction_key
-- The key of this installation's redactions.
SELECT redaction_key FROM pillarbox.installation
