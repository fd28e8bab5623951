"""Search runs with filters, newest first, page by page; and find the tenant of a run.

Ids sort by time, so a page ends at an id and the next one starts below it: nothing is counted or skipped. The filters
choose the index (see `run_lists`); a page checks the filters that the index does not have on a bounded number of runs,
so that no filter can make the database read all of them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Integer, bindparam, func, select

from runlane.domain.ids import run_id_at, run_id_range
from runlane.domain.run import Run, Status
from runlane.domain.tags import fork_mark, schedule_mark
from runlane.domain.tenant import DEFAULT_TENANT, bare_key, scoped_key
from runlane.errors import RunNotFound
from runlane.store.queue.claim_survey import all_ready
from runlane.store.queue.run_checks import LOOKED_UP
from runlane.store.queue.run_ranges import RunIndex
from runlane.store.queue.runs import STARTED_AT, run_value
from runlane.store.sql.database import Database, Session, clock_in
from runlane.store.sql.expressions import lit, optional
from runlane.store.sql.schema import chat_sessions, runs, tenants
from runlane.store.sql.statement import Statement

# Above and below every id, which begins with "run_".
_ABOVE, _BELOW = "zzzz", ""
# How many runs a page examines. A filter without an index that matches few runs would otherwise read all of them.
WINDOW = 10_000
# A list by tag looks up each run that it examines, which takes longer.
_TAG_SHARE = 4
# A filter that reads other rows of each run takes longer, too.
_LOOKUP_SHARE = 4
# Ids contain the time of the process that accepted the run; it may differ from the database's by this much.
MAX_SKEW_US: Final = 600 * 1_000_000


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Selects runs; a field that is None or empty matches every run. An ordering key belongs to one tenant.

    A run must have all of `tags`. `parent` is the run that started it as a tool, `schedule_id` the schedule that
    started it, `forked_from` the run that it was forked from.
    `id_prefix` must fulfil `is_run_id_prefix`. `session_id` is the chat session of the runs, `definition` the version
    that they are pinned to; `roots_only` leaves out runs that others started as tools.
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
    tags: tuple[str, ...] = ()
    parent: str | None = None
    ids: tuple[str, ...] = ()
    schedule_id: str | None = None
    forked_from: str | None = None
    worker_id: str | None = None
    session_id: str | None = None
    error_code: str | None = None
    definition: str | None = None
    roots_only: bool = False
    min_duration_us: int | None = None
    max_duration_us: int | None = None
    min_cost_usd: float | None = None
    max_cost_usd: float | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """Return the tags and marks that a run must have, the most selective first."""
        forks = () if self.forked_from is None else (fork_mark(self.forked_from),)
        scheduled = () if self.schedule_id is None else (schedule_mark(self.schedule_id),)
        return (*forks, *scheduled, *self.tags)

    @property
    def index(self) -> RunIndex:
        """Return the index that finds the matching runs with the fewest others."""
        choices = (
            (RunIndex.IDS, self.ids),
            (RunIndex.PARENT, self.parent),
            (RunIndex.KEY, self.ordering_key),
            (RunIndex.TAG, self.marks),
            (RunIndex.TARGET_AND_LANE, self.target and self.lane),
            (RunIndex.TARGET, self.target),
            (RunIndex.LANE, self.lane),
            (RunIndex.STATUS, self.tenant or self.statuses),
        )
        return next((index for index, given in choices if given), RunIndex.ID)

    @property
    def selective(self) -> bool:
        """Return whether it may match only a few of the runs that its index finds."""
        index = self.index
        found = replace(_ANY, tenant=self.tenant, id_prefix=self.id_prefix)
        if index.by_status:
            found = replace(found, statuses=self.statuses)
        match index:
            case RunIndex.KEY:
                found = replace(found, ordering_key=self.ordering_key)
            case RunIndex.TAG:
                found = replace(found, forked_from=self.forked_from)
                found = found if found.marks else replace(found, schedule_id=self.schedule_id)
                found = found if found.marks else replace(found, tags=self.tags[:1])
            case RunIndex.TARGET | RunIndex.LANE | RunIndex.TARGET_AND_LANE:
                found = replace(found, target=self.target, lane=self.lane)
            case _:
                pass
        return not index.is_short and self != found

    @property
    def looks_up(self) -> bool:
        """Return whether it reads other rows of each run that it checks."""
        return any(getattr(self, name) for name in LOOKED_UP)


_ANY: Final = RunFilter()
_SESSION_KEY = Statement(
    "ordering_key_of_session",
    select(chat_sessions.c.ordering_key, chat_sessions.c.tenant).where(chat_sessions.c.id == bindparam("session_id")),
    purpose="Read the ordering key of the runs of a chat session.",
)


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """A page of runs. `cursor` is the id below which the next page starts, None on the last one.

    `truncated` is True if the page ended because it examined as many runs as it may, not because it is full.
    """

    runs: list[Run]
    cursor: str | None
    truncated: bool


@dataclass(frozen=True, slots=True)
class RunStanding:
    """The tenant and the status of a run, with its worker and the position of its stream."""

    tenant: str
    status: Status
    first_seq: int
    last_seq: int
    worker_id: str | None
    target: str


_TENANTS = Statement("ids_of_tenants", select(tenants.c.id), purpose="Read the ids of all tenants, for a list of all.")
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
    """Find the newest matching runs below an id, without input and result.

    Filters without an index are checked on the newest `window` runs that the index finds.
    """

    # Imported here: the statements of lists take 9 MB, and a worker lists no runs.
    from runlane.store.queue.run_lists import SEARCHES

    async def work(session: Session) -> FoundRuns:
        chosen = await in_session(session, wanted)
        if chosen is None:
            return FoundRuns([], None, truncated=False)
        bottom, top = await _range_of_ids(session, chosen)
        index = chosen.index
        params = await _parameters(session, chosen)
        params |= {"below": top if below is None else min(below, top), "floor": bottom}
        floor = (
            await _floor(session, index, params, window // (_LOOKUP_SHARE if chosen.looks_up else 1))
            if chosen.selective
            else None
        )
        if floor is not None:
            params["floor"] = floor
        rows = await session.fetch(SEARCHES[session.dialect][index], **params, limit=limit)
        found = sorted((run_value(row, whole=False) for row in rows), key=lambda run: run.id, reverse=True)
        if len(found) == limit:
            return FoundRuns(found, found[-1].id, truncated=False)
        # The whole window was examined, and older runs were not.
        return FoundRuns(found, floor, truncated=floor is not None)

    return await database.transact(work)


async def in_session(session: Session, wanted: RunFilter) -> RunFilter | None:
    """Return the filter with the session replaced by the ordering key of its runs; None if no run can match."""
    if wanted.session_id is None:
        return wanted
    for row in await session.fetch(_SESSION_KEY, session_id=wanted.session_id):
        tenant, key = row["tenant"], bare_key(row["ordering_key"])
        if wanted.tenant in (None, tenant) and wanted.ordering_key in (None, key):
            return replace(wanted, session_id=None, tenant=tenant, ordering_key=key)
    return None


async def _range_of_ids(session: Session, wanted: RunFilter) -> tuple[str, str]:
    """Return the lowest id that can match, and an id above the highest one."""
    # With a prefix, only its range of ids is read.
    bottom, top = (_BELOW, _ABOVE) if wanted.id_prefix is None else run_id_range(wanted.id_prefix)
    since, before = wanted.accepted_from_us, wanted.accepted_before_us
    if since is not None or before is not None:
        # The clock of a test database is ahead of that of the processes by the total of its advances.
        ahead = await clock_in(session) - time.time_ns() // 1000
        if since is not None:
            bottom = max(bottom, run_id_at(since - MAX_SKEW_US - max(0, ahead)))
        if before is not None:
            top = min(top, run_id_at(before + MAX_SKEW_US + max(0, -ahead)))
    return bottom, top


async def _floor(session: Session, index: RunIndex, params: dict[str, Any], window: int) -> str | None:
    """Return the id above which the ranges of the index have about `window` runs in total; None if they have fewer.

    Most ranges are short, so the window is shared by those that are not.
    """

    from runlane.store.queue.run_lists import FLOORS

    async def ends(depth: int) -> list[str]:
        rows = await session.fetch(FLOORS[session.dialect][index], **params, skipped=depth - 1)
        return [row["id"] for row in rows if row["id"] is not None]

    if index is RunIndex.TAG:
        window = max(1, window // _TAG_SHARE)
    ranges = len(await ends(1)) if index.by_tenant else 1
    while ranges:
        found = await ends(max(1, window // ranges))
        if len(found) == ranges:
            return max(found)
        ranges = len(found)
    return None


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
    """Return the tenant, the status and the stream position of a run, without its input and result."""
    rows = await database.query(_STANDING, run_id=run_id)
    if not rows:
        raise RunNotFound(run_id)
    row = rows[0]
    return RunStanding(
        row["tenant"], Status(row["status"]), row["first_seq"], row["last_seq"], row["worker_id"], row["target"]
    )


async def _parameters(session: Session, wanted: RunFilter) -> dict[str, Any]:
    key, index = wanted.ordering_key, wanted.index
    statuses = wanted.statuses or tuple(Status)
    waiting = [status.value for status in statuses if status.waiting]
    ended = [status.value for status in statuses if status.terminal]
    params: dict[str, Any] = {
        "target": wanted.target,
        "lane": wanted.lane,
        "accepted_from": wanted.accepted_from_us,
        "accepted_before": wanted.accepted_before_us,
        "pattern": None if wanted.text is None else f"%{escaped(wanted.text.lower())}%",
        "tenant": wanted.tenant,
        "ordering_key": None if key is None else scoped_key(wanted.tenant or DEFAULT_TENANT, key),
        "parent": wanted.parent,
        "ids": session.texts(wanted.ids),
        "statuses": session.texts([status.value for status in statuses]),
        "waiting_statuses": session.texts(waiting),
        "ended_statuses": session.texts(ended),
        "with_running": Status.RUNNING in statuses,
        "worker_id": wanted.worker_id,
        "error_code": wanted.error_code,
        "definition": wanted.definition,
        "roots_only": wanted.roots_only,
        "min_duration_us": wanted.min_duration_us,
        "max_duration_us": wanted.max_duration_us,
        "min_cost_usd": wanted.min_cost_usd,
        "max_cost_usd": wanted.max_cost_usd,
    }
    if index.by_tenant:
        owners = [row["id"] for row in await session.fetch(_TENANTS)] if wanted.tenant is None else [wanted.tenant]
        params["tenants"] = session.texts(owners)
    others = list(wanted.marks)
    if index is RunIndex.TAG:
        params["tag"] = others.pop(0)
    return params | {"other_tags": session.texts(sorted({*others})), "other_count": len({*others})}


def escaped(text: str) -> str:
    """Return text escaped for a LIKE pattern, which then matches it literally."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
