-- name: add
-- Put addresses ($2) on the lists of tenants ($1), with $3 reasons, $4 notes, $5 when they expire and $6 messages whose feedback
-- says so. Where an address is there already, the stronger reason and the later expiry stay; what has expired counts for
-- nothing. Returns how many were added, changed, and left as they were. $7 are the reasons from weak to strong.
WITH given AS (
  SELECT g.tenant_id, lower(g.address) AS address, max(array_position($7::text[], g.reason)) AS strength,
    max(coalesce(g.expires_at, 'infinity')) AS until, (array_agg(g.note ORDER BY g.place DESC) FILTER (WHERE g.note IS NOT NULL))[1] AS note,
    (array_agg(g.message_id ORDER BY g.place DESC) FILTER (WHERE g.message_id IS NOT NULL))[1] AS message_id
  FROM unnest($1::int4[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::uuid[]) WITH ORDINALITY
    AS g(tenant_id, address, reason, note, expires_at, message_id, place)
  GROUP BY g.tenant_id, lower(g.address)
), put AS (
  INSERT INTO pillarbox.suppressions AS s (tenant_id, address, reason, note, message_id, expires_at)
  SELECT tenant_id, address, ($7::text[])[strength], note, message_id, nullif(until, 'infinity') FROM given
  ORDER BY tenant_id, address
  ON CONFLICT (tenant_id, address) DO UPDATE SET
    reason = CASE WHEN s.expires_at <= now() OR array_position($7::text[], excluded.reason) > array_position($7::text[], s.reason)
                  THEN excluded.reason ELSE s.reason END,
    note = CASE WHEN s.expires_at <= now() THEN excluded.note ELSE coalesce(excluded.note, s.note) END,
    message_id = CASE WHEN s.expires_at <= now() THEN excluded.message_id ELSE coalesce(excluded.message_id, s.message_id) END,
    created_at = CASE WHEN s.expires_at <= now() THEN now() ELSE s.created_at END,
    expires_at = CASE WHEN s.expires_at <= now() THEN excluded.expires_at
                      ELSE nullif(greatest(coalesce(s.expires_at, 'infinity'), coalesce(excluded.expires_at, 'infinity')), 'infinity') END
  WHERE s.expires_at <= now()
    OR array_position($7::text[], excluded.reason) > array_position($7::text[], s.reason)
    OR coalesce(excluded.expires_at, 'infinity') > coalesce(s.expires_at, 'infinity')
    OR excluded.note <> coalesce(s.note, '')
  RETURNING s.created_at = now() AS is_new
)
SELECT count(*) FILTER (WHERE is_new) AS added, count(*) FILTER (WHERE NOT is_new) AS changed,
  (SELECT count(*) FROM given) - count(*) AS unchanged
FROM put

-- name: remove
-- Take addresses $2 off the list of tenant $1; returns those that were on it.
DELETE FROM pillarbox.suppressions
WHERE tenant_id = $1 AND address = ANY (ARRAY(SELECT lower(one) FROM unnest($2::text[]) AS one))
RETURNING address, expires_at IS NULL OR expires_at > now() AS in_force

-- name: page
-- Up to $5 addresses on the list of tenant $1 after $2 and up to $3 (null: from the first, to the last) in their order, that begin
-- with $4 and have reason $6; null means any. Walks the primary key: with filters, give $3 by page_end to bound the work.
SELECT address, reason, note, message_id, created_at, expires_at
FROM pillarbox.suppressions
WHERE tenant_id = $1 AND ($2::text IS NULL OR address > $2) AND ($3::text IS NULL OR address <= $3)
  AND (expires_at IS NULL OR expires_at > now())
  AND ($4::text IS NULL OR starts_with(address, lower($4))) AND ($6::text IS NULL OR reason = $6)
ORDER BY address LIMIT $5

-- name: page_end
-- The $3-th address on the list of tenant $1 after $2: a page looks no further. No row: there are fewer.
SELECT address FROM pillarbox.suppressions
WHERE tenant_id = $1 AND ($2::text IS NULL OR address > $2) ORDER BY address OFFSET $3::int - 1 LIMIT 1

-- name: find
-- Address $2 on the list of tenant $1.
SELECT address, reason, note, message_id, created_at, expires_at
FROM pillarbox.suppressions
WHERE tenant_id = $1 AND address = lower($2) AND (expires_at IS NULL OR expires_at > now())
