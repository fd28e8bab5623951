"""The inbox: open questions to people, oldest first; a single question with its answer; and its current reader.

The index of open questions is small, whatever the number of runs: it has only what waits for a person now. Filters
without an index are checked on a bounded number of questions per page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from typing import cast as cast_to

from sqlalchemy import BigInteger, Integer, Text, and_, bindparam, cast, func, or_, select, update

from runlane.domain.wait import InboxCount, QuestionKind, question_kind
from runlane.errors import Conflict, NotFound
from runlane.store.orchestration.waits import Wait, wait_of
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_us, optional
from runlane.store.sql.page_bytes import is_cut, within_bytes
from runlane.store.sql.schema import run_waits, runs
from runlane.store.sql.statement import Statement

# The maximum number of questions that one page examines if a filter has no index.
WINDOW: Final = 5000
# The number at which counting stops.
MAX_COUNTED: Final = 1000
CLAIM_SECONDS: Final = 600
_CHUNK: Final = 500
# A time after every question.
_LAST_MOMENT: Final = 2**62

_w = run_waits.c
_due_in = (_w.due_at - now_us()).label("due_in")
_after = bindparam("after_at", type_=BigInteger())
_after_run = bindparam("after_run", type_=Text())
_due_before = bindparam("due_before", type_=BigInteger())
_asked_before = bindparam("asked_before", type_=BigInteger())
_open = (
    _w.kind == lit("human"),
    _w.answered_at.is_(None),
    _w.settled_at.is_(None),
    runs.c.ended_at.is_(None),
    or_(_w.due_at.is_(None), _w.due_at > now_us()),
    optional("tenant", _w.tenant),
)
_of_open_runs = run_waits.join(runs, runs.c.id == _w.run_id)
_INBOX = Statement(
    "inbox",
    within_bytes(
        select(run_waits, _due_in).select_from(_of_open_runs),
        *_open,
        optional("target", _w.target),
        or_(cast(_due_before, BigInteger).is_(None), _w.due_at < _due_before),
        _w.opened_at < func.coalesce(_asked_before, lit(_LAST_MOMENT)),
        or_(
            _w.opened_at > func.coalesce(_after, lit(-1)),
            and_(_w.opened_at == _after, _w.run_id > _after_run),
            # Branches of one run may ask at the same time.
            and_(_w.opened_at == _after, _w.run_id == _after_run, _w.path > bindparam("after_path", type_=Text())),
        ),
        keys=[_w.run_id, _w.path],
        order=[(_w.opened_at, False), (_w.run_id, False), (_w.path, False)],
        large=[_w.request],
        limit=bindparam("limit", type_=Integer()),
    ),
    purpose="Read a page of open questions to people, oldest first.",
)
_PATHS = Statement(
    "inbox_paths",
    select(_w.path, _w.opened_at).select_from(_of_open_runs).where(*_open).limit(lit(MAX_COUNTED + 1)),
    purpose="Read the paths of open questions to people, to count them by kind.",
)
_one = (_w.run_id == bindparam("run_id"), _w.path == bindparam("path"), _w.kind == lit("human"))
_ONE = Statement(
    "read_question",
    select(run_waits, _due_in).where(*_one),
    purpose="Read one question of a run, open or not.",
)
_me = bindparam("me", type_=Text())
_CLAIM = Statement(
    "claim_question",
    update(run_waits)
    .where(
        *_one,
        _w.answered_at.is_(None),
        _w.settled_at.is_(None),
        or_(_w.claimed_by.is_(None), _w.claimed_by == _me, _w.claimed_until < now_us()),
    )
    .values(claimed_by=_me, claimed_until=now_us() + lit(CLAIM_SECONDS * 1_000_000))
    .returning(run_waits, _due_in),
    purpose="Note who reads a question, if it is not claimed.",
)
_RELEASE = Statement(
    "release_question",
    update(run_waits)
    .where(*_one, _w.claimed_by == _me)
    .values(claimed_by=None, claimed_until=None)
    .returning(run_waits, _due_in),
    purpose="Note that a question is no longer read.",
)


@dataclass(frozen=True, slots=True)
class InboxFilter:
    """Selects open questions. `agent` and `tool` are named in the context of the question."""

    tenant: str | None = None
    target: str | None = None
    due_before_us: int | None = None
    asked_before_us: int | None = None
    kinds: Sequence[QuestionKind] = ()
    agent: str | None = None
    tool: str | None = None

    def matches(self, wait: Wait) -> bool:
        """Return whether a question matches the filters that have no index."""
        context = wait.request.get("context")
        known = cast_to("dict[str, Any]", context) if isinstance(context, dict) else {}
        return (
            (not self.kinds or question_kind(wait.path) in self.kinds)
            and (self.tool is None or known.get("tool_name") == self.tool)
            and (self.agent is None or self.agent in (known.get("agent_id"), wait.target.removeprefix("agent:")))
        )

    @property
    def scans(self) -> bool:
        """Whether questions have to be examined one by one."""
        return bool(self.kinds) or self.agent is not None or self.tool is not None


async def read_inbox(
    database: Database, wanted: InboxFilter, after: tuple[int, str, str] | None = None, limit: int = 100
) -> tuple[list[Wait], Wait | None]:
    """Return open questions, and the last examined one if more may follow."""
    found: list[Wait] = []
    looked_at = 0
    while True:
        chunk = _CHUNK if wanted.scans else limit
        rows = await database.query(
            _INBOX,
            tenant=wanted.tenant,
            target=wanted.target,
            due_before=wanted.due_before_us,
            asked_before=wanted.asked_before_us,
            after_at=None if after is None else after[0],
            after_run=None if after is None else after[1],
            after_path=None if after is None else after[2],
            limit=chunk,
        )
        for row in rows:
            wait = wait_of(row)
            after = (wait.opened_at_us, wait.run_id, wait.path)
            if wanted.matches(wait):
                found.append(wait)
                if len(found) == limit:
                    return found, wait
        looked_at += len(rows)
        if len(rows) < chunk and not is_cut(rows):
            return found, None
        if looked_at >= WINDOW or (found and is_cut(rows)):
            return found, wait_of(rows[-1])


async def count_inbox(database: Database, tenant: str | None) -> InboxCount:
    """Return the number of open questions of each kind, up to a bound."""
    rows = await database.query(_PATHS, tenant=tenant)
    counts = Counter(question_kind(row["path"]) for row in rows[:MAX_COUNTED])
    newest = max((row["opened_at"] for row in rows), default=None)
    by_kind = {kind: counts[kind] for kind in QuestionKind}
    return InboxCount(counts.total(), by_kind, len(rows) <= MAX_COUNTED, newest)


async def find_question(database: Database, run_id: str, path: str) -> Wait:
    """Return a question of a run, whether it is open or not."""
    rows = await database.query(_ONE, run_id=run_id, path=path)
    if not rows:
        raise _no_question(run_id, path)
    return wait_of(rows[0])


async def claim_question(database: Database, run_id: str, path: str, claimed_by: str) -> Wait:
    """Note for ten minutes that this caller reads a question. Raise Conflict if another one does."""

    async def work(session: Session) -> Wait:
        for row in await session.fetch(_CLAIM, run_id=run_id, path=path, me=claimed_by):
            return wait_of(row)
        for row in await session.fetch(_ONE, run_id=run_id, path=path):
            known = wait_of(row)
            if known.answered or known.settled_at_us is not None:
                raise Conflict(f"The question of run {run_id} at {path} is not open any more.")
            raise Conflict(f'"{known.claimed_by}" reads the question of run {run_id} at {path} at the moment.')
        raise _no_question(run_id, path)

    return await database.transact(work)


async def release_question(database: Database, run_id: str, path: str, claimed_by: str) -> Wait:
    """Note that this caller no longer reads a question. Repeating is harmless."""

    async def work(session: Session) -> Wait:
        for row in await session.fetch(_RELEASE, run_id=run_id, path=path, me=claimed_by):
            return wait_of(row)
        for row in await session.fetch(_ONE, run_id=run_id, path=path):
            return wait_of(row)
        raise _no_question(run_id, path)

    return await database.transact(work)


def _no_question(run_id: str, path: str) -> NotFound:
    return NotFound(f'Run {run_id} has no question at "{path[:200]}". Use a path that the inbox lists.')
