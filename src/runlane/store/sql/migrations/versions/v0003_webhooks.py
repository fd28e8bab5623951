"""Webhooks: endpoints, secrets, webhooks of runs, messages, deliveries and attempts."""

import sqlalchemy as sa
from alembic import op

revision = "v0003"
down_revision = "v0002"

_OPEN = "status in ('pending', 'delivering')"
_ENDPOINT = "kind = 'endpoint'"


def upgrade() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("types", sa.Text(), nullable=False, server_default="[]"),
        sa.Column("filter", sa.Text(), nullable=False, server_default="{}"),
        sa.Column("include", sa.Text(), nullable=False, server_default="[]"),
        sa.Column("signature", sa.Text(), nullable=False, server_default="hmac"),
        sa.Column("rate_per_second", sa.Float(), nullable=False),
        sa.Column("max_in_flight", sa.Integer(), nullable=False),
        sa.Column("ordered", sa.Boolean(), nullable=False, server_default=sa.text("false")),
        sa.Column("enabled", sa.Boolean(), nullable=False, server_default=sa.text("true")),
        sa.Column("disabled_reason", sa.Text()),
        sa.Column("disabled_at", sa.BigInteger()),
        sa.Column("failures", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("failed_messages", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("first_failure_at", sa.BigInteger()),
        sa.Column("last_success_at", sa.BigInteger()),
        sa.Column("probe_at", sa.BigInteger()),
        sa.Column("paid_until", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("served_at", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("version", sa.Integer(), nullable=False, server_default="1"),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "webhook_secrets",
        sa.Column("owner", sa.Text(), primary_key=True),
        sa.Column("version", sa.Integer(), primary_key=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("public_key", sa.Text()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("valid_until", sa.BigInteger()),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "run_webhooks",
        sa.Column("run_id", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "webhook_messages",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text()),
        sa.Column("occurred_at", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text()),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("max_tries", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.BigInteger()),
        sa.Column("fence", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("neutral", sa.Boolean(), nullable=False, server_default=sa.text("false")),
        sa.Column("replay_of", sa.Text()),
        sa.Column("body", sa.Text()),
        sa.Column("status_code", sa.Integer()),
        sa.Column("error", sa.Text()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger()),
    )
    op.create_table(
        "webhook_attempts",
        sa.Column("delivery_id", sa.Text(), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("duration_us", sa.BigInteger(), nullable=False),
        sa.Column("status_code", sa.Integer()),
        sa.Column("error_kind", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("response_headers", sa.Text()),
        sa.Column("response_body", sa.Text()),
        sa.Column("address", sa.Text()),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "webhook_endpoints_tenant",
        "webhook_endpoints",
        ["tenant", "id"],
        postgresql_where=sa.text(_ENDPOINT),
        sqlite_where=sa.text(_ENDPOINT),
    )
    op.create_index(
        "webhook_deliveries_due",
        "webhook_deliveries",
        ["next_at"],
        postgresql_where=sa.text(_OPEN),
        sqlite_where=sa.text(_OPEN),
    )
    op.create_index(
        "webhook_deliveries_endpoint_due",
        "webhook_deliveries",
        ["endpoint_id", "next_at"],
        postgresql_where=sa.text(_OPEN),
        sqlite_where=sa.text(_OPEN),
    )
    op.create_index("webhook_deliveries_endpoint", "webhook_deliveries", ["endpoint_id", "id"])
    op.create_index("webhook_deliveries_tenant", "webhook_deliveries", ["tenant", "id"])
    op.create_index("webhook_deliveries_message", "webhook_deliveries", ["message_id"])
    op.create_index("webhook_deliveries_run", "webhook_deliveries", ["run_id", "endpoint_id"])
