-- Dropping the bodies of secret classes in the statement that ends a message's last delivery.

-- Drop the contents of those messages whose class is secret and of which nothing is left to send.
-- Volatile: each statement in it takes a new snapshot and sees what the calling statement has changed so far. The rows are
-- locked before they are looked at: of two settlements that end the last deliveries of a message at the same time, the second
-- waits here for the first and then sees its deliveries settled. Otherwise each would leave the body to the other.
CREATE FUNCTION pillarbox._drop_secret_contents(ids uuid[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM FROM pillarbox.contents c
  JOIN pillarbox.messages m ON m.id = c.message_id
  JOIN pillarbox.classes k ON k.name = m.class AND k.secret
  WHERE c.message_id = ANY (ids)
  ORDER BY c.message_id FOR UPDATE OF c;
  DELETE FROM pillarbox.contents c
  USING pillarbox.messages m, pillarbox.classes k
  WHERE c.message_id = ANY (ids) AND m.id = c.message_id AND k.name = m.class AND k.secret
    AND NOT EXISTS (SELECT FROM pillarbox.deliveries d
                    WHERE d.message_id = c.message_id AND d.state::text IN ('pending', 'queued', 'processing', 'held'));
END $$;

REVOKE EXECUTE ON FUNCTION pillarbox._drop_secret_contents FROM PUBLIC;
