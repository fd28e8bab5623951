"""Count the runs whose first attempt started within a time.

No index has the start of every run, because each claim would have to write it. A run that has started is now running,
has ended since then, or waits after its first attempt; each of the three is read by an index that has only those.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import BigInteger, bindparam, func, select, union_all

from runlane.domain.run import Status
from runlane.store.queue.record import AttemptOutcome
from runlane.store.queue.runs import STARTED_AT
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit
from runlane.store.sql.schema import run_attempts, runs
from runlane.store.sql.statement import Statement

_from = bindparam("from_us", type_=BigInteger())
_to = bindparam("to_us", type_=BigInteger())
_about = (runs.c.tenant, runs.c.lane, runs.c.target)
_first = run_attempts.c
_MINUTE_US = 60_000_000
_started = union_all(
    select(*_about, STARTED_AT).where(runs.c.ended_at.is_not(None), runs.c.ended_at >= _from),
    select(*_about, STARTED_AT).where(runs.c.status == lit(Status.RUNNING)),
    select(*_about, _first.started_at)
    .select_from(run_attempts.join(runs, runs.c.id == _first.run_id))
    .where(
        _first.attempt == lit(1),
        _first.outcome != lit(AttemptOutcome.COMPLETED),
        _first.started_at >= _from,
        _first.started_at < _to,
        runs.c.ended_at.is_(None),
        runs.c.status != lit(Status.RUNNING),
    ),
).subquery("started")
_s = _started.c
_minute = (_s.started_at // lit(_MINUTE_US)).label("minute")
_COUNT = Statement(
    "count_started_runs",
    select(_minute, _s.tenant, _s.lane, _s.target, func.count().label("runs"))
    .where(_s.started_at >= _from, _s.started_at < _to)
    .group_by(_minute, _s.tenant, _s.lane, _s.target),
    purpose="Count the runs that were started within a time, by minute, tenant, lane and target.",
)


class Starts(NamedTuple):
    """How many runs of a group started in the minute that began at this second."""

    bucket: int
    lane: str
    target: str
    tenant: str
    runs: int


async def count_starts(session: Session, from_us: int, to_us: int) -> list[Starts]:
    """Return the starts of each minute that has any."""
    rows = await session.fetch(_COUNT, from_us=from_us, to_us=to_us)
    return [Starts(row["minute"] * 60, row["lane"], row["target"], row["tenant"], row["runs"]) for row in rows]
