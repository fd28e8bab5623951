"""Memory, processor time and the Python version of workers, and action links."""

import sqlalchemy as sa
from alembic import op

revision = "v0029"
down_revision = "v0023"
# Code of v0021 leaves the columns empty and does not use the table.
compatible_from = "v0021"


def upgrade() -> None:
    op.add_column("workers", sa.Column("memory_bytes", sa.BigInteger()))
    op.add_column("workers", sa.Column("cpu_percent", sa.Float()))
    op.add_column("workers", sa.Column("python", sa.Text()))
    op.create_table(
        "action_links",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("response", sa.Text(), nullable=False),
        sa.Column("person", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
    )
    op.create_index("action_links_hash", "action_links", ["hash"], unique=True)
    op.create_index("action_links_expiry", "action_links", ["expires_at"])
