"""Figures of started runs, and an index for the runs whose first attempt ended without ending the run."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "v0034"
down_revision = "v0033"
# Code of v0021 stores no number of starts, and does not use the index.
compatible_from = "v0021"


def upgrade() -> None:
    op.add_column("run_series", sa.Column("started", sa.Integer(), nullable=False, server_default="0"))
    if op.get_bind().dialect.name != "postgresql":
        _make_index()
        return
    # Concurrently: attempts end meanwhile.
    with op.get_context().autocommit_block():
        _make_index(postgresql_concurrently=True)


def _make_index(**options: Any) -> None:
    # A build that was interrupted leaves an index that is not used.
    op.drop_index("run_attempts_first", "run_attempts", if_exists=True, **options)
    where = sa.text("attempt = 1 and outcome <> 'completed'")
    op.create_index(
        "run_attempts_first", "run_attempts", ["started_at"], postgresql_where=where, sqlite_where=where, **options
    )
