-- The key of attempts has the number of the try within a claim: each provider that was tried has a row of its own.
ALTER TABLE pillarbox.attempts DROP CONSTRAINT attempts_pkey,
  ADD CONSTRAINT attempts_pkey PRIMARY KEY USING INDEX attempts_steps;
