"""Requests for memories that another node owns."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "v0032"
down_revision = "v0031"
# Code of v0021 leaves the columns empty: its nodes keep their memories, and its processes do not request any.
compatible_from = "v0021"


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    for column in (sa.Column("requested_by", sa.Text()), sa.Column("requested_at", sa.BigInteger())):
        # On Postgres the columns are committed before the index is built, so a repetition finds them.
        op.add_column("memories", column, if_not_exists=postgres or None)
    if not postgres:
        _make_index()
        return
    # Concurrently: memories are changed meanwhile.
    with op.get_context().autocommit_block():
        _make_index(postgresql_concurrently=True)


def _make_index(**options: Any) -> None:
    # A build that was interrupted leaves an index that is not used.
    op.drop_index("memories_requested", "memories", if_exists=True, **options)
    where = sa.text("requested_by IS NOT NULL")
    op.create_index("memories_requested", "memories", ["owner"], postgresql_where=where, sqlite_where=where, **options)
