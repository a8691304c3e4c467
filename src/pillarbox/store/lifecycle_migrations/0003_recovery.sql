-- While the application sets a new password, nobody else uses the same link: two passwords would race.
ALTER TABLE {schema}.tokens ADD COLUMN hook_until timestamptz;
