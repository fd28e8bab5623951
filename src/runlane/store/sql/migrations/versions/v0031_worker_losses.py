"""The attempts that a worker has lost are found by its id."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "v0031"
down_revision = "v0029"
# Code of v0021 does not use the index.
compatible_from = "v0021"


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        _make_index()
        return
    # Concurrently: attempts end meanwhile.
    with op.get_context().autocommit_block():
        _make_index(postgresql_concurrently=True)


def _make_index(**options: Any) -> None:
    # A build that was interrupted leaves an index that is not used.
    op.drop_index("run_attempts_lost", "run_attempts", if_exists=True, **options)
    where = sa.text("outcome = 'lost'")
    op.create_index(
        "run_attempts_lost",
        "run_attempts",
        ["worker_id", "ended_at"],
        postgresql_where=where,
        sqlite_where=where,
        **options,
    )
