"""An index of each tenant's runs by age. An index only, so it runs beside processes of the release before.

It is built concurrently, outside a transaction, since a plain build would stop all writes meanwhile. That may break off
and leave an invalid index behind, so it begins by dropping one.
"""

from alembic import context, op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        with context.get_context().autocommit_block():
            op.execute("drop index concurrently if exists runs_tenant")
            op.execute("create index concurrently runs_tenant on runs (tenant, id)")
    else:
        op.execute("create index if not exists runs_tenant on runs (tenant, id)")
