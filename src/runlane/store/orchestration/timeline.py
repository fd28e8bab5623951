"""Read the timeline of a run: its step records, and the events of the spans that a page shows.

The paths of events are read first. They decide which spans are shown, and only their events are read with their values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Integer, Text, and_, bindparam, func, or_, select

from runlane.domain.run import RunSummary
from runlane.domain.text import load_json
from runlane.domain.timeline import Timeline, TimelineBuilder, build_timeline
from runlane.domain.timeline_facts import CALL_EVENTS, DECISION_EVENTS, STEP_EVENTS, EventFacts, StepFacts
from runlane.domain.timeline_outline import EventHead, Outline
from runlane.errors import InvalidRequest
from runlane.store.orchestration.steps import SNAPSHOT_PATH
from runlane.store.orchestration.timeline_groups import PART_STARTS, LongGroup, read_long_groups
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import begins_with_any, first_segment, json_text, lit, member, member_number
from runlane.store.sql.schema import run_events, run_steps
from runlane.store.sql.statement import Row, Statement

# Steps and events of one run that are read at most. A run with more has an incomplete timeline.
MAX_READ: Final = 100_000

_s, _e = run_steps.c, run_events.c
_path = json_text(_e.data, lit("path")).label("path")
_of_types = (_e.run_id == bindparam("run_id"), member(_e.type, "types"))
_limit = bindparam("limit", type_=Integer())
_prefix = bindparam("prefix", type_=Text())
_facts_of = (
    _s.path, _s.step_id, _s.kind, _s.attempt, _s.outcome, _s.tries, _s.duration_us, _s.cost_usd, _s.tokens, _s.ended_at
)  # fmt: skip
_records = (
    select(*_facts_of)
    .where(_s.run_id == bindparam("run_id"), _s.path != lit(SNAPSHOT_PATH), _s.no.is_not(None))
    .order_by(_s.no, _s.path)
    .limit(_limit)
)
_all_heads = select(_e.seq, _e.type, _e.at, _path).where(*_of_types).subquery("heads")
_heads_in_order = select(_all_heads).order_by(_all_heads.c.seq).limit(_limit)
_STEPS = Statement("read_step_facts", _records, purpose="Read the step records of a run without their values.")
_HEADS = Statement(
    "read_event_heads",
    _heads_in_order,
    purpose="Read the number, the type and the path of the events of a run that have one of these types.",
)


def _shown(path: Any) -> tuple[Any, ...]:
    """Return the condition that a path is outside of every long group, or in a part that the page shows."""
    part = first_segment(func.substr(path, func.length(_prefix) + lit(1)))
    inside = func.substr(path, lit(1), func.length(_prefix)) == _prefix
    return (or_(~inside, member(part, "parts")), ~begins_with_any(path, "hidden"))


_SHOWN_STEPS = Statement(
    "read_shown_step_facts",
    _records.where(*_shown(_s.path)),
    purpose="Read the step records of a run outside of long groups, and those of some parts of one.",
)
_begins_part = or_(*(_all_heads.c.type == lit(kind) for kind in PART_STARTS))
_SHOWN_HEADS = Statement(
    "read_shown_event_heads",
    _heads_in_order.where(~and_(_begins_part, member(_all_heads.c.path, "groups")), *_shown(_all_heads.c.path)),
    purpose="Read the paths of the events of a run outside of long groups, and those of some parts of one.",
)
_EVENTS = Statement(
    "read_numbered_events",
    select(_e.type, _e.attempt, _e.at, _e.data)
    .where(_e.run_id == bindparam("run_id"), member_number(_e.seq, "numbers"))
    .order_by(_e.seq),
    purpose="Read the events of a run that have one of these numbers.",
)


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
    types = [*STEP_EVENTS, *CALL_EVENTS] if parent else STEP_EVENTS
    # A page of a long group is chosen by the numbers of its parts, unless their times matter.
    timed = from_us is not None or to_us is not None
    facts = await _read_shown(database, run, types, None if timed else _Page(parent, offset, limit))
    group = facts.parent
    # The children of a step without inner steps are its calls, which the outline does not have.
    skipped = offset if group is None else 0
    # In a thread: a run may have thousands of steps beside each other, and the event loop serves streams meanwhile.
    outline = await asyncio.to_thread(_outline, facts, run.ended_at_us, parent)
    page = await asyncio.to_thread(lambda: outline.page(offset=skipped, limit=limit, from_us=from_us, to_us=to_us))
    events = await _read_events(database, run.id, page.events)
    kinds = {} if group is None else {parent: group.kind}
    builder = build_timeline(page.records, events, run.ended_at_us, page.summaries, kinds)
    spans, stopped = builder.spans(parent, offset=0 if outline.has_parts else offset, limit=limit)
    following = page.next_offset if stopped is None else stopped + (skipped if outline.has_parts else 0)
    if group is not None:
        rest = None if facts.at_end else offset + limit
        following = rest if following is None else offset + following
    return Timeline(run.id, parent, tuple(spans), None if following is None else str(following), facts.complete)


class _Page(NamedTuple):
    parent: str
    offset: int
    limit: int


class _Facts(NamedTuple):
    """The rows from which a page is built. `parent` is the group of its parts, if they were chosen by number."""

    steps: Sequence[Row]
    heads: Sequence[Row]
    groups: Sequence[LongGroup]
    parent: LongGroup | None = None
    at_end: bool = True

    @property
    def complete(self) -> bool:
        return len(self.steps) < MAX_READ and len(self.heads) < MAX_READ


async def _read_shown(database: Database, run: RunSummary, types: Sequence[str], page: _Page | None) -> _Facts:
    async def work(session: Session) -> _Facts:
        if page is None:
            steps = await session.fetch(_STEPS, run_id=run.id, limit=MAX_READ)
            heads = await session.fetch(_HEADS, run_id=run.id, types=session.texts(types), limit=MAX_READ)
            return _Facts(steps, heads, ())
        found = await read_long_groups(session, run.id, page.parent, run.ended_at_us)
        parent = next((group for group in found if group.path == page.parent), None)
        groups = [group for group in found if group is not parent]
        # Without a group to page through, no path is inside it.
        parts = [] if parent is None else parent.numbers(page.offset, page.limit)
        params = {
            "run_id": run.id,
            "prefix": "/" if parent is None else f"{parent.path}/",
            "parts": session.texts(parts),
            "hidden": session.texts([f"{group.path}/" for group in groups]),
            "limit": MAX_READ,
        }
        steps = await session.fetch(_SHOWN_STEPS, **params)
        # Two of the events that begin parts of a long group stand for all of them.
        known = {"groups": session.texts([group.path for group in found]), "types": session.texts(types)}
        heads = await session.fetch(_SHOWN_HEADS, **params, **known)
        at_end = parent is None or page.offset + page.limit >= parent.summary.parts
        return _Facts(steps, heads, groups, parent, at_end)

    return await database.transact(work)


def _outline(facts: _Facts, ended_at_us: int | None, parent: str) -> Outline:
    groups = [*facts.groups, *(() if facts.parent is None else (facts.parent,))]
    summed_up = {group.path: group.summary for group in groups}
    heads = [*_heads(facts.heads), *(head for group in facts.groups for head in group.heads)]
    if facts.parent is not None and facts.at_end:
        heads.append(facts.parent.heads[-1])
    heads.sort()
    return Outline(_facts(facts.steps), heads, ended_at_us, parent=parent, groups=summed_up)


async def read_standings(database: Database, run: RunSummary) -> TimelineBuilder:
    """Return the tree of a run's steps with its decisions, but without names and start times of ended steps."""
    steps, heads = await _read(database, run.id, [*STEP_EVENTS, *DECISION_EVENTS])
    facts = await asyncio.to_thread(_facts, steps)

    def choose() -> list[int]:
        found = _heads(heads)
        chosen = Outline(facts, found, run.ended_at_us).open_events()
        return sorted({*chosen, *(head.seq for head in found if head.type in DECISION_EVENTS)})

    events = await _read_events(database, run.id, await asyncio.to_thread(choose))
    return await asyncio.to_thread(build_timeline, facts, events, run.ended_at_us)


async def _read(database: Database, run_id: str, types: Sequence[str]) -> tuple[Sequence[Row], Sequence[Row]]:
    async def work(session: Session) -> tuple[Sequence[Row], Sequence[Row]]:
        steps = await session.fetch(_STEPS, run_id=run_id, limit=MAX_READ)
        return steps, await session.fetch(_HEADS, run_id=run_id, types=session.texts(types), limit=MAX_READ)

    return await database.transact(work)


async def _read_events(database: Database, run_id: str, numbers: Sequence[int]) -> list[EventFacts]:
    async def work(session: Session) -> Sequence[Row]:
        return await session.fetch(_EVENTS, run_id=run_id, numbers=session.texts([str(number) for number in numbers]))

    rows = await database.transact(work) if numbers else ()
    return [EventFacts(row["type"], row["attempt"], row["at"], load_json(row["data"])) for row in rows]


def _heads(rows: Sequence[Row]) -> list[EventHead]:
    return [EventHead(row["seq"], row["type"], row["at"], row["path"]) for row in rows if row["path"]]


def _facts(rows: Sequence[Row]) -> list[StepFacts]:
    return [
        StepFacts(
            row["path"], row["step_id"], row["kind"], row["attempt"], row["outcome"], row["tries"] or 0,
            row["duration_us"], row["cost_usd"], row["tokens"] or 0, row["ended_at"],
        )
        for row in rows
    ]  # fmt: skip
