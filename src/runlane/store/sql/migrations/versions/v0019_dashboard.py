"""Signed-in browsers, saved views, the heartbeats of servers, figures of runs, claims and notes of
questions, and requests to drain workers."""

import sqlalchemy as sa
from alembic import op

revision = "v0019"
down_revision = "v0017"


def upgrade() -> None:
    op.create_table(
        "browser_sessions",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_seen_at", sa.BigInteger(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
    )
    op.create_index("browser_sessions_hash", "browser_sessions", ["hash"], unique=True)
    op.create_table(
        "saved_views",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("page", sa.Text(), primary_key=True),
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "servers",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("hostname", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("heartbeat_at", sa.BigInteger(), nullable=False),
        sa.Column("figures", sa.Text(), nullable=False),
    )
    op.create_table(
        "run_series",
        sa.Column("seconds", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("bucket", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("lane", sa.Text(), primary_key=True),
        sa.Column("target", sa.Text(), primary_key=True),
        sa.Column("accepted", sa.Integer(), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("cancelled", sa.Integer(), nullable=False),
        sa.Column("retried", sa.Integer(), nullable=False),
        sa.Column("cost_usd", sa.Float(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("waits", sa.Text(), nullable=False),
        sa.Column("durations", sa.Text(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.add_column("run_waits", sa.Column("note", sa.Text()))
    op.add_column("run_waits", sa.Column("claimed_by", sa.Text()))
    op.add_column("run_waits", sa.Column("claimed_until", sa.BigInteger()))
    op.add_column("workers", sa.Column("drain_requested_at", sa.BigInteger()))
