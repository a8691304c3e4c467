-- outside a transaction
-- What neither waits in a lane nor is finished. Unlike deliveries_live it leaves deferred deliveries to deliveries_deferred: a
-- claim planned while the statistics knew of none could use it, and would read those of all tenants later. And a deferral
-- writes to one index less.
CREATE INDEX CONCURRENTLY IF NOT EXISTS deliveries_state ON pillarbox.deliveries (state, next_attempt_at)
  WHERE state IN ('pending', 'processing', 'failed', 'held');
DROP INDEX CONCURRENTLY IF EXISTS pillarbox.deliveries_live;
