-- Ids in the order of time within a millisecond, too, on servers that have no uuidv7() of their own (before 18).

-- Version 7 (RFC 9562): 48 bits of milliseconds, the version, 12 bits of what is left of a millisecond, then random bits.
DO $migration$
BEGIN
  IF current_setting('server_version_num')::int < 180000 THEN
    CREATE OR REPLACE FUNCTION pillarbox._new_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
      SELECT encode(overlay(uuid_send(gen_random_uuid())
        PLACING int8send(us / 1000 << 16 | 28672 | us % 1000 * 4096 / 1000) FROM 1 FOR 8), 'hex')::uuid
      FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) clock
    $$;
  END IF;
END $migration$;
