"""The version of a definition that a run failed with, in its dead letter."""

import sqlalchemy as sa
from alembic import op

revision = "v0013"
down_revision = "v0012"


def upgrade() -> None:
    op.add_column("dead_letters", sa.Column("version", sa.Text()))
