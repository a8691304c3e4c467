-- Tells a dead worker from an unavailable database: for how long processes have reached the database without a long gap.

CREATE TABLE pillarbox.availability (
  only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  since       timestamptz NOT NULL DEFAULT now(),  -- some process has reached the database ever since, without a long gap
  touched_at  timestamptz NOT NULL DEFAULT now()   -- when one last did
) WITH (fillfactor = 10);
INSERT INTO pillarbox.availability DEFAULT VALUES;
REVOKE ALL ON pillarbox.availability FROM PUBLIC;

ALTER TABLE pillarbox.workers ADD COLUMN lease float8;  -- seconds; null: of version 0.1.0, which did not say

-- Note that the database is available, and say for how many seconds it has been, without a gap of a third of the shortest
-- lease: workers renew leases every quarter, so that after a shorter gap none has run out. `lease`: of the calling process.
-- Touched at most once a second (for short leases: four times in such a gap), so that processes do not wait for each other.
-- By the clock, not by the start of the transaction: what was stalled with the server must not set the time back.
CREATE FUNCTION pillarbox._available_for(lease float8) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
  shortest  float8 := greatest(least(lease, (SELECT min(w.lease) FROM pillarbox.workers w WHERE w.reaped_at IS NULL)), 1);
  gap       interval := shortest / 3 * interval '1 second';
  seen      pillarbox.availability;
BEGIN
  SELECT * INTO seen FROM pillarbox.availability;
  -- Missing, old or, when the server's clock was set back, in the future.
  IF (seen.touched_at BETWEEN clock_timestamp() - least(gap / 4, interval '1 second') AND clock_timestamp()) IS NOT TRUE THEN
    INSERT INTO pillarbox.availability AS a DEFAULT VALUES
    ON CONFLICT (only_row) DO UPDATE SET
      since = CASE WHEN a.touched_at BETWEEN clock_timestamp() - gap AND clock_timestamp() + gap THEN a.since ELSE clock_timestamp() END,
      touched_at = clock_timestamp()
    RETURNING * INTO seen;
  END IF;
  RETURN greatest(extract(epoch FROM clock_timestamp() - seen.since), 0);
END $$;

REVOKE EXECUTE ON FUNCTION pillarbox._available_for FROM PUBLIC;
