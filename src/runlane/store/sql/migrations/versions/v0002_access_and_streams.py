"""Access and streams: tenants, keys, roles, audit; a run's tenant, its oldest kept event and its trace.

It runs beside processes of the release before: columns have constant defaults, so Postgres stores them in its
catalogue and rewrites no row, and code that does not know them keeps inserting. The one new index on a big table
is built concurrently, outside a transaction; every step may be repeated, because that one can fail by itself.
"""

import time

import sqlalchemy as sa
from alembic import context, op

revision = "0002"
down_revision = "0001"

# Adding a column waits for the transactions on the table, and everybody else waits behind it: give up soon instead.
# The upgrade is then tried again as a whole.
_LOCK_TIMEOUT = "2s"


def upgrade() -> None:
    bind = op.get_bind()
    postgres = bind.dialect.name == "postgresql"
    if postgres:
        op.execute(f"set local lock_timeout = '{_LOCK_TIMEOUT}'")
    _create_tables(sa.inspect(bind).get_table_names())
    _add(
        "runs",
        sa.Column("tenant", sa.Text(), server_default="default", nullable=False),
        sa.Column("limited", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("first_seq", sa.Integer(), server_default="1", nullable=False),
    )
    _add("run_inputs", sa.Column("trace", sa.Text(), nullable=True))
    now_us = time.time_ns() // 1000
    op.execute(
        sa.text(
            "insert into tenants (id, name, created_at, updated_at) values ('default', 'default', :now, :now) "
            "on conflict (id) do nothing"
        ).bindparams(now=now_us)
    )
    if postgres:
        # Tenant rows with a rate limit change with every accept: room on the page keeps those updates cheap.
        op.execute("alter table tenants set (fillfactor = 50, autovacuum_vacuum_cost_delay = 0)")
        # It starts empty, but finding that out reads the whole table; a plain build would stop all writes meanwhile.
        with context.get_context().autocommit_block():
            op.execute("drop index concurrently if exists runs_limited")
            op.execute("create index concurrently runs_limited on runs (tenant) where limited and ended_at is null")
    else:
        op.execute("create index if not exists runs_limited on runs (tenant) where limited = 1 and ended_at is null")


def _add(table: str, *columns: sa.Column[object]) -> None:
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
    for column in columns:
        if column.name not in present:
            op.add_column(table, column)


def _create_tables(present: list[str]) -> None:
    if "tenants" not in present:
        op.create_table(
            "tenants",
            sa.Column("id", sa.Text(), nullable=False),
            sa.Column("name", sa.Text(), nullable=False),
            sa.Column("max_queued", sa.Integer(), nullable=True),
            sa.Column("max_running", sa.Integer(), nullable=True),
            sa.Column("rate_per_second", sa.Float(), nullable=True),
            sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
            sa.Column("created_at", sa.BigInteger(), nullable=False),
            sa.Column("updated_at", sa.BigInteger(), nullable=False),
            sa.Column("rate_paid_until", sa.BigInteger(), server_default="0", nullable=False),
            sa.PrimaryKeyConstraint("id"),
        )
    if "api_keys" not in present:
        op.create_table(
            "api_keys",
            sa.Column("id", sa.Text(), nullable=False),
            sa.Column("tenant", sa.Text(), nullable=False),
            sa.Column("name", sa.Text(), nullable=False),
            sa.Column("prefix", sa.Text(), nullable=False),
            sa.Column("hash", sa.Text(), nullable=False),
            sa.Column("role", sa.Text(), nullable=False),
            sa.Column("created_at", sa.BigInteger(), nullable=False),
            sa.Column("expires_at", sa.BigInteger(), nullable=True),
            sa.Column("revoked_at", sa.BigInteger(), nullable=True),
            sa.Column("last_used_at", sa.BigInteger(), nullable=True),
            sa.Column("created_by", sa.Text(), nullable=False),
            sa.PrimaryKeyConstraint("id"),
        )
    if "roles" not in present:
        op.create_table(
            "roles",
            sa.Column("name", sa.Text(), nullable=False),
            sa.Column("permissions", sa.Text(), nullable=False),
            sa.Column("created_at", sa.BigInteger(), nullable=False),
            sa.Column("updated_at", sa.BigInteger(), nullable=False),
            sa.PrimaryKeyConstraint("name"),
        )
    if "audit" not in present:
        op.create_table(
            "audit",
            sa.Column("id", sa.Text(), nullable=False),
            sa.Column("at", sa.BigInteger(), nullable=False),
            sa.Column("actor", sa.Text(), nullable=False),
            sa.Column("tenant", sa.Text(), nullable=False),
            sa.Column("action", sa.Text(), nullable=False),
            sa.Column("subject", sa.Text(), nullable=False),
            sa.Column("old", sa.Text(), nullable=True),
            sa.Column("new", sa.Text(), nullable=True),
            sa.PrimaryKeyConstraint("id"),
        )
    op.create_index("api_keys_hash", "api_keys", ["hash"], unique=True, if_not_exists=True)
    op.create_index("audit_tenant", "audit", ["tenant", "id"], unique=False, if_not_exists=True)
