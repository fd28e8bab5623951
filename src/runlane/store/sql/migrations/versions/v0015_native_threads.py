"""What crons are found by."""

import sqlalchemy as sa
from alembic import op

revision = "v0015"
down_revision = "v0014"


def upgrade() -> None:
    for name in ("assistant_id", "thread", "metadata"):
        op.add_column("schedules", sa.Column(name, sa.Text()))
    op.add_column("schedules", sa.Column("ends_at", sa.BigInteger()))
    op.create_index(
        "schedules_thread",
        "schedules",
        ["thread"],
        postgresql_where=sa.text("thread is not null"),
        sqlite_where=sa.text("thread is not null"),
    )
