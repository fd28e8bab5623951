"""Long loops and parallel steps of a run as one row each, counted by the database.

A loop of ten thousand rounds is one span on a timeline. The database sums up its records and events; a page that shows
rounds of the loop reads only the records and events of these rounds.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sqlalchemy import Integer, Text, bindparam, case, exists, func, literal_column, or_, select

from runlane.domain.events import EventType
from runlane.domain.timeline import MAX_PARTS
from runlane.domain.timeline_facts import PartsSummary
from runlane.domain.timeline_outline import EventHead
from runlane.store.orchestration.steps import SNAPSHOT_PATH
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import first_segment, json_text, lit, member
from runlane.store.sql.schema import run_events, run_steps, run_waits
from runlane.store.sql.statement import Row, Statement

PART_STARTS: Final = (EventType.LOOP_ITERATION, EventType.BRANCH_START)
# Groups that are summed up; of a run with more, the others are read record by record.
_MAX_GROUPS: Final = 100

_s, _e, _w = run_steps.c, run_events.c, run_waits.c
_SLASH: Final[Any] = literal_column("'/'", Text())
_prefix = bindparam("prefix", type_=Text())
_run = bindparam("run_id", type_=Text())
_started = select(_e.seq, _e.type, _e.at, json_text(_e.data, lit("path")).label("path")).where(_e.run_id == _run)


def _within(path: Any) -> Any:
    return func.substr(path, lit(1), func.length(_prefix)) == _prefix


def _child(path: Any) -> Any:
    return first_segment(func.substr(path, func.length(_prefix) + lit(1)))


_starts = _started.where(member(_e.type, "types")).subquery("starts")
_GROUPS = Statement(
    "find_long_groups",
    select(
        _starts.c.path,
        func.min(_starts.c.type).label("type"),
        func.count().label("parts"),
        func.min(_starts.c.seq).label("first_seq"),
        func.max(_starts.c.seq).label("last_seq"),
        func.min(_starts.c.at).label("first_at"),
        func.max(_starts.c.at).label("last_at"),
    )
    .group_by(_starts.c.path)
    .having(func.count() > bindparam("most", type_=Integer()))
    .order_by(func.count().desc(), _starts.c.path)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Find the loops and parallel steps of a run with many parts.",
)
_parts = (
    select(
        _child(_s.path).label("child"),
        func.max(case((_s.outcome == lit("failed"), 1), else_=0)).label("failed"),
        func.min(_s.ended_at - func.coalesce(_s.duration_us, lit(0))).label("started"),
        func.sum(_s.cost_usd).label("cost"),
        func.sum(_s.tokens).label("tokens"),
    )
    .where(_s.run_id == _run, _s.path != lit(SNAPSHOT_PATH), _s.no.is_not(None), _within(_s.path))
    .group_by(_child(_s.path))
    .subquery("parts")
)
_SUMMARY = Statement(
    "sum_up_group",
    select(
        func.count().label("parts"),
        func.sum(_parts.c.failed).label("failed"),
        func.min(_parts.c.started).label("started"),
        func.sum(_parts.c.cost).label("cost"),
        func.sum(_parts.c.tokens).label("tokens"),
        func.max(case((_parts.c.child == lit("0"), 1), else_=0)).label("from_zero"),
    ),
    purpose="Count the parts of a loop or parallel step that have records.",
)
_begun = _started.where(_e.type == lit(EventType.STEP_START)).subquery("begun")
# A record of the step, or of a step inside it, because a step that contains others has no record of its own.
_recorded = exists().where(
    _s.run_id == _run,
    or_(
        _s.path == _begun.c.path,
        func.substr(_s.path, lit(1), func.length(_begun.c.path) + lit(1)) == _begun.c.path.op("||")(_SLASH),
    ),
)
_OPEN = Statement(
    "find_open_parts",
    select(_child(_begun.c.path).label("child")).where(_within(_begun.c.path), ~_recorded).distinct(),
    purpose="Find the parts of a loop or parallel step with a step that has begun and has no record.",
)
_WAITING = Statement(
    "find_waiting_parts",
    select(_child(_w.path).label("child"))
    .where(_w.run_id == _run, _within(_w.path), _w.answered_at.is_(None), _w.settled_at.is_(None))
    .distinct(),
    purpose="Find the parts of a loop or parallel step that wait.",
)


class LongGroup(NamedTuple):
    """A loop or parallel step with many parts, and the first and last event that began one of them."""

    path: str
    kind: str
    first_number: int
    summary: PartsSummary
    heads: tuple[EventHead, ...]

    def numbers(self, offset: int, limit: int) -> list[str]:
        """Return the names of its parts from an offset on."""
        first = self.first_number + offset
        return [str(number) for number in range(first, min(first + limit, self.first_number + self.summary.parts))]


async def read_long_groups(session: Session, run_id: str, parent: str, ended_at_us: int | None) -> list[LongGroup]:
    """Return the outermost long groups of a run inside `parent`, and `parent` itself if it is one."""
    params = {"types": session.texts(PART_STARTS), "most": MAX_PARTS, "limit": _MAX_GROUPS}
    inside = f"{parent}/" if parent else ""
    found = [
        row
        for row in await session.fetch(_GROUPS, run_id=run_id, **params)
        if row["path"] and (row["path"] == parent or row["path"].startswith(inside))
    ]
    hidden = [f"{row['path']}/" for row in found if row["path"] != parent]
    outermost = [row for row in found if not any(row["path"].startswith(prefix) for prefix in hidden)]
    return [await _sum_up(session, run_id, row, ended_at_us) for row in outermost]


async def _sum_up(session: Session, run_id: str, group: Row, ended_at_us: int | None) -> LongGroup:
    params = {"run_id": run_id, "prefix": f"{group['path']}/"}
    (row,) = await session.fetch(_SUMMARY, **params)
    parts = max(group["parts"], row["parts"])
    open_parts: set[str] = set()
    waiting: set[str] = set()
    if ended_at_us is None:
        open_parts = {found["child"] for found in await session.fetch(_OPEN, **params)}
        waiting = {found["child"] for found in await session.fetch(_WAITING, **params)}
    outcomes = {"failed": row["failed"] or 0, "running": len(open_parts - waiting), "waiting": len(waiting)}
    outcomes["done"] = parts - sum(outcomes.values())
    summary = PartsSummary(
        parts,
        {name: count for name, count in sorted(outcomes.items()) if count > 0},
        group["first_at"],
        None,
        row["cost"],
        row["tokens"] or 0,
    )
    heads = [EventHead(group["first_seq"], group["type"], group["first_at"], group["path"])]
    if group["last_seq"] != group["first_seq"]:
        heads.append(EventHead(group["last_seq"], group["type"], group["last_at"], group["path"]))
    first = 0 if group["type"] == EventType.BRANCH_START or row["from_zero"] else 1
    kind = "parallel" if group["type"] == EventType.BRANCH_START else "loop"
    return LongGroup(group["path"], kind, first, summary, tuple(heads))
