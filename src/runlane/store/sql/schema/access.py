"""Access: tenants, keys, roles, the audit log, and responses stored under idempotency keys."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, Table, Text, text

from runlane.store.sql.schema.base import metadata

# `rate_paid_until` is the rate limit's only state: up to when the accepted runs have used up the rate. Nanoseconds.
tenants = Table(
    "tenants",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("max_queued", Integer),
    Column("max_running", Integer),
    Column("rate_per_second", Float),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("rate_paid_until", BigInteger, nullable=False, server_default="0"),
    # The daily cap of model costs, and what happens at the cap. Accepting a run does not read them.
    Column("max_cost_usd_per_day", Float),
    Column("on_cap", Text, nullable=False, server_default="fail"),
    # Its share of a lane relative to other tenants.
    Column("weight", Float, nullable=False, server_default="1"),
    # True if more than one tenant exists, so that its runs get start tags. It is the same in every row, because the
    # statement that accepts a run reads only the row of the tenant.
    Column("shares_lanes", Boolean, nullable=False, server_default=text("false")),
    # The maximum number of schedules, and their shortest period; null for the defaults.
    Column("max_schedules", Integer),
    Column("min_schedule_seconds", Float),
    # True if a quota counts the runs of the tenant when they are accepted.
    Column("metered", Boolean, nullable=False, server_default=text("false")),
)

# Quotas that are not columns of the tenant. `used` is the count of the day `day` (UTC), for quotas per day; of stored
# bytes, it was counted at `counted_at`.
tenant_quotas = Table(
    "tenant_quotas",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("most", BigInteger, nullable=False),
    Column("day", Integer),
    Column("used", BigInteger),
    Column("counted_at", BigInteger),
)

# The key itself is not stored: `hash` is its SHA-256, `prefix` identifies it for people.
api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("prefix", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    Column("last_used_at", BigInteger),
    Column("created_by", Text, nullable=False),
)
Index("api_keys_hash", api_keys.c.hash, unique=True)

roles = Table(
    "roles",
    metadata,
    Column("name", Text, primary_key=True),
    Column("permissions", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

# Ids sort by time, so pages are walked by id.
audit = Table(
    "audit",
    metadata,
    Column("id", Text, primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("old", Text),
    Column("new", Text),
)
Index("audit_tenant", audit.c.tenant, audit.c.id)

# Responses stored under an Idempotency-Key; without a status the request is in progress.
api_answers = Table(
    "api_answers",
    metadata,
    Column("key", Text, primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("status", Integer),
    Column("body", Text),
    Column("created_at", BigInteger, nullable=False),
)
Index("api_answers_created", api_answers.c.created_at)
