"""Webhooks: endpoints and their secrets, the webhooks of single runs, messages, deliveries, attempts."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, Table, Text, text

from runlane.store.sql.schema.base import metadata

# A row of the kind `endpoint` is an endpoint of a tenant. A row of the kind `run` is the origin of webhook URLs of
# runs, which has only the state of its health and rate. `paid_until` is the only state of the rate, as for tenants.
webhook_endpoints = Table(
    "webhook_endpoints",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("types", Text, nullable=False, server_default="[]"),
    Column("filter", Text, nullable=False, server_default="{}"),
    Column("include", Text, nullable=False, server_default="[]"),
    Column("headers", Text, nullable=False, server_default="{}"),
    Column("signature", Text, nullable=False, server_default="hmac"),
    Column("rate_per_second", Float, nullable=False),
    Column("max_in_flight", Integer, nullable=False),
    Column("ordered", Boolean, nullable=False, server_default=text("false")),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("disabled_reason", Text),
    Column("disabled_at", BigInteger),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("failed_messages", Integer, nullable=False, server_default="0"),
    Column("first_failure_at", BigInteger),
    Column("last_success_at", BigInteger),
    Column("probe_at", BigInteger),
    Column("paid_until", BigInteger, nullable=False, server_default="0"),
    Column("served_at", BigInteger, nullable=False, server_default="0"),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)
# Whether a tenant has endpoints is read whenever one of its runs starts or ends.
Index(
    "webhook_endpoints_tenant",
    webhook_endpoints.c.tenant,
    webhook_endpoints.c.id,
    postgresql_where=text("kind = 'endpoint'"),
    sqlite_where=text("kind = 'endpoint'"),
)

# `owner` is an endpoint or a run. The highest version is the current one; earlier ones also sign until `valid_until`.
webhook_secrets = Table(
    "webhook_secrets",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("value", Text, nullable=False),
    Column("public_key", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("valid_until", BigInteger),
    sqlite_with_rowid=False,
)

# The webhook URLs that runs were started with.
run_webhooks = Table(
    "run_webhooks",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("url", Text, nullable=False),
    sqlite_with_rowid=False,
)

# `body` is the body of the request. Ids sort by time, so retention reads the primary key.
webhook_messages = Table(
    "webhook_messages",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("run_id", Text),
    Column("occurred_at", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
)

# A message for an endpoint. While a process delivers it, `next_at` is the end of the process's lease, so that an
# abandoned delivery is due again like any other. `fence` counts the claims. `body` replaces that of the message for
# endpoints that get more of a run. A `neutral` delivery, a replay or a test, does not change the endpoint's health.
webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("id", Text, primary_key=True),
    Column("message_id", Text, nullable=False),
    Column("endpoint_id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("run_id", Text),
    Column("status", Text, nullable=False),
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("max_tries", Integer, nullable=False),
    Column("next_at", BigInteger),
    Column("fence", Integer, nullable=False, server_default="0"),
    Column("neutral", Boolean, nullable=False, server_default=text("false")),
    Column("replay_of", Text),
    Column("body", Text),
    Column("status_code", Integer),
    Column("error", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
)
_OPEN = "status in ('pending', 'delivering')"
Index(
    "webhook_deliveries_due",
    webhook_deliveries.c.next_at,
    postgresql_where=text(_OPEN),
    sqlite_where=text(_OPEN),
)
Index(
    "webhook_deliveries_endpoint_due",
    webhook_deliveries.c.endpoint_id,
    webhook_deliveries.c.next_at,
    postgresql_where=text(_OPEN),
    sqlite_where=text(_OPEN),
)
Index("webhook_deliveries_endpoint", webhook_deliveries.c.endpoint_id, webhook_deliveries.c.id)
Index("webhook_deliveries_tenant", webhook_deliveries.c.tenant, webhook_deliveries.c.id)
Index("webhook_deliveries_message", webhook_deliveries.c.message_id)
Index("webhook_deliveries_run", webhook_deliveries.c.run_id, webhook_deliveries.c.endpoint_id)

# The notices that were sent once: most of a budget or a quota is used. `day` is 0 for uses that are not counted by day.
webhook_notices = Table(
    "webhook_notices",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("type", Text, primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("created_at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
Index("webhook_notices_created", webhook_notices.c.created_at)

# One row per try that had a result. Rows are never changed.
webhook_attempts = Table(
    "webhook_attempts",
    metadata,
    Column("delivery_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("started_at", BigInteger, nullable=False),
    Column("duration_us", BigInteger, nullable=False),
    Column("status_code", Integer),
    Column("error_kind", Text),
    Column("error", Text),
    Column("response_headers", Text),
    Column("response_body", Text),
    Column("address", Text),
    Column("request_headers", Text),
    sqlite_with_rowid=False,
)
