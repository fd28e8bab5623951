"""Flow control per key: unique runs, rates, debounced runs, batches, backlogs and expiry."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "v0011"
down_revision = "v0010"

_INDEXES = (
    ("runs_unique", ["unique_key"], "unique_key is not null and ended_at is null", True),
    ("runs_backlog", ["backlog_key"], "backlog_key is not null and attempt = 0 and ended_at is null", False),
    ("runs_expiring", ["expires_at"], "expires_at is not null and attempt = 0 and ended_at is null", False),
)


def upgrade() -> None:
    op.add_column("runs", sa.Column("expires_at", sa.BigInteger()))
    for name in ("unique_key", "backlog_key", "flow_key"):
        op.add_column("runs", sa.Column(name, sa.Text()))
    op.add_column("idempotency_keys", sa.Column("expires_at", sa.BigInteger()))
    op.add_column("idempotency_keys", sa.Column("start_id", sa.Text()))
    op.create_table(
        "flow_keys",
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("used_on", sa.Integer(), nullable=False),
        sa.Column("tat", sa.BigInteger()),
        sa.Column("run_id", sa.Text()),
        sa.Column("opened_at", sa.BigInteger()),
        sa.Column("due_at", sa.BigInteger()),
        sa.Column("starts", sa.Integer()),
        sa.Column("size", sa.Integer()),
        sa.Column("most", sa.Integer()),
        sa.Column("skipped", sa.BigInteger(), server_default="0", nullable=False),
        # Room for new versions of its rows, which change with every start.
        postgresql_with={"fillfactor": 50, "autovacuum_vacuum_cost_delay": 0},
    )
    op.create_index("flow_keys_used", "flow_keys", ["used_on"])
    op.create_table(
        "batch_items",
        sa.Column("run_id", sa.Text(), primary_key=True),
        sa.Column("no", sa.Integer(), primary_key=True),
        sa.Column("item", sa.Text(), nullable=False),
        sqlite_with_rowid=False,
    )
    if op.get_bind().dialect.name != "postgresql":
        _make_indexes()
        return
    # Concurrently: accepting and claiming runs continue meanwhile.
    with op.get_context().autocommit_block():
        _make_indexes(postgresql_concurrently=True)


def _make_indexes(**options: Any) -> None:
    for name, columns, condition, unique in _INDEXES:
        # A build that was interrupted leaves an index that is not used.
        op.drop_index(name, "runs", if_exists=True, **options)
        where = sa.text(condition)
        op.create_index(name, "runs", columns, unique=unique, postgresql_where=where, sqlite_where=where, **options)
