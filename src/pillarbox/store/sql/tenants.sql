-- name: list_tenants
-- All tenants.
SELECT id, name, created_at, default_sender, default_class, order_mode, max_message_bytes,
  max_recipients, sender_domains,
  rate_per_second, rate_per_hour, rate_per_day, content_retention, finished_retention
FROM pillarbox.tenants ORDER BY id

-- name: tenant
-- One tenant by its name.
SELECT id, name, created_at, default_sender, default_class, order_mode, max_message_bytes,
  max_recipients, sender_domains,
  rate_per_second, rate_per_hour, rate_per_day, content_retention, finished_retention
FROM pillarbox.tenants WHERE name = :name

-- name: lock_tenant
-- One tenant by its name, locked against concurrent changes. Enqueueing does not wait for the
-- lock.
SELECT id, name, created_at, default_sender, default_class, order_mode, max_message_bytes,
  max_recipients, sender_domains,
  rate_per_second, rate_per_hour, rate_per_day, content_retention, finished_retention
FROM pillarbox.tenants WHERE name = :name FOR NO KEY UPDATE

-- name: add_tenant
-- Add a tenant; no row if the name is taken.
INSERT INTO pillarbox.tenants (name) VALUES (:name) ON CONFLICT DO NOTHING RETURNING id

-- name: change_tenant
-- Replace all settings of a tenant.
UPDATE pillarbox.tenants
SET default_sender = :default_sender, default_class = :default_class, order_mode = :order_mode,
  max_message_bytes = :max_message_bytes, max_recipients = :max_recipients,
  sender_domains = :sender_domains, rate_per_second = :rate_per_second,
  rate_per_hour = :rate_per_hour, rate_per_day = :rate_per_day,
  content_retention = :content_retention,
  finished_retention = :finished_retention
WHERE id = :id

-- name: restart_walks
-- Start the walks of retention again: what they passed may be too old now.
DELETE FROM pillarbox.retention_walks

-- name: set_default_sender
-- Set the sender of the default tenant if it has none.
UPDATE pillarbox.tenants SET default_sender = :sender
  WHERE name = 'default' AND default_sender IS NULL
