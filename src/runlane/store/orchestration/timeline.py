"""Reading what the timeline of a run is built from, in two statements and without the large values."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Integer, bindparam, select

from runlane.domain.events import EventType
from runlane.domain.run import RunSummary
from runlane.domain.text import load_json
from runlane.domain.timeline import (
    CALL_EVENTS,
    STEP_EVENTS,
    EventFacts,
    StepFacts,
    Timeline,
    TimelineBuilder,
    build_timeline,
)
from runlane.errors import InvalidRequest
from runlane.store.orchestration.steps import SNAPSHOT_PATH
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member
from runlane.store.sql.schema import run_events, run_steps
from runlane.store.sql.statement import Row, Statement

# Steps and events of one run that are read at most. A run with more has an incomplete timeline.
MAX_READ: Final = 100_000
_STARTS: Final = (EventType.STEP_START, EventType.PARALLEL_START, EventType.LOOP_ITERATION)

_s, _e = run_steps.c, run_events.c
_STEPS = Statement(
    "read_step_facts",
    select(
        _s.path, _s.step_id, _s.kind, _s.attempt, _s.outcome, _s.tries, _s.duration_us, _s.cost_usd, _s.tokens,
        _s.ended_at,
    )
    .where(_s.run_id == bindparam("run_id"), _s.path != lit(SNAPSHOT_PATH), _s.no.is_not(None))
    .order_by(_s.no, _s.path)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read the step records of a run without their values.",
)  # fmt: skip
_EVENTS = Statement(
    "read_events_of_types",
    select(_e.type, _e.attempt, _e.at, _e.data)
    .where(_e.run_id == bindparam("run_id"), member(_e.type, "types"))
    .order_by(_e.seq)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read the events of a run that have one of these types.",
)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The tree of a run's steps. `complete`: nothing was left out because there was too much."""

    builder: TimelineBuilder
    complete: bool


async def read_timeline(
    database: Database,
    run: RunSummary,
    *,
    parent: str = "",
    from_us: int | None = None,
    to_us: int | None = None,
    cursor: str | None = None,
    limit: int = 2000,
) -> Timeline:
    """Return the spans of a run inside `parent`, in order. With a parent, also the calls of its model and tools."""
    offset = 0
    if cursor is not None:
        if not cursor.isdecimal() or len(cursor) > 9:
            raise InvalidRequest("Invalid cursor. Pass the `next_cursor` of the previous page of the timeline.")
        offset = int(cursor)
    types = [*STEP_EVENTS, *CALL_EVENTS] if parent else list(STEP_EVENTS)

    facts = await read_run_facts(database, run, types)
    spans, following = facts.builder.spans(parent, offset=offset, limit=limit, from_us=from_us, to_us=to_us)
    return Timeline(run.id, parent, tuple(spans), None if following is None else str(following), facts.complete)


async def read_run_facts(database: Database, run: RunSummary, types: Sequence[str] = STEP_EVENTS) -> RunFacts:
    """Read the steps of a run, and its events of these types."""

    async def work(session: Session) -> tuple[Sequence[Row], Sequence[Row]]:
        steps = await session.fetch(_STEPS, run_id=run.id, limit=MAX_READ)
        return steps, await session.fetch(_EVENTS, run_id=run.id, types=session.texts(types), limit=MAX_READ)

    steps, events = await database.transact(work)
    # In a thread: a run may have tens of thousands of steps, and the event loop serves streams meanwhile.
    builder = await asyncio.to_thread(_build, steps, events, run.ended_at_us)
    return RunFacts(builder, complete=len(steps) < MAX_READ and len(events) < MAX_READ)


def _build(steps: Sequence[Row], events: Sequence[Row], ended_at_us: int | None) -> TimelineBuilder:
    records = [
        StepFacts(
            row["path"], row["step_id"], row["kind"], row["attempt"], row["outcome"], row["tries"] or 0,
            row["duration_us"], row["cost_usd"], row["tokens"] or 0, row["ended_at"],
        )
        for row in steps
    ]  # fmt: skip
    facts = [EventFacts(row["type"], row["attempt"], row["at"], load_json(row["data"])) for row in events]
    return build_timeline(records, facts, ended_at_us)


async def read_step_starts(database: Database, run_id: str) -> dict[str, int]:
    """Return when each step of a run began first, by its path. Steps whose events were deleted are missing."""

    async def work(session: Session) -> Sequence[Row]:
        return await session.fetch(_EVENTS, run_id=run_id, types=session.texts(_STARTS), limit=MAX_READ)

    found: dict[str, int] = {}
    for row in await database.transact(work):
        found.setdefault(str(load_json(row["data"]).get("path")), row["at"])
    return found
