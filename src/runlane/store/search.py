"""Finding runs: by what operators know of them, newest first, page by page; and whose a run is.

Ids sort by time, so a page ends at an id and the next one begins below it: nothing is counted or skipped over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Integer, Select, Text, bindparam, cast, func, or_, select

from runlane.errors import RunNotFound
from runlane.model.run import Run, Status
from runlane.model.tenant import DEFAULT_TENANT, scoped_key
from runlane.store.database import Database, Session
from runlane.store.expressions import lit, member
from runlane.store.runs import run_value
from runlane.store.schema import runs
from runlane.store.statement import Row, Statement
from runlane.store.survey import all_ready

_EVERY_STATUS = tuple(status.value for status in Status)


@dataclass(frozen=True, slots=True)
class RunFilter:
    """What runs to find; a field that is None fits every run. An ordering key is one tenant's own."""

    statuses: tuple[Status, ...] = ()
    target: str | None = None
    lane: str | None = None
    tenant: str | None = None
    ordering_key: str | None = None
    accepted_from_us: int | None = None
    accepted_before_us: int | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """Whose a run is, and how far it and its stream have come."""

    tenant: str
    status: Status
    first_seq: int
    last_seq: int
    worker_id: str | None
    target: str


def _fits(name: str, column: Any) -> Any:
    wanted = bindparam(name, type_=Text())
    return or_(cast(wanted, Text).is_(None), column == wanted)


_pattern = bindparam("pattern", type_=Text())
_from = bindparam("accepted_from", type_=BigInteger())
_before = bindparam("accepted_before", type_=BigInteger())
_below = bindparam("below", type_=Text())


def _search(query: Select[Any]) -> Select[Any]:
    like = [
        func.lower(column).like(_pattern, escape="\\")
        for column in (runs.c.id, runs.c.target, runs.c.ordering_key, runs.c.progress_note)
    ]
    return (
        query.where(
            or_(cast(_below, Text).is_(None), runs.c.id < _below),
            member(runs.c.status, "statuses"),
            _fits("target", runs.c.target),
            _fits("lane", runs.c.lane),
            _fits("tenant", runs.c.tenant),
            _fits("ordering_key", runs.c.ordering_key),
            or_(cast(_from, BigInteger).is_(None), runs.c.accepted_at >= _from),
            or_(cast(_before, BigInteger).is_(None), runs.c.accepted_at < _before),
            or_(cast(_pattern, Text).is_(None), *like),
        )
        .order_by(runs.c.id.desc())
        .limit(bindparam("limit", type_=Integer()))
    )


_SEARCH = Statement("search_runs", _search(select(runs)))
_SEARCH_IDS = Statement("search_run_ids", _search(select(runs.c.id)))
_STANDING = Statement(
    "standing_of_run",
    select(runs.c.tenant, runs.c.status, runs.c.first_seq, runs.c.last_seq, runs.c.worker_id, runs.c.target).where(
        runs.c.id == bindparam("run_id")
    ),
)

# Through the partial indexes, however many finished runs are kept.
_RUNNING = Statement(
    "running_runs",
    select(runs)
    .where(runs.c.status == lit(Status.RUNNING), _fits("tenant", runs.c.tenant))
    .order_by(runs.c.claimed_at)
    .limit(bindparam("limit", type_=Integer())),
)
_ready = all_ready(runs.c.lane, runs.c.target, runs.c.tenant, runs.c.accepted_at).c
_QUEUED = Statement(
    "queued_by_target",
    select(_ready.target, func.count().label("count"), func.min(_ready.accepted_at).label("oldest"))
    .where(_fits("tenant", _ready.tenant))
    .group_by(_ready.target)
    .order_by(_ready.target),
)
_QUEUED_IN_LANES = Statement(
    "queued_by_lane_and_target",
    select(_ready.lane, _ready.target, func.count().label("count"))
    .group_by(_ready.lane, _ready.target)
    .order_by(_ready.lane, _ready.target),
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many runs of a target are ready, and since when the oldest is."""

    target: str
    count: int
    oldest_at_us: int


@dataclass(frozen=True, slots=True)
class WaitingInLane:
    """How many runs of a target are ready in a lane."""

    lane: str
    target: str
    count: int


async def search_runs(database: Database, wanted: RunFilter, *, below: str | None = None, limit: int = 50) -> list[Run]:
    """The newest runs that fit, without input and result; `below` is the last id of the page before."""
    return [run_value(row, whole=False) for row in await _rows(database, _SEARCH, wanted, below, limit)]


async def search_run_ids(database: Database, wanted: RunFilter, limit: int) -> list[str]:
    """The ids of the newest runs that fit."""
    return [row["id"] for row in await _rows(database, _SEARCH_IDS, wanted, None, limit)]


async def list_running(database: Database, *, tenant: str | None, limit: int) -> list[Run]:
    """What runs, the longest-running first."""
    return [run_value(row, whole=False) for row in await database.look(_RUNNING, tenant=tenant, limit=limit)]


async def count_queued(database: Database, *, tenant: str | None) -> list[Waiting]:
    """What is ready, by target."""
    return [Waiting(row["target"], row["count"], row["oldest"]) for row in await database.look(_QUEUED, tenant=tenant)]


async def count_queued_in_lanes(database: Database) -> list[WaitingInLane]:
    """What is ready, by lane and target, of every tenant."""
    return [WaitingInLane(row["lane"], row["target"], row["count"]) for row in await database.look(_QUEUED_IN_LANES)]


async def find_standing(database: Database, run_id: str) -> Standing:
    """Whose a run is and where it stands, without its input and result."""
    rows = await database.look(_STANDING, run_id=run_id)
    if not rows:
        raise RunNotFound(run_id)
    row = rows[0]
    return Standing(
        row["tenant"], Status(row["status"]), row["first_seq"], row["last_seq"], row["worker_id"], row["target"]
    )


async def _rows(
    database: Database, statement: Statement, wanted: RunFilter, below: str | None, limit: int
) -> Sequence[Row]:
    key = wanted.ordering_key

    async def work(session: Session) -> Sequence[Row]:
        return await session.fetch(
            statement,
            below=below,
            statuses=session.texts([status.value for status in wanted.statuses] or _EVERY_STATUS),
            target=wanted.target,
            lane=wanted.lane,
            tenant=wanted.tenant,
            ordering_key=None if key is None else scoped_key(wanted.tenant or DEFAULT_TENANT, key),
            accepted_from=wanted.accepted_from_us,
            accepted_before=wanted.accepted_before_us,
            pattern=None if wanted.text is None else f"%{_escaped(wanted.text.lower())}%",
            limit=limit,
        )

    return await database.transact(work)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
