"""Steps of orchestrations, and what runs wait for. New columns and tables only: it runs beside the release before."""

import sqlalchemy as sa
from alembic import context, op

revision = "0005"
down_revision = "0004"

_NEW_COLUMNS = {
    "run_inputs": {"plan": sa.Text()},
    "run_results": {"state": sa.Text()},
    "run_steps": {
        "no": sa.Integer(),
        "step_id": sa.Text(),
        "outcome": sa.Text(),
        "route": sa.Text(),
        "error": sa.Text(),
        "tries": sa.Integer(),
        "input": sa.Text(),
        "duration_us": sa.BigInteger(),
        "cost_usd": sa.Float(),
        "tokens": sa.Integer(),
    },
}


# Adding a column waits for the transactions on the table, and everybody else waits behind it: give up soon instead.
# The upgrade is then tried again as a whole.
_LOCK_TIMEOUT = "2s"


def upgrade() -> None:
    bind = op.get_bind()
    postgres = bind.dialect.name == "postgresql"
    if postgres:
        op.execute(f"set local lock_timeout = '{_LOCK_TIMEOUT}'")
    inspector = sa.inspect(bind)
    for table, columns in _NEW_COLUMNS.items():
        known = {column["name"] for column in inspector.get_columns(table)}
        for name, kind in columns.items():
            if name not in known:
                op.add_column(table, sa.Column(name, kind, nullable=True))
    if "run_waits" not in inspector.get_table_names():
        op.create_table(
            "run_waits",
            sa.Column("run_id", sa.Text(), nullable=False),
            sa.Column("path", sa.Text(), nullable=False),
            sa.Column("tenant", sa.Text(), nullable=False),
            sa.Column("target", sa.Text(), nullable=False),
            sa.Column("kind", sa.Text(), nullable=False),
            sa.Column("step_id", sa.Text(), nullable=False),
            sa.Column("name", sa.Text(), nullable=False),
            sa.Column("request", sa.Text(), nullable=False),
            sa.Column("opened_at", sa.BigInteger(), nullable=False),
            sa.Column("due_at", sa.BigInteger(), nullable=True),
            sa.Column("answer", sa.Text(), nullable=True),
            sa.Column("answered_at", sa.BigInteger(), nullable=True),
            sa.Column("answered_by", sa.Text(), nullable=True),
            sa.Column("settled_at", sa.BigInteger(), nullable=True),
            sa.PrimaryKeyConstraint("run_id", "path"),
        )
    open_waits = sa.text("kind = 'human' and answered_at is null and settled_at is null")
    op.create_index(
        "run_waits_open",
        "run_waits",
        ["tenant", "opened_at", "run_id"],
        if_not_exists=True,
        postgresql_where=open_waits,
        sqlite_where=open_waits,
    )
    paused = "status = 'paused' and due_at is not null"
    if postgres:
        # It starts empty, but finding that out reads the whole table; a plain build would stop all writes meanwhile.
        with context.get_context().autocommit_block():
            op.execute("drop index concurrently if exists runs_paused_due")
            op.execute(f"create index concurrently runs_paused_due on runs (due_at) where {paused}")
    else:
        op.execute(f"create index if not exists runs_paused_due on runs (due_at) where {paused}")
