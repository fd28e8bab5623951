"""The durable core: runs and what belongs to them, workers, lanes."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "dead_letters",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Text(), nullable=False),
        sa.Column("died_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id"),
    )
    op.create_index("dead_letters_died", "dead_letters", ["died_at"], unique=False)
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("idempotency_keys_run", "idempotency_keys", ["run_id"], unique=False)
    op.create_table(
        "lane_kinds",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("kind"),
    )
    op.create_table(
        "lanes",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("max_slots", sa.Integer(), nullable=True),
        sa.Column("poll_interval_ms", sa.Integer(), server_default="250", nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "run_attempts",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", "attempt"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "run_events",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "seq"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "run_inputs",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "run_results",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "run_steps",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "path"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("losses", sa.Integer(), server_default="0", nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("max_losses", sa.Integer(), nullable=False),
        sa.Column("last_seq", sa.Integer(), server_default="0", nullable=False),
        sa.Column("accepted_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=True),
        sa.Column("claimed_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("cancel_requested_at", sa.BigInteger(), nullable=True),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("hold", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("ordering_key", sa.Text(), nullable=True),
        sa.Column("key_no", sa.BigInteger(), nullable=True),
        sa.Column("holds_key", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("on_dead", sa.Text(), server_default="skip", nullable=False),
        sa.Column("progress", sa.Float(), nullable=True),
        sa.Column("progress_note", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "runs_due",
        "runs",
        ["due_at"],
        unique=False,
        postgresql_where=sa.text("status = 'scheduled'"),
        sqlite_where=sa.text("status = 'scheduled'"),
    )
    op.create_index(
        "runs_ended",
        "runs",
        ["ended_at"],
        unique=False,
        postgresql_where=sa.text("ended_at IS NOT NULL"),
        sqlite_where=sa.text("ended_at IS NOT NULL"),
    )
    op.create_index(
        "runs_key_holder",
        "runs",
        ["ordering_key"],
        unique=True,
        postgresql_where=sa.text("holds_key"),
        sqlite_where=sa.text("holds_key = 1"),
    )
    op.create_index(
        "runs_key_waiting",
        "runs",
        ["ordering_key", "key_no"],
        unique=False,
        postgresql_where=sa.text("status = 'blocked'"),
        sqlite_where=sa.text("status = 'blocked'"),
    )
    op.create_index(
        "runs_ready",
        "runs",
        ["lane", "rank"],
        unique=False,
        postgresql_where=sa.text("status = 'queued'"),
        sqlite_where=sa.text("status = 'queued'"),
    )
    op.create_index(
        "runs_running",
        "runs",
        ["worker_id"],
        unique=False,
        postgresql_where=sa.text("status = 'running'"),
        sqlite_where=sa.text("status = 'running'"),
    )
    op.create_index(
        "runs_running_lane",
        "runs",
        ["lane"],
        unique=False,
        postgresql_where=sa.text("status = 'running'"),
        sqlite_where=sa.text("status = 'running'"),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("lanes", sa.Text(), nullable=False),
        sa.Column("capacity", sa.Integer(), nullable=False),
        sa.Column("active", sa.Integer(), server_default="0", nullable=False),
        sa.Column("has_lock", sa.Boolean(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("heartbeat_at", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )

    if op.get_bind().dialect.name == "postgresql":
        # Rows here live for seconds: dead ones must go long before a fifth of the table is dead.
        for name in ("runs", "workers"):
            op.execute(
                f"alter table {name} set (autovacuum_vacuum_scale_factor = 0.02, "
                "autovacuum_vacuum_cost_delay = 0, fillfactor = 80)"
            )
