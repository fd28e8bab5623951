"""Queues of tenants with limits, quarantined runs, and lanes that belong to a tenant's definitions.

The index of ready runs is replaced, so workers of the release before claim slowly until they are replaced too.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

# Adding a column waits for the transactions on the table, and all others wait behind it: give up soon instead. The
# upgrade is then tried again as a whole.
_LOCK_TIMEOUT = "2s"
_QUEUED = "status = 'queued'"


def upgrade() -> None:
    bind = op.get_bind()
    if bind.dialect.name == "postgresql":
        op.execute(f"set local lock_timeout = '{_LOCK_TIMEOUT}'")
    inspector = sa.inspect(bind)
    columns = {column["name"] for column in inspector.get_columns("runs")}
    if "lone_losses" not in columns:
        op.add_column("runs", sa.Column("lone_losses", sa.Integer(), nullable=False, server_default="0"))
    if "max_neighbors" not in columns:
        op.add_column("runs", sa.Column("max_neighbors", sa.Integer(), nullable=True))
    if "tenant" not in {column["name"] for column in inspector.get_columns("lanes")}:
        op.add_column("lanes", sa.Column("tenant", sa.Text(), nullable=True))
    indexes = {index["name"] for index in inspector.get_indexes("runs")}
    if "runs_ready_limited" in indexes:
        return
    op.drop_index("runs_ready", "runs", if_exists=True)
    _index(
        "runs_ready", ["lane", "rank"], "not limited and max_neighbors is null", "limited = 0 and max_neighbors is null"
    )
    _index(
        "runs_ready_limited",
        ["lane", "tenant", "rank"],
        "limited and max_neighbors is null",
        "limited = 1 and max_neighbors is null",
    )
    _index("runs_ready_quarantined", ["rank"], "max_neighbors is not null", "max_neighbors is not null")
    op.create_index(
        "runs_running_limited",
        "runs",
        ["tenant"],
        postgresql_where=sa.text("status = 'running' and limited"),
        sqlite_where=sa.text("status = 'running' and limited = 1"),
        if_not_exists=True,
    )
    op.create_index("lanes_poll_interval", "lanes", ["poll_interval_ms"], if_not_exists=True)
    of_tenants = sa.text("tenant is not null")
    op.create_index(
        "lanes_tenant",
        "lanes",
        ["tenant"],
        postgresql_where=of_tenants,
        sqlite_where=of_tenants,
        if_not_exists=True,
    )


def _index(name: str, columns: list[str], on_postgres: str, on_sqlite: str) -> None:
    op.create_index(
        name,
        "runs",
        columns,
        postgresql_where=sa.text(f"{_QUEUED} and {on_postgres}"),
        sqlite_where=sa.text(f"{_QUEUED} and {on_sqlite}"),
        if_not_exists=True,
    )
