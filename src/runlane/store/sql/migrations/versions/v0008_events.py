"""Runs that start after others, stored events and their triggers, and sources of incoming webhooks."""

import sqlalchemy as sa
from alembic import op

revision = "v0008"
down_revision = "v0007"


def upgrade() -> None:
    _add_dependencies()
    _add_events()
    _add_waits()


def _add_dependencies() -> None:
    op.create_table(
        "run_dependencies",
        sa.Column("parent_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("after_on", sa.Text(), nullable=False),
        sa.Column("parent_status", sa.Text()),
        sa.PrimaryKeyConstraint("parent_id", "run_id"),
        sqlite_with_rowid=False,
    )
    op.create_index("run_dependencies_run", "run_dependencies", ["run_id"])
    op.create_table(
        "dependency_work",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "kind"),
        sqlite_with_rowid=False,
    )


def _add_events() -> None:
    op.create_table(
        "stored_events",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sent_id", sa.Text()),
        sa.Column("key", sa.Text()),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("matched_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("stored_events_name", "stored_events", ["tenant", "name", "id"])
    op.create_index(
        "stored_events_open",
        "stored_events",
        ["id"],
        postgresql_where=sa.text("matched_at IS NULL"),
        sqlite_where=sa.text("matched_at IS NULL"),
    )
    op.create_index("stored_events_received", "stored_events", ["received_at"])
    op.create_index("stored_events_tenant", "stored_events", ["tenant", "id"])
    op.create_table(
        "event_ids",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("sent_id", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "sent_id"),
    )
    op.create_index("event_ids_received", "event_ids", ["received_at"])
    op.create_table(
        "event_rates",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("paid_until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "event_outcomes",
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("decided_at", sa.BigInteger()),
        sa.Column("claimed_until", sa.BigInteger(), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("event_id", "trigger"),
    )
    op.create_index(
        "event_outcomes_open",
        "event_outcomes",
        ["claimed_until"],
        postgresql_where=sa.text("outcome = 'pending'"),
        sqlite_where=sa.text("outcome = 'pending'"),
    )
    op.create_index("event_outcomes_trigger", "event_outcomes", ["tenant", "trigger", "event_id"])
    op.create_table(
        "run_listeners",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("target", sa.Text()),
        sa.PrimaryKeyConstraint("tenant", "trigger"),
    )
    op.create_table(
        "webhook_sources",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("verifier", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False, server_default=sa.text("true")),
        sa.Column("rate_per_minute", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name"),
    )
    op.create_index("webhook_sources_token", "webhook_sources", ["token_hash"], unique=True)


def _add_waits() -> None:
    is_open = "match is not null and answered_at is null and settled_at is null"
    is_new = f"{is_open} and looked_at is null"
    for name, kind in (("match", sa.Text()), ("lookback_us", sa.BigInteger()), ("looked_at", sa.BigInteger())):
        op.add_column("run_waits", sa.Column(name, kind))
    # No existing row is in them, since the columns are new.
    op.create_index(
        "run_waits_match",
        "run_waits",
        ["tenant", "name", "run_id", "path"],
        postgresql_where=sa.text(is_open),
        sqlite_where=sa.text(is_open),
    )
    op.create_index(
        "run_waits_unsearched",
        "run_waits",
        ["opened_at"],
        postgresql_where=sa.text(is_new),
        sqlite_where=sa.text(is_new),
    )
