-- outside a transaction
-- Deliveries that wait for a provider of their own route, the longest first. No other row is in it.
CREATE INDEX CONCURRENTLY IF NOT EXISTS deliveries_waiting ON pillarbox.deliveries (waiting_since, message_id, n)
  WHERE waiting_since IS NOT NULL;
-- For `WHERE message_id = …` on the view delivery_logs, where it is text. On messages, which are written once.
CREATE INDEX CONCURRENTLY IF NOT EXISTS messages_as_text ON pillarbox.messages ((id::varchar(255)));
-- Becomes the key of attempts.
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS attempts_steps ON pillarbox.attempts (message_id, n, claim, step);
