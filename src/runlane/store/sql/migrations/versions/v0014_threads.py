"""Graphs, assistants, threads with their checkpoints, and the store of graphs."""

import sqlalchemy as sa
from alembic import op

revision = "v0014"
down_revision = "v0013"


def upgrade() -> None:
    bytewise = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "graphs",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("description", sa.Text()),
        sa.Column("schemas", sa.Text()),
        sa.Column("drawing", sa.Text()),
        sa.Column("subgraphs", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "assistants",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("graph_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text()),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("context", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "assistant_versions",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("assistant_id", sa.Text(), primary_key=True),
        sa.Column("version", sa.Integer(), primary_key=True),
        sa.Column("graph_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text()),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("context", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "threads",
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("open_runs", sa.Integer(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("state_values", sa.Text()),
        sa.Column("interrupts", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("ttl_minutes", sa.Integer()),
        sa.Column("ttl_strategy", sa.Text()),
        sa.Column("expires_at", sa.BigInteger()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("state_updated_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "thread_runs",
        sa.Column("run_id", sa.Text(), primary_key=True),
        sa.Column("thread", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("assistant_id", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("multitask_strategy", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text()),
        sa.Column("on_cancel", sa.Text()),
        sa.Column("on_completion", sa.Text()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "checkpoints",
        sa.Column("thread", sa.Text(), primary_key=True),
        sa.Column("ns", sa.Text(), primary_key=True),
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("parent_id", sa.Text()),
        sa.Column("run_id", sa.Text()),
        sa.Column("attempt", sa.Integer()),
        sa.Column("encoding", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.LargeBinary(), nullable=False),
        sa.Column("versions", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("snapshot", sa.Text()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "checkpoint_values",
        sa.Column("thread", sa.Text(), primary_key=True),
        sa.Column("ns", sa.Text(), primary_key=True),
        sa.Column("channel", sa.Text(), primary_key=True),
        sa.Column("version", sa.Text(), primary_key=True),
        sa.Column("encoding", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary()),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "checkpoint_writes",
        sa.Column("thread", sa.Text(), primary_key=True),
        sa.Column("ns", sa.Text(), primary_key=True),
        sa.Column("checkpoint_id", sa.Text(), primary_key=True),
        sa.Column("task_id", sa.Text(), primary_key=True),
        sa.Column("index", sa.Integer(), primary_key=True),
        sa.Column("task_path", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("encoding", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary()),
        sa.Column("run_id", sa.Text()),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "store_items",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("namespace", bytewise, primary_key=True),
        sa.Column("key", bytewise, primary_key=True),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("text", sa.Text()),
        sa.Column("embedding", sa.LargeBinary()),
        sa.Column("ttl_minutes", sa.Float()),
        sa.Column("expires_at", sa.BigInteger()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
    )
    op.create_index("assistants_created", "assistants", ["tenant", "created_at", "id"])
    op.create_index("threads_created", "threads", ["tenant", "created_at", "id"])
    op.create_index("threads_updated", "threads", ["tenant", "updated_at", "id"])
    op.create_index(
        "threads_expiring",
        "threads",
        ["expires_at"],
        postgresql_where=sa.text("expires_at IS NOT NULL"),
        sqlite_where=sa.text("expires_at IS NOT NULL"),
    )
    op.create_index("thread_runs_thread", "thread_runs", ["thread", "created_at", "run_id"])
    op.create_index(
        "checkpoints_run",
        "checkpoints",
        ["run_id"],
        postgresql_where=sa.text("run_id IS NOT NULL"),
        sqlite_where=sa.text("run_id IS NOT NULL"),
    )
    op.create_index(
        "store_items_expiring",
        "store_items",
        ["expires_at"],
        postgresql_where=sa.text("expires_at IS NOT NULL"),
        sqlite_where=sa.text("expires_at IS NOT NULL"),
    )
