"""The hooks of a run, which its end settles, and the origin of a run."""

import sqlalchemy as sa
from alembic import op

revision = "v0002"
down_revision = "v0001"


def upgrade() -> None:
    op.add_column("runs", sa.Column("hooks", sa.SmallInteger(), server_default="0", nullable=False))
    op.add_column("run_inputs", sa.Column("origin", sa.Text()))
