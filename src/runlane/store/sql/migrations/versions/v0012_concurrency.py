"""Concurrency limits per key."""

import sqlalchemy as sa
from alembic import op

revision = "v0012"
down_revision = "v0011"


def upgrade() -> None:
    op.add_column("run_inputs", sa.Column("limits", sa.Text()))
    op.create_table(
        "concurrency_limits",
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("max_running", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_by", sa.Text(), nullable=False),
    )
    op.create_index("concurrency_limits_tenant", "concurrency_limits", ["tenant", "name"], unique=True)
    op.create_table(
        "limit_slots",
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("run_id", sa.Text(), primary_key=True),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "limit_waits",
        sa.Column("run_id", sa.Text(), primary_key=True),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("turn", sa.Text(), nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.Column("evicts", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("limit_waits_place", "limit_waits", ["key", "turn", "place"])
    op.create_index(
        "limit_waits_evicting",
        "limit_waits",
        ["key"],
        postgresql_where=sa.text("evicts"),
        sqlite_where=sa.text("evicts = 1"),
    )
    op.create_table(
        "limit_turns",
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("turn", sa.Text(), nullable=False),
        sqlite_with_rowid=False,
    )
