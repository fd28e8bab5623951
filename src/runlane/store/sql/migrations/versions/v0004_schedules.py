"""Schedules, the decisions about their slots, and the limits of tenants for them."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "v0004"
down_revision = "v0003"


def upgrade() -> None:
    op.add_column("tenants", sa.Column("max_schedules", sa.Integer()))
    op.add_column("tenants", sa.Column("min_schedule_seconds", sa.Float()))
    op.create_table(
        "schedules",
        sa.Column("uid", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("template", sa.Text()),
        sa.Column("ordering_key", sa.Text()),
        sa.Column("paused_counts", sa.Boolean(), nullable=False),
        sa.Column("zone_version", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("anchor_at", sa.BigInteger(), nullable=False),
        sa.Column("cursor_at", sa.BigInteger(), nullable=False),
        sa.Column("last_slot", sa.BigInteger()),
        sa.Column("next_at", sa.BigInteger()),
        sa.Column("next_due_at", sa.BigInteger()),
        sa.Column("fired", sa.Integer(), server_default="0", nullable=False),
        sa.Column("paused_at", sa.BigInteger()),
        sa.Column("paused_by", sa.Text()),
        sa.Column("paused_reason", sa.Text()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_by", sa.Text(), nullable=False),
    )
    op.create_index("schedules_id", "schedules", ["tenant", "id"], unique=True)
    due = sa.text("next_due_at is not null")
    op.create_index("schedules_due", "schedules", ["next_due_at"], postgresql_where=due, sqlite_where=due)
    op.create_table(
        "schedule_firings",
        sa.Column("schedule_uid", sa.Text(), primary_key=True),
        sa.Column("slot", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("decided_at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("detail", sa.Text()),
        sa.Column("run_id", sa.Text()),
        sa.Column("open", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("prepared", sa.Text()),
        sa.Column("last_slot", sa.BigInteger()),
        sa.Column("count", sa.Integer(), server_default="1", nullable=False),
    )
    is_open: dict[str, Any] = {"postgresql_where": sa.text("open"), "sqlite_where": sa.text("open = 1")}
    buffered = sa.text("outcome = 'buffered'")
    op.create_index("schedule_firings_open", "schedule_firings", ["schedule_uid"], **is_open)
    op.create_index("schedule_firings_run", "schedule_firings", ["run_id"], **is_open)
    op.create_index(
        "schedule_firings_buffered",
        "schedule_firings",
        ["schedule_uid", "slot"],
        postgresql_where=buffered,
        sqlite_where=buffered,
    )
    op.create_index("schedule_firings_decided", "schedule_firings", ["decided_at"])
