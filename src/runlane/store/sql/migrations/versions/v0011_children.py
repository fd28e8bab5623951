"""Runs that were started by other runs. A new table only, so it runs beside processes of the release before.

Runs that were started before are in no row: cancelling their parent does not cancel them, as in that release.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    if "run_children" in sa.inspect(op.get_bind()).get_table_names():
        return
    op.create_table(
        "run_children",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("begun_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=True),
        sa.Column("cancel_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("run_children_run", "run_children", ["run_id", "begun_at"])
    marked = sa.text("cancel_at is not null")
    op.create_index("run_children_marked", "run_children", ["cancel_at"], postgresql_where=marked, sqlite_where=marked)
