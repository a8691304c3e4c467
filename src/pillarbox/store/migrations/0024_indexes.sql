-- outside a transaction
-- Deliveries that wait for a provider of their own route, the longest first. No other row is in it.
CREATE INDEX CONCURRENTLY IF NOT EXISTS deliveries_waiting ON pillarbox.deliveries (waiting_since, message_id, n)
  WHERE waiting_since IS NOT NULL;
