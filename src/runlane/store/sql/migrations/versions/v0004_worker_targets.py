"""What a worker can execute. A nullable column only, so it runs beside workers of the release before."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("workers")}
    if "targets" not in present:
        op.add_column("workers", sa.Column("targets", sa.Text(), nullable=True))
