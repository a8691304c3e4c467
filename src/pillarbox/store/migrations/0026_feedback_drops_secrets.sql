-- Feedback that ends the last delivery of a message drops its body like a settlement: locked first, so that of two that end the
-- last deliveries at the same time one sees what the other did. Otherwise both would leave the body of a secret class.

CREATE OR REPLACE FUNCTION pillarbox._apply_feedback(ids bigint[], lasts interval) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  moved uuid[];
  moved_ns int2[];
  late bigint[];
  strengths text[] := '{manual,hard_bounce,unsubscribed,complaint}';
BEGIN
  WITH best AS MATERIALIZED (
    SELECT DISTINCT ON (f.message_id, f.n) f.message_id, f.n, f.reason, f.kind, pillarbox._rank(f.kind) AS rank
    FROM pillarbox.feedback f WHERE f.id = ANY (ids) ORDER BY f.message_id, f.n, pillarbox._rank(f.kind) DESC, f.at
  ), locked AS MATERIALIZED (
    SELECT d.message_id, d.n, b.rank, b.reason
    FROM best b JOIN pillarbox.deliveries d ON d.message_id = b.message_id AND d.n = b.n
    WHERE pillarbox._moves(d.state, b.rank, EXISTS (
      SELECT FROM pillarbox.attempts a WHERE a.message_id = d.message_id AND a.n = d.n AND a.verdict = 'unknown'))
    ORDER BY d.message_id, d.n FOR UPDATE OF d
  ), changed AS (
    UPDATE pillarbox.deliveries d
    SET state = (ARRAY['sent', 'delivered', 'bounced', 'complained'])[l.rank + 1]::pillarbox.state,
        reason = CASE WHEN l.rank = 2 THEN l.reason END, settled_at = coalesce(d.settled_at, now())
    FROM locked l WHERE d.message_id = l.message_id AND d.n = l.n
    RETURNING d.message_id, d.n
  )
  SELECT array_agg(c.message_id), array_agg(c.n) INTO moved, moved_ns FROM changed c;

  -- Also what a worker settled just now, after we looked.
  WITH left_over AS (
    UPDATE pillarbox.feedback f SET waiting = true
    FROM pillarbox.deliveries d
    WHERE f.id = ANY (ids) AND d.message_id = f.message_id AND d.n = f.n
      AND (d.state = 'processing' OR pillarbox._moves(d.state, pillarbox._rank(f.kind), EXISTS (
        SELECT FROM pillarbox.attempts a WHERE a.message_id = d.message_id AND a.n = d.n AND a.verdict = 'unknown')))
    RETURNING f.id
  )
  SELECT coalesce(array_agg(o.id), '{}') INTO late FROM left_over o;
  UPDATE pillarbox.feedback f SET waiting = false WHERE f.id = ANY (ids) AND f.waiting AND f.id <> ALL (late);

  INSERT INTO pillarbox.events (message_id, n, at, kind, data)
  SELECT f.message_id, f.n, f.at, f.kind, f.data
  FROM pillarbox.feedback f WHERE f.id = ANY (ids) AND f.id <> ALL (late) ORDER BY f.id;

  INSERT INTO pillarbox.suppressions AS s (tenant_id, address, reason, message_id, expires_at)
  SELECT DISTINCT ON (d.tenant_id, lower(d.recipient)) d.tenant_id, lower(d.recipient),
    CASE f.kind WHEN 'complained' THEN 'complaint' WHEN 'unsubscribed' THEN 'unsubscribed' ELSE 'hard_bounce' END, f.message_id, now() + lasts
  FROM pillarbox.feedback f JOIN pillarbox.deliveries d ON d.message_id = f.message_id AND d.n = f.n
  WHERE f.id = ANY (ids) AND f.id <> ALL (late) AND f.hard
  ORDER BY d.tenant_id, lower(d.recipient), f.kind = 'complained' DESC, f.id
  -- As sql/suppressions.sql has it: the stronger reason and the later expiry stay, and what has expired counts for nothing.
  ON CONFLICT (tenant_id, address) DO UPDATE SET
    reason = CASE WHEN s.expires_at <= now() OR array_position(strengths, excluded.reason) > array_position(strengths, s.reason)
                  THEN excluded.reason ELSE s.reason END,
    note = CASE WHEN s.expires_at <= now() THEN NULL ELSE s.note END, message_id = excluded.message_id,
    created_at = CASE WHEN s.expires_at <= now() THEN now() ELSE s.created_at END,
    expires_at = CASE WHEN s.expires_at <= now() THEN excluded.expires_at
                      ELSE nullif(greatest(coalesce(s.expires_at, 'infinity'), coalesce(excluded.expires_at, 'infinity')), 'infinity') END;

  IF cardinality(moved) > 0 THEN
    -- As after any other settling: bodies of secret classes go once nothing is left to send.
    PERFORM pillarbox._drop_secret_contents(moved);
  END IF;

  IF NOT EXISTS (SELECT FROM pillarbox.webhook_endpoints e WHERE e.enabled) THEN
    RETURN;
  END IF;
  -- Of what moves a state customers hear when it did; of the rest always.
  PERFORM pillarbox._tell_customers(array_agg(t.message_id), array_agg(t.n), array_agg(t.told), array_agg(t.at), array_agg(t.data))
  FROM (
    SELECT f.id, f.message_id, f.n, 'message.' || f.kind AS told, f.at, f.data || jsonb_build_object('state', d.state) AS data
    FROM pillarbox.feedback f JOIN pillarbox.deliveries d ON d.message_id = f.message_id AND d.n = f.n
    WHERE f.id = ANY (ids) AND f.id <> ALL (late) AND f.kind IN ('deferred', 'opened', 'clicked', 'unsubscribed')
    UNION ALL
    SELECT * FROM (
      SELECT DISTINCT ON (f.message_id, f.n) f.id, f.message_id, f.n, 'message.' || d.state, f.at, f.data
      FROM unnest(moved, moved_ns) AS m(message_id, n)
      JOIN pillarbox.deliveries d ON d.message_id = m.message_id AND d.n = m.n
      JOIN pillarbox.feedback f ON f.message_id = m.message_id AND f.n = m.n
      WHERE f.id = ANY (ids) AND pillarbox._rank(f.kind) = pillarbox._rank(d.state::text)
      ORDER BY f.message_id, f.n, f.at) moves
    ORDER BY 1
  ) t
  HAVING count(*) > 0;
END $$;
