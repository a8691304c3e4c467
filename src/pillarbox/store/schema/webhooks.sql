-- Webhook calls to customers; the dispatcher's statements are in store/sql/webhooks.sql.

-- Store webhook calls about deliveries, one array element each, in the transaction that changed
-- them. `data` is merged into each call. Returns at once if the tenant has no enabled endpoint.
-- A call for a message whose earlier call waits for a retry is due no sooner than that one.
CREATE OR REPLACE FUNCTION pillarbox._tell_customers(
  message_ids uuid[], ns int2[], kinds text[], ats timestamptz[], data jsonb[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM pillarbox.webhook_endpoints e WHERE e.enabled) THEN
    RETURN;
  END IF;
  INSERT INTO pillarbox.webhook_calls (id, endpoint_id, message_id, n, kind, at, payload, next_at)
  SELECT pillarbox._new_id(), e.id, t.message_id, t.n, t.kind, t.at,
    jsonb_strip_nulls(jsonb_build_object(
      'message_id', t.message_id, 'delivery_id', t.message_id || '.' || t.n, 'recipient',
      d.recipient,
      'state', CASE WHEN t.kind IN ('message.opened', 'message.clicked', 'message.unsubscribed')
        THEN NULL
                    WHEN t.kind = 'message.deferred' THEN 'queued'
                      ELSE split_part(t.kind, '.', 2) END))
      || jsonb_build_object('kind', m.kind, 'tags', to_jsonb(coalesce(m.tags, '{}')), 'metadata',
      coalesce(m.metadata, '{}'))
      || coalesce(t.data, '{}'),
    greatest(now(), w.next_at)
  FROM unnest(message_ids, ns, kinds, ats, data)
    WITH ORDINALITY AS t(message_id, n, kind, at, data, place)
  JOIN LATERAL (SELECT * FROM pillarbox.messages WHERE id = t.message_id LIMIT 1) m ON true
  JOIN pillarbox.webhook_endpoints e ON e.tenant_id = m.tenant_id AND e.enabled
    AND (e.kinds IS NULL OR t.kind = ANY (e.kinds))
  LEFT JOIN LATERAL (SELECT recipient FROM pillarbox.deliveries
    WHERE message_id = t.message_id AND n = t.n LIMIT 1) d ON true
  LEFT JOIN LATERAL (  -- sorted by the index: the planner has no other way to look
    SELECT c.next_at FROM pillarbox.webhook_calls c
    WHERE c.endpoint_id = e.id AND c.message_id = t.message_id AND c.state = 'waiting'
      AND c.claim IS NULL
    ORDER BY c.endpoint_id, c.message_id, c.seq DESC LIMIT 1) w ON true
  ORDER BY t.place;  -- numbered in this order
  IF FOUND THEN
    PERFORM pg_notify('pillarbox_webhooks', '');
  END IF;
END $$;
