-- A tenant's messages, newest first, whatever the other tenants have: what `GET /messages` walks.
CREATE INDEX messages_tenant ON pillarbox.messages (tenant_id, id);
