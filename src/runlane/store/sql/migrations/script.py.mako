"""${message}"""

from alembic import op
import sqlalchemy as sa

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}

# Adding a column waits for open transactions on the table and blocks later ones: give up soon, the upgrade is retried.
_LOCK_TIMEOUT = "2s"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"set local lock_timeout = '{_LOCK_TIMEOUT}'")
    ${upgrades if upgrades else "pass"}
