"""Answers kept under an Idempotency-Key. A new table only, so it runs beside processes of the release before."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    if "api_answers" not in sa.inspect(op.get_bind()).get_table_names():
        op.create_table(
            "api_answers",
            sa.Column("key", sa.Text(), nullable=False),
            sa.Column("fingerprint", sa.Text(), nullable=False),
            sa.Column("status", sa.Integer(), nullable=True),
            sa.Column("body", sa.Text(), nullable=True),
            sa.Column("created_at", sa.BigInteger(), nullable=False),
            sa.PrimaryKeyConstraint("key"),
        )
    op.create_index("api_answers_created", "api_answers", ["created_at"], unique=False, if_not_exists=True)
