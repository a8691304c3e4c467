-- The rules of feedback: what a provider's report does to a delivery. `track/feedback_ingest.py`
-- calls `_hear`; `store/history.py` reads the same ranks back.
--
-- | feedback            | rank | state of the delivery | suppresses the recipient if `hard` as |
-- |---------------------|------|-----------------------|---------------------------------------|
-- | complained          | 3    | complained            | complaint                             |
-- | bounced, dropped    | 2    | bounced               | hard_bounce                           |
-- | delivered           | 1    | delivered             | (never hard)                          |
-- | unsubscribed        | 0    | unchanged             | unsubscribed                          |
-- | accepted, deferred, | 0    | unchanged             | (never hard)                          |
-- | opened, clicked     |      |                       |                                       |
--
-- | state of the delivery                | moves                                              |
-- |--------------------------------------|----------------------------------------------------|
-- | processing                           | never; the feedback waits until it is settled      |
-- | sent, delivered, bounced, complained | to a higher rank only, in whatever order they come |
-- | pending, queued, held, failed,       | only if an attempt ended as unknown: the feedback  |
-- | cancelled                            | proves that the mail left; a resend is cancelled   |
--
-- Every report becomes an event. Customers are notified of a move, and always of deferred, opened,
-- clicked and unsubscribed.

-- The rank of feedback, and of a state: see the table above.
CREATE OR REPLACE FUNCTION pillarbox._rank(kind text) RETURNS int2 LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN kind = 'complained' THEN 3 WHEN kind IN ('bounced', 'dropped') THEN 2
    WHEN kind = 'delivered' THEN 1 ELSE 0 END::int2
$$;

-- Whether feedback of this rank moves a delivery in this state; `unknown`: an attempt at it
-- ended as unknown. See the table above.
CREATE OR REPLACE FUNCTION pillarbox._moves(state pillarbox.state, rank int2, unknown boolean)
  RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN $1 = 'processing' THEN false
    WHEN $1 IN ('sent', 'delivered', 'bounced', 'complained') THEN pillarbox._rank($1::text) < $2
      ELSE $3 END
$$;

-- Apply stored feedback: move deliveries, write events, suppress addresses (for as long as
-- `lasts`; null: without end) and notify customers. Every caller locks deliveries in the same
-- order. Feedback on a delivery in `processing` waits until the worker has settled it. The
-- settings keep every look-up on a key, however long the history is and whatever the statistics
-- say.
CREATE OR REPLACE FUNCTION pillarbox._apply_feedback(ids bigint[], lasts interval) RETURNS void
  LANGUAGE plpgsql
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  moved uuid[];
  moved_ns int2[];
  late bigint[];
  strengths text[] := '{manual,hard_bounce,unsubscribed,complaint}';
BEGIN
  WITH best AS MATERIALIZED (
    SELECT DISTINCT ON (f.message_id, f.n) f.message_id, f.n, f.reason, f.kind,
      pillarbox._rank(f.kind) AS rank
    FROM pillarbox.feedback f WHERE f.id = ANY (ids)
      ORDER BY f.message_id, f.n, pillarbox._rank(f.kind) DESC, f.at
  ), locked AS MATERIALIZED (
    SELECT d.message_id, d.n, b.rank, b.reason
    FROM best b JOIN pillarbox.deliveries d ON d.message_id = b.message_id AND d.n = b.n
    WHERE pillarbox._moves(d.state, b.rank, EXISTS (
      SELECT FROM pillarbox.attempts a WHERE a.message_id = d.message_id AND a.n = d.n
        AND a.verdict = 'unknown'))
    ORDER BY d.message_id, d.n FOR UPDATE OF d
  ), changed AS (
    UPDATE pillarbox.deliveries d
    SET state = (ARRAY['sent', 'delivered', 'bounced', 'complained'])[l.rank + 1]::pillarbox.state,
        reason = CASE WHEN l.rank = 2 THEN l.reason END, settled_at = coalesce(d.settled_at, now())
    FROM locked l WHERE d.message_id = l.message_id AND d.n = l.n
    RETURNING d.message_id, d.n
  )
  SELECT array_agg(c.message_id), array_agg(c.n) INTO moved, moved_ns FROM changed c;

  -- Also feedback on deliveries that a worker settled after the statement above read them.
  WITH left_over AS (
    UPDATE pillarbox.feedback f SET waiting = true
    FROM pillarbox.deliveries d
    WHERE f.id = ANY (ids) AND d.message_id = f.message_id AND d.n = f.n
      AND (d.state = 'processing' OR pillarbox._moves(d.state, pillarbox._rank(f.kind), EXISTS (
        SELECT FROM pillarbox.attempts a WHERE a.message_id = d.message_id AND a.n = d.n
          AND a.verdict = 'unknown')))
    RETURNING f.id
  )
  SELECT coalesce(array_agg(o.id), '{}') INTO late FROM left_over o;
  UPDATE pillarbox.feedback f SET waiting = false
    WHERE f.id = ANY (ids) AND f.waiting AND f.id <> ALL (late);

  INSERT INTO pillarbox.events (message_id, n, at, kind, data)
  SELECT f.message_id, f.n, f.at, f.kind, f.data
  FROM pillarbox.feedback f WHERE f.id = ANY (ids) AND f.id <> ALL (late) ORDER BY f.id;

  INSERT INTO pillarbox.suppressions AS s (tenant_id, address, reason, message_id, expires_at)
  SELECT DISTINCT ON (d.tenant_id, lower(d.recipient)) d.tenant_id, lower(d.recipient),
    CASE f.kind WHEN 'complained' THEN 'complaint' WHEN 'unsubscribed' THEN 'unsubscribed'
      ELSE 'hard_bounce' END, f.message_id, now() + lasts
  FROM pillarbox.feedback f JOIN pillarbox.deliveries d ON d.message_id = f.message_id AND d.n = f.n
  WHERE f.id = ANY (ids) AND f.id <> ALL (late) AND f.hard
  ORDER BY d.tenant_id, lower(d.recipient), f.kind = 'complained' DESC, f.id
  -- As in sql/suppressions.sql: an entry keeps the stronger reason and the later expiry; an expired
  -- one is replaced.
  ON CONFLICT (tenant_id, address) DO UPDATE SET
    reason = CASE WHEN s.expires_at <= now()
      OR array_position(strengths, excluded.reason) > array_position(strengths, s.reason)
                  THEN excluded.reason ELSE s.reason END,
    note = CASE WHEN s.expires_at <= now() THEN NULL
      ELSE s.note END, message_id = excluded.message_id,
    created_at = CASE WHEN s.expires_at <= now() THEN now() ELSE s.created_at END,
    expires_at = CASE WHEN s.expires_at <= now() THEN excluded.expires_at
                      ELSE nullif(greatest(coalesce(s.expires_at, 'infinity'),
                      coalesce(excluded.expires_at, 'infinity')), 'infinity') END;

  IF cardinality(moved) > 0 THEN
    -- As after every settlement: drops contents of secret classes once nothing is left to send.
    PERFORM pillarbox._drop_secret_contents(moved);
  END IF;

  IF NOT EXISTS (SELECT FROM pillarbox.webhook_endpoints e WHERE e.enabled) THEN
    RETURN;
  END IF;
  -- Customers are notified of feedback that moves a state only if it did; of the rest always.
  PERFORM pillarbox._tell_customers(array_agg(t.message_id), array_agg(t.n), array_agg(t.told),
    array_agg(t.at), array_agg(t.data))
  FROM (
    SELECT f.id, f.message_id, f.n, 'message.' || f.kind AS told, f.at,
      f.data || jsonb_build_object('state', d.state) AS data
    FROM pillarbox.feedback f JOIN pillarbox.deliveries d ON d.message_id = f.message_id
      AND d.n = f.n
    WHERE f.id = ANY (ids) AND f.id <> ALL (late)
      AND f.kind IN ('deferred', 'opened', 'clicked', 'unsubscribed')
    UNION ALL
    SELECT * FROM (
      SELECT DISTINCT ON (f.message_id, f.n) f.id, f.message_id, f.n, 'message.' || d.state, f.at,
        f.data
      FROM unnest(moved, moved_ns) AS m(message_id, n)
      JOIN pillarbox.deliveries d ON d.message_id = m.message_id AND d.n = m.n
      JOIN pillarbox.feedback f ON f.message_id = m.message_id AND f.n = m.n
      WHERE f.id = ANY (ids) AND pillarbox._rank(f.kind) = pillarbox._rank(d.state::text)
      ORDER BY f.message_id, f.n, f.at) moves
    ORDER BY 1
  ) t
  HAVING count(*) > 0;
END $$;

-- Store a batch of feedback, one array element each, and apply it. A delivery is found by its
-- message and its number or recipient (in either spelling of the domain), or as the only one of
-- its message. Feedback of a provider counts only where an attempt was made through it (if
-- `theirs` is given: under that provider message id), and feedback for a tenant only on its own
-- messages. Returns, by position from 1, the delivery found and whether the feedback is new.
CREATE OR REPLACE FUNCTION pillarbox._hear(
  providers int4[], event_ids text[], tenants int4[], messages uuid[], ns int2[], recipients text[],
  others text[], kinds text[],
  ats timestamptz[], hards bool[], reasons text[], datas text[], raws text[], theirs text[],
  lasts interval
) RETURNS TABLE (place int4, message_id uuid, n int2, is_new boolean) LANGUAGE plpgsql
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  places int4[];
  found_messages uuid[];
  found_ns int2[];
  busy boolean[];
  fresh bigint[];
  fresh_places int4[];
BEGIN
  SELECT array_agg(h.place ORDER BY h.place), array_agg(d.message_id ORDER BY h.place),
    array_agg(d.n ORDER BY h.place),
    array_agg(d.state = 'processing' ORDER BY h.place)
  INTO places, found_messages, found_ns, busy
  FROM unnest(providers, tenants, messages, ns, recipients, others, theirs) WITH ORDINALITY
    AS h(provider_id, tenant_id, message_id, n, recipient, other, theirs, place)
  JOIN LATERAL (
    SELECT d.message_id, d.n, d.state FROM pillarbox.deliveries d
    WHERE d.message_id = h.message_id AND (h.tenant_id IS NULL OR d.tenant_id = h.tenant_id)
      AND (d.n = h.n OR h.n IS NULL AND (lower(d.recipient) IN (h.recipient, h.other)
           OR NOT EXISTS (SELECT FROM pillarbox.deliveries o
             WHERE o.message_id = h.message_id AND o.n <> d.n)))
      AND (h.provider_id = 0 OR d.state = 'processing' OR EXISTS (
        SELECT FROM pillarbox.attempts a
        WHERE a.message_id = d.message_id AND a.n = d.n
          AND (a.provider_id = h.provider_id OR a.provider_id IS NULL)
          AND starts_with(h.theirs, a.provider_message_id) IS NOT FALSE))
    ORDER BY d.n LIMIT 1) d ON true;

  WITH kept AS (
    INSERT INTO pillarbox.feedback AS f (provider_id, event_id, message_id, n, kind, at, hard,
      reason, data, raw, provider_message_id, waiting)
    SELECT providers[p.place], event_ids[p.place], p.message_id, p.n, kinds[p.place],
      least(ats[p.place], now()), hards[p.place],
      reasons[p.place], datas[p.place]::jsonb, raws[p.place]::jsonb, theirs[p.place], p.busy
    FROM unnest(places, found_messages, found_ns, busy) AS p(place, message_id, n, busy)
    ORDER BY providers[p.place], event_ids[p.place], p.place
    ON CONFLICT (provider_id, event_id) DO NOTHING
    RETURNING f.id, f.provider_id, f.event_id, f.waiting
  ), first AS (
    SELECT k.id, k.waiting, min(p.place)::int4 AS place
    FROM kept k
    JOIN (SELECT u.place, providers[u.place] AS provider_id, event_ids[u.place] AS event_id
      FROM unnest(places) AS u(place) OFFSET 0) p
      ON p.provider_id = k.provider_id AND p.event_id = k.event_id
    GROUP BY k.id, k.waiting
  )
  SELECT array_agg(k.id) FILTER (WHERE NOT k.waiting), array_agg(k.place) INTO fresh, fresh_places
    FROM first k;
  IF cardinality(fresh) > 0 THEN
    PERFORM pillarbox._apply_feedback(fresh, lasts);
  END IF;
  RETURN QUERY SELECT p.place, p.message_id, p.n, coalesce(p.place = ANY (fresh_places), false)
    FROM unnest(places, found_messages, found_ns) AS p(place, message_id, n);
END $$;
