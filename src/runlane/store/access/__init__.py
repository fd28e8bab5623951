"""Access in the database: tenants, API keys, roles, secrets, the audit log, idempotency keys of requests."""
