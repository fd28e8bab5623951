"""Limits of model providers, what model calls cost, and caps per tenant. New tables and columns only."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

# Adding a column waits for the transactions on the table, and everybody else waits behind it: give up soon instead.
# The upgrade is then tried again as a whole.
_LOCK_TIMEOUT = "2s"


def upgrade() -> None:
    bind = op.get_bind()
    if bind.dialect.name == "postgresql":
        op.execute(f"set local lock_timeout = '{_LOCK_TIMEOUT}'")
    inspector = sa.inspect(bind)
    known = {column["name"] for column in inspector.get_columns("tenants")}
    if "max_cost_usd_per_day" not in known:
        op.add_column("tenants", sa.Column("max_cost_usd_per_day", sa.Float(), nullable=True))
    if "on_cap" not in known:
        op.add_column("tenants", sa.Column("on_cap", sa.Text(), nullable=False, server_default="fail"))
    present = inspector.get_table_names()
    for name, columns in _tables().items():
        if name not in present:
            op.create_table(name, *columns)
    op.create_index("provider_leases_credential", "provider_leases", ["credential"], if_not_exists=True)


def _text(name: str, *, primary_key: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False, primary_key=primary_key)


def _number(name: str, *, server_default: str | None = None) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default=server_default)


def _small(name: str, *, primary_key: bool = False, server_default: str | None = None) -> sa.Column[int]:
    return sa.Column(
        name,
        sa.Integer(),
        nullable=False,
        primary_key=primary_key,
        autoincrement=False,
        server_default=server_default,
    )


def _tables() -> dict[str, list[sa.Column[Any]]]:
    return {
        "provider_limits": [
            _text("credential", primary_key=True),
            sa.Column("in_flight", sa.Integer(), nullable=True),
            sa.Column("requests_per_minute", sa.Integer(), nullable=True),
            sa.Column("tokens_per_minute", sa.Integer(), nullable=True),
            _number("updated_at"),
            _text("updated_by"),
        ],
        "provider_states": [
            _text("credential", primary_key=True),
            _number("slow_until", server_default="0"),
            _number("slowed_at", server_default="0"),
            sa.Column("slow_reason", sa.Text(), nullable=True),
            _small("streak", server_default="0"),
        ],
        "provider_leases": [_text("id", primary_key=True), _text("credential"), _number("expires_at")],
        "provider_seconds": [
            _text("credential", primary_key=True),
            sa.Column("second", sa.BigInteger(), nullable=False, primary_key=True),
            _small("requests"),
            _number("tokens"),
        ],
        "provider_waiters": [
            _text("credential", primary_key=True),
            _text("holder", primary_key=True),
            _number("since"),
            _number("seen_at"),
        ],
        "provider_desk": [
            _small("id", primary_key=True),
            _text("kind"),
            _small("epoch"),
            _number("since"),
            _small("hold_seconds"),
            _text("reason"),
        ],
        "usage_daily": [
            _text("tenant", primary_key=True),
            _small("day", primary_key=True),
            _text("agent", primary_key=True),
            _text("model", primary_key=True),
            _small("shard", primary_key=True),
            _number("calls"),
            _number("unpriced_calls"),
            _number("tokens_in"),
            _number("tokens_out"),
            sa.Column("cost_usd", sa.Float(), nullable=False),
        ],
    }
