"""Events of tenants: storing and reading them, the outcomes of triggers, and sources of incoming webhooks."""
