"""Chat sessions and their turns. New tables only, so it runs beside processes of the release before."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    if "chat_sessions" in sa.inspect(op.get_bind()).get_table_names():
        return
    op.create_table(
        "chat_sessions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("ordering_key", sa.Text(), nullable=False),
        sa.Column("last_turn", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("chat_sessions_tenant", "chat_sessions", ["tenant", "id"])
    op.create_index("chat_sessions_last", "chat_sessions", ["last_at"])
    op.create_table(
        "chat_turns",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("session_id", "turn"),
    )
    op.create_index("chat_turns_run", "chat_turns", ["run_id"], unique=True)
