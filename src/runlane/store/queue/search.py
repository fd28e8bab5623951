"""Search runs with filters, newest first, page by page; and find the tenant of a run.

Ids sort by time, so a page ends at an id and the next one starts below it: nothing is counted or skipped. A page reads
a bounded number of runs, so that no filter can make the database read all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Integer, Select, Text, bindparam, cast, func, or_, select

from runlane.domain.ids import run_id_range
from runlane.domain.run import Run, Status
from runlane.domain.tenant import DEFAULT_TENANT, scoped_key
from runlane.errors import RunNotFound
from runlane.store.queue.claim_survey import all_ready
from runlane.store.queue.runs import STARTED_AT, run_value
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member, optional
from runlane.store.sql.schema import runs
from runlane.store.sql.statement import Statement

_EVERY_STATUS = tuple(status.value for status in Status)


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Selects runs; a field that is None matches every run. An ordering key belongs to one tenant.

    `id_prefix` must fulfil `is_run_id_prefix`.
    """

    statuses: tuple[Status, ...] = ()
    target: str | None = None
    lane: str | None = None
    tenant: str | None = None
    ordering_key: str | None = None
    accepted_from_us: int | None = None
    accepted_before_us: int | None = None
    text: str | None = None
    id_prefix: str | None = None

    @property
    def selective(self) -> bool:
        """Whether it may match only a few of a tenant's runs, beyond what an index finds."""
        return self != RunFilter(tenant=self.tenant, id_prefix=self.id_prefix)


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """A page of runs. `cursor` is the id below which the next page starts, None on the last one.

    `truncated` is True when the page ended because enough runs were read, and not because enough of them matched.
    """

    runs: list[Run]
    cursor: str | None
    truncated: bool


@dataclass(frozen=True, slots=True)
class RunStanding:
    """The tenant of a run, and the position of it and its stream."""

    tenant: str
    status: Status
    first_seq: int
    last_seq: int
    worker_id: str | None
    target: str


_pattern = bindparam("pattern", type_=Text())
_from = bindparam("accepted_from", type_=BigInteger())
_before = bindparam("accepted_before", type_=BigInteger())
# Plain bounds, and the tenant in a separate statement, so that every plan uses an index, even a prepared one.
_within = (runs.c.id < bindparam("below", type_=Text()), runs.c.id >= bindparam("floor", type_=Text()))
_of_tenant = runs.c.tenant == bindparam("tenant", type_=Text())
# Above and below every id, which begins with "run_".
_ABOVE, _BELOW = "zzzz", ""
# How many runs a page examines. A filter that matches few runs would otherwise read all of them.
WINDOW = 20_000
# How many windows a bulk change reads before it reports that there may be more.
_WINDOWS = 50


def _search(query: Select[Any]) -> Select[Any]:
    like = [
        func.lower(column).like(_pattern, escape="\\")
        for column in (runs.c.id, runs.c.target, runs.c.ordering_key, runs.c.progress_note)
    ]
    return (
        query.where(
            *_within,
            member(runs.c.status, "statuses"),
            optional("target", runs.c.target),
            optional("lane", runs.c.lane),
            optional("ordering_key", runs.c.ordering_key),
            or_(cast(_from, BigInteger).is_(None), runs.c.accepted_at >= _from),
            or_(cast(_before, BigInteger).is_(None), runs.c.accepted_at < _before),
            or_(cast(_pattern, Text).is_(None), *like),
        )
        .order_by(runs.c.id.desc())
        .limit(bindparam("limit", type_=Integer()))
    )


_SEARCH = Statement(
    "search_runs",
    _search(select(runs, STARTED_AT)),
    purpose="Search the runs of all tenants, newest first, within a range of ids.",
)
_SEARCH_OF_TENANT = Statement(
    "search_tenant_runs",
    _search(select(runs, STARTED_AT)).where(_of_tenant),
    purpose="Search the runs of a tenant, newest first, within a range of ids.",
)
_floor = (
    select(runs.c.id)
    .where(_within[0])
    .order_by(runs.c.id.desc())
    .limit(lit(1))
    .offset(bindparam("skipped", type_=Integer()))
)
_FLOOR = Statement("search_floor", _floor, purpose="Find the id at which a search of all tenants pauses.")
_FLOOR_OF_TENANT = Statement(
    "search_tenant_floor", _floor.where(_of_tenant), purpose="Find the id at which a search of a tenant pauses."
)
_STANDING = Statement(
    "status_of_run",
    select(runs.c.tenant, runs.c.status, runs.c.first_seq, runs.c.last_seq, runs.c.worker_id, runs.c.target).where(
        runs.c.id == bindparam("run_id")
    ),
    purpose="Read status and tenant of a run.",
)

# Through the partial indexes, however many finished runs are kept.
_RUNNING = Statement(
    "running_runs",
    select(runs, STARTED_AT)
    .where(runs.c.status == lit(Status.RUNNING), optional("tenant", runs.c.tenant))
    .order_by(runs.c.claimed_at)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read running runs, oldest first.",
)
_ready = all_ready(runs.c.lane, runs.c.target, runs.c.tenant, runs.c.accepted_at).c
_QUEUED = Statement(
    "queued_by_target",
    select(_ready.target, func.count().label("count"), func.min(_ready.accepted_at).label("oldest"))
    .where(optional("tenant", _ready.tenant))
    .group_by(_ready.target)
    .order_by(_ready.target),
    purpose="Count the ready runs of each target.",
)
_QUEUED_IN_LANES = Statement(
    "queued_by_lane_and_target",
    select(_ready.lane, _ready.target, func.count().label("count"))
    .group_by(_ready.lane, _ready.target)
    .order_by(_ready.lane, _ready.target),
    purpose="Count the ready runs of each lane and target.",
)


@dataclass(frozen=True, slots=True)
class QueuedTarget:
    """The number of ready runs of a target, and the time of the oldest."""

    target: str
    count: int
    oldest_at_us: int


@dataclass(frozen=True, slots=True)
class WaitingInLane:
    """The number of ready runs of a target in a lane."""

    lane: str
    target: str
    count: int


async def search_runs(
    database: Database, wanted: RunFilter, *, below: str | None = None, limit: int = 50, window: int = WINDOW
) -> FoundRuns:
    """Find the newest matching runs, without input and result, among the first `window` below an id."""

    async def work(session: Session) -> FoundRuns:
        scope = {} if wanted.tenant is None else {"tenant": wanted.tenant}
        # With a prefix, only its range of ids is read.
        bottom, above = (_BELOW, _ABOVE) if wanted.id_prefix is None else run_id_range(wanted.id_prefix)
        top = above if below is None else min(below, above)
        floor = None
        if wanted.selective:
            statement = _FLOOR if wanted.tenant is None else _FLOOR_OF_TENANT
            oldest = await session.fetch(statement, below=top, skipped=window - 1, **scope)
            floor = oldest[0]["id"] if oldest and oldest[0]["id"] > bottom else None
        rows = await session.fetch(
            _SEARCH if wanted.tenant is None else _SEARCH_OF_TENANT,
            **scope,
            **_parameters(session, wanted),
            below=top,
            floor=floor or bottom,
            limit=limit,
        )
        return _found([run_value(row, whole=False) for row in rows], limit, floor)

    return await database.transact(work)


async def search_run_ids(database: Database, wanted: RunFilter, limit: int) -> tuple[list[str], bool]:
    """Return the ids of the newest matching runs, and whether there may be more."""
    ids: list[str] = []
    below: str | None = None
    for _ in range(_WINDOWS):
        found = await search_runs(database, wanted, below=below, limit=limit - len(ids))
        ids += [run.id for run in found.runs]
        below = found.cursor
        if below is None or len(ids) == limit:
            break
    return ids, below is not None


async def running_in(session: Session, tenant: str | None, limit: int) -> list[Run]:
    """Return the running runs, the longest-running first."""
    return [run_value(row, whole=False) for row in await session.fetch(_RUNNING, tenant=tenant, limit=limit)]


async def queued_in(session: Session, tenant: str | None) -> list[QueuedTarget]:
    """Return the number of ready runs by target."""
    return [
        QueuedTarget(row["target"], row["count"], row["oldest"]) for row in await session.fetch(_QUEUED, tenant=tenant)
    ]


async def count_queued_in_lanes(database: Database) -> list[WaitingInLane]:
    """Return the number of ready runs of all tenants by lane and target."""
    return [WaitingInLane(row["lane"], row["target"], row["count"]) for row in await database.query(_QUEUED_IN_LANES)]


async def find_standing(database: Database, run_id: str) -> RunStanding:
    """Return the tenant and the position of a run, without its input and result."""
    rows = await database.query(_STANDING, run_id=run_id)
    if not rows:
        raise RunNotFound(run_id)
    row = rows[0]
    return RunStanding(
        row["tenant"], Status(row["status"]), row["first_seq"], row["last_seq"], row["worker_id"], row["target"]
    )


def _parameters(session: Session, wanted: RunFilter) -> dict[str, Any]:
    key = wanted.ordering_key
    return {
        "statuses": session.texts([status.value for status in wanted.statuses] or _EVERY_STATUS),
        "target": wanted.target,
        "lane": wanted.lane,
        "ordering_key": None if key is None else scoped_key(wanted.tenant or DEFAULT_TENANT, key),
        "accepted_from": wanted.accepted_from_us,
        "accepted_before": wanted.accepted_before_us,
        "pattern": None if wanted.text is None else f"%{_escaped(wanted.text.lower())}%",
    }


def _found(found: list[Run], limit: int, floor: str | None) -> FoundRuns:
    if len(found) == limit:
        return FoundRuns(found, found[-1].id, truncated=False)
    # The whole window was examined, and older runs were not.
    return FoundRuns(found, floor, truncated=floor is not None)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
