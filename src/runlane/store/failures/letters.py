"""Read dead letters: pages by filter, exact counts, and one with everything about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, Integer, Select, Text, bindparam, cast, func, or_, select

from runlane.domain.dead_letter import (
    UNHANDLED,
    DeadLetter,
    DeadLetterPage,
    DeadLetterSummary,
    FailedStep,
    LetterState,
)
from runlane.domain.run import Status
from runlane.domain.text import load_json
from runlane.domain.views import Attempt
from runlane.errors import InvalidRequest, NotFound
from runlane.store.queue.search import escaped
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member, optional
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import dead_letters, run_results, run_steps, runs
from runlane.store.sql.statement import Row, Statement

_SHOWN_STEPS: Final = 100
# A time after all others.
_LAST: Final = 2**62


class LetterNotFound(NotFound):
    """The run has no dead letter that the caller may see."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f'Run "{run_id}" has no dead letter. List them: GET /api/v2/dead-letters')


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Selects dead letters; a field that is None matches every letter."""

    states: tuple[LetterState, ...] = UNHANDLED
    tenant: str | None = None
    target: str | None = None
    lane: str | None = None
    code: str | None = None
    fingerprint: str | None = None
    step: str | None = None
    assigned_to: str | None = None
    died_from_us: int | None = None
    died_before_us: int | None = None
    text: str | None = None

    def parameters(self, session: Session) -> dict[str, Any]:
        """Return the parameters of `matching`."""
        return {
            "states": session.texts([state.value for state in self.states]),
            "tenant": self.tenant,
            "target": self.target,
            "lane": self.lane,
            "code": self.code,
            "fingerprint": self.fingerprint,
            "step": self.step,
            "inner_step": None if self.step is None else f"%/{escaped(self.step)}",
            "assigned_to": self.assigned_to,
            "died_from": self.died_from_us,
            "died_before": self.died_before_us,
            "pattern": None if self.text is None else f"%{escaped(self.text.lower())}%",
        }


_pattern = bindparam("pattern", type_=Text())
_from = bindparam("died_from", type_=BigInteger())
_before = bindparam("died_before", type_=BigInteger())
_step = bindparam("step", type_=Text())


def _like(column: Any, pattern: Any = _pattern) -> Any:
    return func.lower(column).like(pattern, escape="\\")


MATCHING: Final = (
    member(dead_letters.c.state, "states"),
    optional("target", dead_letters.c.target),
    optional("lane", dead_letters.c.lane),
    optional("code", dead_letters.c.code),
    optional("fingerprint", dead_letters.c.fingerprint),
    optional("assigned_to", dead_letters.c.assigned_to),
    # Either the whole path of a step or its last part, which is the step's id.
    or_(
        cast(_step, Text).is_(None),
        dead_letters.c.last_step == _step,
        dead_letters.c.last_step.like(bindparam("inner_step", type_=Text()), escape="\\"),
    ),
    or_(cast(_from, BigInteger).is_(None), dead_letters.c.died_at >= _from),
    or_(cast(_before, BigInteger).is_(None), dead_letters.c.died_at < _before),
    or_(
        cast(_pattern, Text).is_(None),
        _like(dead_letters.c.message),
        _like(dead_letters.c.run_id),
        _like(dead_letters.c.target),
    ),
)
OF_TENANT: Final = dead_letters.c.tenant == bindparam("tenant", type_=Text())
_at = bindparam("at", type_=BigInteger())
_below = (
    dead_letters.c.died_at <= _at,
    or_(dead_letters.c.died_at < _at, dead_letters.c.run_id < bindparam("below", type_=Text())),
)
# Lists have no inputs and no tracebacks.
_SHOWN = tuple(column for column in dead_letters.c if column.name not in ("input", "error", "attempts"))
_by_age = (dead_letters.c.died_at.desc(), dead_letters.c.run_id.desc())
_limit = bindparam("limit", type_=Integer())


def _page(query: Select[Any]) -> Select[Any]:
    return query.where(*MATCHING, *_below).order_by(*_by_age).limit(_limit)


# The tenant has a statement of its own, so that every plan uses an index, even a prepared one.
_LIST = Statement(
    "list_dead_letters", _page(select(*_SHOWN)), purpose="Read a page of the dead letters of all tenants."
)
_LIST_OF_TENANT = Statement(
    "list_tenant_dead_letters",
    _page(select(*_SHOWN)).where(OF_TENANT),
    purpose="Read a page of the dead letters of a tenant.",
)
_is_open = dead_letters.c.state == lit(LetterState.OPEN)
_COUNT = Statement(
    "count_open_letters",
    select(func.count().label("count"), func.min(dead_letters.c.died_at).label("oldest")).where(_is_open),
    purpose="Count the open dead letters of all tenants.",
)
_COUNT_OF_TENANT = Statement(
    "count_tenant_open_letters",
    select(func.count().label("count"), func.min(dead_letters.c.died_at).label("oldest")).where(_is_open, OF_TENANT),
    purpose="Count the open dead letters of a tenant.",
)
_COUNT_BY_TARGET = Statement(
    "count_open_letters_by_target",
    select(dead_letters.c.target, func.count().label("count"), func.min(dead_letters.c.died_at).label("oldest"))
    .where(_is_open)
    .group_by(dead_letters.c.target)
    .order_by(dead_letters.c.target),
    purpose="Count the open dead letters of each target.",
)
_READ = Statement(
    "read_dead_letter",
    select(dead_letters, runs.c.status, run_results.c.state.label("run_state"))
    .select_from(
        dead_letters.outerjoin(runs, runs.c.id == dead_letters.c.run_id).outerjoin(
            run_results, run_results.c.run_id == dead_letters.c.run_id
        )
    )
    .where(dead_letters.c.run_id == bindparam("run_id")),
    purpose="Read a dead letter.",
)
_FIND = Statement(
    "find_dead_letter",
    select(*_SHOWN).where(dead_letters.c.run_id == bindparam("run_id")),
    purpose="Read a dead letter without its content.",
)
_STEPS = Statement(
    "read_last_steps",
    select(
        run_steps.c.no, run_steps.c.path, run_steps.c.step_id, run_steps.c.kind, run_steps.c.outcome, run_steps.c.error
    )
    .where(
        run_steps.c.run_id == bindparam("run_id"), run_steps.c.no.is_not(None), run_steps.c.outcome != lit("snapshot")
    )
    .order_by(run_steps.c.no.desc())
    .limit(lit(_SHOWN_STEPS)),
    purpose="Read the last recorded steps of a run.",
)


@dataclass(frozen=True, slots=True)
class OpenLetters:
    """The number of open dead letters, and when the oldest of them died."""

    count: int
    oldest_died_at_us: int | None
    target: str = ""


async def list_letters(
    database: Database, wanted: LetterFilter, *, cursor: str | None = None, limit: int = 50
) -> DeadLetterPage:
    """Return a page of matching letters, the latest death first, and the exact number of open ones."""
    at, below = _parse_cursor(cursor)

    async def work(session: Session) -> DeadLetterPage:
        statement = _LIST if wanted.tenant is None else _LIST_OF_TENANT
        rows = await session.fetch(statement, **wanted.parameters(session), at=at, below=below, limit=limit)
        found = tuple(summary(row) for row in rows)
        following = f"{found[-1].died_at_us}:{found[-1].run_id}" if len(found) == limit else None
        return DeadLetterPage(found, (await _count(session, wanted.tenant)).count, following)

    return await database.transact(work)


async def count_open_letters(database: Database, tenant: str | None = None) -> OpenLetters:
    """Return the exact number of open letters, of a tenant or of all."""
    return await database.transact(lambda session: _count(session, tenant))


async def count_open_by_target(database: Database) -> list[OpenLetters]:
    """Return the exact number of open letters of each target."""
    return [OpenLetters(row["count"], row["oldest"], row["target"]) for row in await database.query(_COUNT_BY_TARGET)]


async def find_letter(database: Database, run_id: str) -> Row | None:
    """Return the row of a letter without its content, or None."""
    rows = await database.query(_FIND, run_id=run_id)
    return rows[0] if rows else None


async def find_letter_in(session: Session, run_id: str) -> Row | None:
    """Return the row of a letter without its content, within a transaction."""
    rows = await session.fetch(_FIND, run_id=run_id)
    return rows[0] if rows else None


async def read_letter(database: Database, run_id: str) -> DeadLetter | None:
    """Return the dead letter of a run with everything about it, or None."""
    rows = await database.query(_READ, run_id=run_id)
    if not rows:
        return None
    row = rows[0]
    steps = await database.query(_STEPS, run_id=run_id)
    return from_row(
        DeadLetter,
        row,
        json=("input", "error"),
        state=LetterState(row["state"]),
        attempts=tuple(Attempt(**attempt) for attempt in load_json(row["attempts"])),
        steps=tuple(_failed_step(step) for step in reversed(steps)),
        run_state=None if row["run_state"] is None else load_json(row["run_state"]),
        run_status=None if row["status"] is None else Status(row["status"]),
    )


def summary(row: Row) -> DeadLetterSummary:
    """Return a letter of a list."""
    return from_row(DeadLetterSummary, row, state=LetterState(row["state"]))


async def newest_letter(session: Session, wanted: LetterFilter, fingerprint: str) -> DeadLetterSummary:
    """Return the latest letter of a group."""
    given = {**wanted.parameters(session), "fingerprint": fingerprint, "at": _LAST, "below": "", "limit": 1}
    return summary((await session.fetch(_LIST if wanted.tenant is None else _LIST_OF_TENANT, **given))[0])


async def _count(session: Session, tenant: str | None) -> OpenLetters:
    if tenant is None:
        row = (await session.fetch(_COUNT))[0]
    else:
        row = (await session.fetch(_COUNT_OF_TENANT, tenant=tenant))[0]
    return OpenLetters(row["count"], row["oldest"])


def _failed_step(row: Row) -> FailedStep:
    error = None if row["error"] is None else load_json(row["error"])
    return FailedStep(row["path"], row["step_id"], row["kind"], row["outcome"], error)


def _parse_cursor(cursor: str | None) -> tuple[int, str]:
    if cursor is None:
        return _LAST, ""
    at, _, run_id = cursor.partition(":")
    if not (at.isdecimal() and run_id):
        raise InvalidRequest(f"cursor={cursor!r} is not valid. Pass `next_cursor` of the previous page unchanged.")
    return int(at), run_id
