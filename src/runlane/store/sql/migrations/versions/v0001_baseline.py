"""The schema of the first release, written out per dialect in the SQL files beside this one."""

import time
from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "v0001"
down_revision = None


def upgrade() -> None:
    script = Path(__file__).with_suffix(f".{op.get_bind().dialect.name}.sql").read_text("utf-8")
    for statement in script.split(";\n"):
        if statement.strip():
            op.get_bind().exec_driver_sql(statement)
    now_us = time.time_ns() // 1000
    op.execute(
        sa.text(
            "insert into tenants (id, name, created_at, updated_at) values ('default', 'default', :now, :now)"
        ).bindparams(now=now_us)
    )
