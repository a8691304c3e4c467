-- name: add
-- Add addresses to the lists of tenants. An existing entry keeps the stronger reason and the later
-- expiry; an expired one is replaced. :strengths are the reasons from weak to strong. Returns how
-- many were added, changed and unchanged.
WITH given AS (
  SELECT g.tenant_id, lower(g.address) AS address,
    max(array_position(:strengths::text[], g.reason)) AS strength,
    max(coalesce(g.expires_at, 'infinity')) AS until,
    (array_agg(g.note ORDER BY g.place DESC) FILTER (WHERE g.note IS NOT NULL))[1] AS note,
    (array_agg(g.message_id ORDER BY g.place DESC)
      FILTER (WHERE g.message_id IS NOT NULL))[1] AS message_id
  FROM unnest(:tenant_ids::int4[], :addresses::text[], :reasons::text[], :notes::text[],
    :expiry_times::timestamptz[], :message_ids::uuid[]) WITH ORDINALITY
    AS g(tenant_id, address, reason, note, expires_at, message_id, place)
  GROUP BY g.tenant_id, lower(g.address)
), put AS (
  INSERT INTO pillarbox.suppressions AS s (tenant_id, address, reason, note, message_id, expires_at)
  SELECT tenant_id, address, (:strengths::text[])[strength], note, message_id,
    nullif(until, 'infinity') FROM given
  ORDER BY tenant_id, address
  ON CONFLICT (tenant_id, address) DO UPDATE SET
    reason = CASE WHEN s.expires_at <= now()
      OR array_position(:strengths::text[], excluded.reason) > array_position(:strengths::text[],
      s.reason)
                  THEN excluded.reason ELSE s.reason END,
    note = CASE WHEN s.expires_at <= now() THEN excluded.note
      ELSE coalesce(excluded.note, s.note) END,
    message_id = CASE WHEN s.expires_at <= now() THEN excluded.message_id
      ELSE coalesce(excluded.message_id, s.message_id) END,
    created_at = CASE WHEN s.expires_at <= now() THEN now() ELSE s.created_at END,
    expires_at = CASE WHEN s.expires_at <= now() THEN excluded.expires_at
                      ELSE nullif(greatest(coalesce(s.expires_at, 'infinity'),
                      coalesce(excluded.expires_at, 'infinity')), 'infinity') END
  WHERE s.expires_at <= now()
    OR array_position(:strengths::text[], excluded.reason) > array_position(:strengths::text[],
    s.reason)
    OR coalesce(excluded.expires_at, 'infinity') > coalesce(s.expires_at, 'infinity')
    OR excluded.note <> coalesce(s.note, '')
  RETURNING s.created_at = now() AS is_new
)
SELECT count(*) FILTER (WHERE is_new) AS added, count(*) FILTER (WHERE NOT is_new) AS changed,
  (SELECT count(*) FROM given) - count(*) AS unchanged
FROM put

-- name: remove
-- Remove addresses from a tenant's list; returns those that were on it.
DELETE FROM pillarbox.suppressions
WHERE tenant_id = :tenant_id AND address = ANY (ARRAY(SELECT lower(one)
  FROM unnest(:addresses::text[]) AS one))
RETURNING address, expires_at IS NULL OR expires_at > now() AS in_force

-- name: page
-- Up to :limit addresses of a tenant's list after :after and up to :up_to (null: no bound), in
-- order, that begin with :prefix and have this reason; null matches any. Walks the primary key:
-- with filters, set :up_to by page_end to bound the work.
SELECT address, reason, note, message_id, created_at, expires_at
FROM pillarbox.suppressions
WHERE tenant_id = :tenant_id AND (:after::text IS NULL OR address > :after)
  AND (:up_to::text IS NULL OR address <= :up_to)
  AND (expires_at IS NULL OR expires_at > now())
  AND (:prefix::text IS NULL OR starts_with(address, lower(:prefix)))
  AND (:reason::text IS NULL OR reason = :reason)
ORDER BY address LIMIT :limit

-- name: page_end
-- The :position-th address of a tenant's list after :after: a page reads no further. No row if
-- there are fewer.
SELECT address FROM pillarbox.suppressions
WHERE tenant_id = :tenant_id AND (:after::text IS NULL OR address > :after)
  ORDER BY address OFFSET :position::int - 1 LIMIT 1

-- name: find
-- An address on a tenant's list.
SELECT address, reason, note, message_id, created_at, expires_at
FROM pillarbox.suppressions
WHERE tenant_id = :tenant_id AND address = lower(:address)
  AND (expires_at IS NULL OR expires_at > now())
