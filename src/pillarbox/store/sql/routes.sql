-- name: list_rules
-- All rules in order: the rules of each tenant, then the rules for all tenants.
SELECT r.id, r.name, r.tenant_id, r.place, r.sender_domains, r.recipient_domains, r.tags, r.lanes,
  r.classes, r.kinds, r.min_size, r.max_size, r.providers, r.weights, r.enabled, r.created_at,
  t.name AS tenant
FROM pillarbox.routes r
LEFT JOIN pillarbox.tenants t ON t.id = r.tenant_id
ORDER BY r.tenant_id NULLS LAST, r.place, r.id

-- name: lock_routes
-- Lock the rules against other changes, because a change renumbers places. Readers do not wait.
LOCK TABLE pillarbox.routes IN SHARE ROW EXCLUSIVE MODE

-- name: rules_of
-- The rules of a tenant (null: the rules for all tenants), in order.
SELECT id, name FROM pillarbox.routes
WHERE tenant_id IS NOT DISTINCT FROM :tenant_id::int4
ORDER BY place, id

-- name: add_rule
-- Add a rule, still without its place. No row if its tenant (or the rules for all tenants) already
-- has a rule of that name.
INSERT INTO pillarbox.routes (
  tenant_id, name, place, sender_domains, recipient_domains, tags, lanes, classes, kinds, min_size,
  max_size, providers, weights, enabled)
VALUES (
  :tenant_id, :name, 0, :sender_domains, :recipient_domains, :tags, :lanes, :classes, :kinds,
  :min_size, :max_size, :providers, :weights, :enabled)
ON CONFLICT (coalesce(tenant_id, 0), name) DO NOTHING
RETURNING id

-- name: change_rule
-- Replace all values of a rule except its place and its tenant.
UPDATE pillarbox.routes
SET name = :name, sender_domains = :sender_domains, recipient_domains = :recipient_domains,
  tags = :tags, lanes = :lanes, classes = :classes, kinds = :kinds, min_size = :min_size,
  max_size = :max_size, providers = :providers, weights = :weights, enabled = :enabled
WHERE id = :route_id

-- name: place_rules
-- Number rules in the given order, from 1.
UPDATE pillarbox.routes r SET place = wanted.place
FROM unnest(:route_ids::int4[]) WITH ORDINALITY AS wanted(id, place)
WHERE r.id = wanted.id AND r.place <> wanted.place

-- name: remove_rule
-- Remove a rule.
DELETE FROM pillarbox.routes WHERE id = :route_id

-- name: provider_names
-- Every provider that was not removed, or that a rule still uses.
SELECT id, name, enabled, removed_at IS NOT NULL AS removed
FROM pillarbox.providers p
WHERE removed_at IS NULL
  OR EXISTS (SELECT FROM pillarbox.routes r WHERE p.id = ANY (r.providers))

-- name: classes_missing
-- The given names that are not names of classes.
SELECT w.name FROM unnest(:names::text[]) AS w(name)
WHERE NOT EXISTS (SELECT FROM pillarbox.classes c WHERE c.name = w.name)

-- name: chosen_providers
-- The providers that people chose for deliveries of a message, by recipient number.
SELECT n, via FROM pillarbox.deliveries WHERE message_id = :message_id AND via IS NOT NULL
