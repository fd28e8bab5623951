"""The source of each definition. A nullable column only, so it runs beside processes of the release before.

Definitions that are stored already have no source; the first sync that brings one becomes its source.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

# Adding a column waits for open transactions on the table and blocks later ones: give up soon, the upgrade is retried.
_LOCK_TIMEOUT = "2s"


def upgrade() -> None:
    bind = op.get_bind()
    if bind.dialect.name == "postgresql":
        op.execute(f"set local lock_timeout = '{_LOCK_TIMEOUT}'")
    if "source" not in {column["name"] for column in sa.inspect(bind).get_columns("definitions")}:
        op.add_column("definitions", sa.Column("source", sa.Text(), nullable=True))
