"""Lists of runs by tenant, status, target, lane, ordering key and tag; quotas of tenants."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "v0009"
down_revision = "v0008"

_KIND = ["tenant", "target", "lane", "status", "id"]
_INDEXES = (
    ("runs_waiting", _KIND, "ended_at is null and status <> 'running'"),
    ("runs_ended_status", ["tenant", "status", "id"], "ended_at is not null"),
    ("runs_ended_target", _KIND, "ended_at is not null"),
    ("runs_by_key", [sa.text("(ordering_key || '')"), "id"], "ordering_key is not null"),
)


def upgrade() -> None:
    op.add_column("runs", sa.Column("tags", sa.Text()))
    op.create_table(
        "run_tags",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("tag", sa.Text(), primary_key=True),
        sa.Column("run_id", sa.Text(), primary_key=True),
        sqlite_with_rowid=False,
    )
    op.create_index("run_tags_run", "run_tags", ["run_id"])
    op.add_column("tenants", sa.Column("metered", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.create_table(
        "tenant_quotas",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("most", sa.BigInteger(), nullable=False),
        sa.Column("day", sa.Integer()),
        sa.Column("used", sa.BigInteger()),
    )
    if op.get_bind().dialect.name != "postgresql":
        _make_indexes()
        return
    # Concurrently: accepting and claiming runs continue meanwhile.
    with op.get_context().autocommit_block():
        _make_indexes(postgresql_concurrently=True)


def _make_indexes(**options: Any) -> None:
    for name, columns, condition in _INDEXES:
        # A build that was interrupted leaves an index that is not used.
        op.drop_index(name, "runs", if_exists=True, **options)
        where = sa.text(condition)
        op.create_index(name, "runs", columns, postgresql_where=where, sqlite_where=where, **options)
    # The last, so that lists are never without an index. Processes of the previous release list the runs of a tenant by
    # the primary key from now on, until they are replaced.
    op.drop_index("runs_tenant", "runs", if_exists=True, **options)
