"""Embeddings of the entries of memories."""

import sqlalchemy as sa
from alembic import op

revision = "v0023"
down_revision = "v0021"
# The code of v0021 does not use the tables.
compatible_from = "v0021"


def upgrade() -> None:
    op.create_table(
        "memory_vectors",
        sa.Column("entry_id", sa.Text(), primary_key=True),
        sa.Column("memory_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
    )
    op.create_index("memory_vectors_order", "memory_vectors", ["memory_id", "seq"])
    op.create_table(
        "memory_indexes",
        sa.Column("memory_id", sa.Text(), primary_key=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("indexed_seq", sa.BigInteger(), nullable=False),
    )
