-- Limits of a tenant are checked for every mail of `enqueue_many`: PostgreSQL left out calls of a stable
-- function whose result nothing uses.
ALTER FUNCTION pillarbox._check_tenant(integer, text, integer, integer) VOLATILE;
