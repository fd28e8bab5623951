"""Columns that find crons, the ordinals of the runs of threads, and threads of agents and orchestrations."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "v0015"
down_revision = "v0014"

# The runs of a thread are accepted one at a time, so no two have the same time.
_NUMBER_RUNS = """
update thread_runs set ordinal = (
    select count(*) from thread_runs as earlier
    where earlier.thread = thread_runs.thread and earlier.created_at <= thread_runs.created_at
)
"""
_COUNT_RUNS = """
update threads set run_count = (select count(*) from thread_runs where thread_runs.thread = threads.key)
"""


def upgrade() -> None:
    for name in ("assistant_id", "thread", "metadata"):
        op.add_column("schedules", sa.Column(name, sa.Text()))
    op.add_column("schedules", sa.Column("ends_at", sa.BigInteger()))
    op.add_column("threads", sa.Column("run_count", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("threads", sa.Column("native", sa.Text()))
    op.add_column("threads", sa.Column("session_id", sa.Text()))
    op.add_column("thread_runs", sa.Column("ordinal", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("thread_runs", sa.Column("message_count", sa.Integer()))
    op.execute(_NUMBER_RUNS)
    op.execute(_COUNT_RUNS)
    if op.get_bind().dialect.name != "postgresql":
        _make_indexes()
        return
    # Concurrently: runs are accepted meanwhile.
    with op.get_context().autocommit_block():
        _make_indexes(postgresql_concurrently=True)


def _make_indexes(**options: Any) -> None:
    # A build that was interrupted leaves an index that is not used.
    for name, table in (("schedules_thread", "schedules"), ("thread_runs_ordinal", "thread_runs")):
        op.drop_index(name, table, if_exists=True, **options)
    where = sa.text("thread is not null")
    op.create_index("schedules_thread", "schedules", ["thread"], postgresql_where=where, sqlite_where=where, **options)
    op.create_index("thread_runs_ordinal", "thread_runs", ["thread", "ordinal"], **options)
