"""The current use of every credential, for display."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, bindparam, func, select

from runlane.domain.rate_limit import WINDOW_SECONDS, CredentialInUse
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import lit, now_once
from runlane.store.sql.schema import provider_leases, provider_seconds, provider_states, provider_waiters
from runlane.store.sql.statement import Statement

_SECOND_US = 1_000_000


_now = now_once()


def _one(column: ColumnElement[Any], *where: ColumnElement[bool]) -> Any:
    return select(column).where(*where).scalar_subquery()


_live = provider_leases.c.expires_at > _now
_BUSY = Statement(
    "busy_providers",
    select(
        provider_states.c.credential,
        _one(func.count(), provider_leases.c.credential == provider_states.c.credential, _live).label("in_flight"),
        *(
            _one(
                func.coalesce(func.sum(provider_seconds.c[name]), lit(0)),
                provider_seconds.c.credential == provider_states.c.credential,
                provider_seconds.c.second >= _now // lit(_SECOND_US) - lit(WINDOW_SECONDS),
            ).label(name)
            for name in ("requests", "tokens")
        ),
        _one(
            func.count(),
            provider_waiters.c.credential == provider_states.c.credential,
            provider_waiters.c.seen_at > _now - bindparam("stale_us", type_=BigInteger()),
        ).label("waiting"),
    ),
    purpose="Read the current use of every known credential.",
)


async def read_busy(database: Database, stale_seconds: float) -> Mapping[str, CredentialInUse]:
    """Return the current use of every known credential."""
    rows = await database.query(_BUSY, stale_us=int(stale_seconds * _SECOND_US))
    return {
        row["credential"]: CredentialInUse(
            int(row["in_flight"]), int(row["requests"]), int(row["tokens"]), int(row["waiting"])
        )
        for row in rows
    }
