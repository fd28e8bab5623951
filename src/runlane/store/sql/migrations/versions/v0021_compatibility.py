"""The versions of the code that can run on the schema, recorded by every migration from this one on."""

import sqlalchemy as sa
from alembic import op

revision = "v0021"
down_revision = "v0019"
# The oldest revision whose code runs on the schema that this migration leaves.
compatible_from = "v0021"


def upgrade() -> None:
    op.create_table(
        "schema_compatibility",
        sa.Column("revision", sa.Text(), primary_key=True),
        sa.Column("compatible_from", sa.Text(), nullable=False),
    )
