"""Definitions and their versions. New tables only, so it runs beside processes of the release before."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    present = sa.inspect(op.get_bind()).get_table_names()
    if "definitions" not in present:
        op.create_table(
            "definitions",
            sa.Column("tenant", sa.Text(), nullable=False),
            sa.Column("kind", sa.Text(), nullable=False),
            sa.Column("id", sa.Text(), nullable=False),
            sa.Column("version", sa.Text(), nullable=False),
            sa.Column("name", sa.Text(), nullable=False),
            sa.Column("description", sa.Text(), nullable=False),
            sa.Column("origin", sa.Text(), nullable=False),
            sa.Column("pins", sa.Text(), nullable=True),
            sa.Column("created_at", sa.BigInteger(), nullable=False),
            sa.Column("updated_at", sa.BigInteger(), nullable=False),
            sa.Column("removed_at", sa.BigInteger(), nullable=True),
            sa.PrimaryKeyConstraint("tenant", "kind", "id"),
        )
    if "definition_versions" not in present:
        op.create_table(
            "definition_versions",
            sa.Column("tenant", sa.Text(), nullable=False),
            sa.Column("kind", sa.Text(), nullable=False),
            sa.Column("id", sa.Text(), nullable=False),
            sa.Column("version", sa.Text(), nullable=False),
            sa.Column("body", sa.Text(), nullable=False),
            sa.Column("created_at", sa.BigInteger(), nullable=False),
            sa.PrimaryKeyConstraint("tenant", "kind", "id", "version"),
        )
