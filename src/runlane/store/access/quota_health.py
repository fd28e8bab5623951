"""Read the quotas that are nearly used up, for `runlane doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import or_, select

from runlane.domain.quota import DAY_US, RUNS_PER_DAY
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import lit, now_once
from runlane.store.sql.schema import tenant_quotas
from runlane.store.sql.statement import Statement

_NAMED: Final = 10
_q = tenant_quotas.c
_NEARLY = Statement(
    "nearly_used_quotas",
    select(_q.tenant, _q.name, _q.most, _q.used)
    # Four fifths, without fractions.
    .where(
        _q.used * lit(5) >= _q.most * lit(4),
        _q.most > lit(0),
        or_(_q.name != lit(RUNS_PER_DAY), _q.day == now_once() // lit(DAY_US)),
    )
    .order_by(_q.tenant, _q.name)
    .limit(lit(_NAMED)),
    purpose="Find quotas of which four fifths are used, among those whose use is stored.",
)


@dataclass(frozen=True, slots=True)
class NearlyUsed:
    """A quota of a tenant, with its use."""

    tenant: str
    name: str
    limit: int
    used: int


async def read_nearly_used(database: Database) -> list[NearlyUsed]:
    """Return the quotas that are nearly used up: runs per day and stored bytes."""
    return [NearlyUsed(row["tenant"], row["name"], row["most"], row["used"]) for row in await database.query(_NEARLY)]
