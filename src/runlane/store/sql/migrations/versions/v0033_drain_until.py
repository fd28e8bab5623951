"""The end of the grace period of a worker that stops."""

import sqlalchemy as sa
from alembic import op

revision = "v0033"
down_revision = "v0032"
# Code of v0021 leaves the column empty: its workers stop without a time.
compatible_from = "v0021"


def upgrade() -> None:
    op.add_column("workers", sa.Column("drain_until", sa.BigInteger()))
