"""Waits: the questions, times and events that a run waits for, with their answers.

A question is opened once and answered once: the answer is a compare-and-set on the row, under a lock on its run. A run
that is busy in another branch continues; a paused one becomes ready. A run that pauses just when it is answered is
requeued by the transaction that pauses it, so no answer is lost. An event that is sent before the run waits for it is
stored, as a row of kind `sent`, for the first step that waits for its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import BigInteger, FromClause, Integer, Text, and_, bindparam, cast, exists, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.base import Executable

from runlane.definitions.schema.step import AnswerableBy
from runlane.domain.run import Status
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import lit, member, now_us
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import run_waits, runs
from runlane.store.sql.statement import Row, Statement

WaitKind = Literal["human", "time", "event", "sent"]


@dataclass(frozen=True, slots=True)
class NewWait:
    """A wait to open. `request` is JSON; it is due `due_us` from now, if ever."""

    path: str
    kind: WaitKind
    step_id: str
    name: str
    request: str
    due_us: int | None = None
    match: str | None = None
    lookback_us: int | None = None

    def row(self, run_id: str, attempt: int) -> tuple[Any, ...]:
        """Return the wait as a member of OPEN_WAITS."""
        return (
            run_id, attempt, self.path, self.kind, self.step_id, self.name, self.request, self.due_us, self.match,
            self.lookback_us,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait. `overdue` is by the clock of the database, `due_in_us` counts from the time of reading."""

    run_id: str
    path: str
    tenant: str
    target: str
    kind: WaitKind
    step_id: str
    name: str
    request: dict[str, Any]
    opened_at_us: int
    due_at_us: int | None
    due_in_us: int | None
    answer: Any
    answered_at_us: int | None
    answered_by: str | None
    note: str | None = None
    claimed_by: str | None = None
    claimed_until_us: int | None = None
    settled_at_us: int | None = None

    @property
    def answerable_by(self) -> AnswerableBy:
        """Return which keys may answer."""
        return self.request.get("answerable_by", "tenant")

    @property
    def answered(self) -> bool:
        return self.answered_at_us is not None

    @property
    def overdue(self) -> bool:
        """Whether its deadline has passed."""
        return self.due_in_us is not None and self.due_in_us <= 0


def _open(batch: FromClause) -> Executable:
    b = batch.c
    fence = and_(runs.c.id == b.run_id, runs.c.attempt == b.attempt)
    statement = insert(run_waits).from_select(
        [
            "run_id", "path", "tenant", "target", "kind", "step_id", "name", "request", "opened_at", "due_at", "match",
            "lookback_us",
        ],
        select(
            b.run_id, b.path, runs.c.tenant, runs.c.target, b.kind, b.step_id, b.name, b.request, now_us(),
            now_us() + b.due_us, b.match, b.lookback_us,
        )
        .select_from(batch.join(runs, fence))
        .where(b.attempt > 0),
    )  # fmt: skip
    # A question is opened once, even by a second attempt. A closed one is opened again: its step is performed again.
    again = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=["run_id", "path"],
        set_={
            "request": again.request,
            "opened_at": again.opened_at,
            "due_at": again.due_at,
            "match": again.match,
            "lookback_us": again.lookback_us,
            "looked_at": None,
            "answer": None,
            "answered_at": None,
            "answered_by": None,
            "settled_at": None,
            "note": None,
            "claimed_by": None,
            "claimed_until": None,
        },
        where=run_waits.c.settled_at.is_not(None),
    ).returning(
        run_waits.c.run_id,
        run_waits.c.path,
        run_waits.c.tenant,
        run_waits.c.target,
        run_waits.c.kind,
        run_waits.c.step_id,
        run_waits.c.name,
        run_waits.c.request,
    )


OPEN_WAITS = Statement(
    "open_waits",
    _open,
    {
        "run_id": Text(),
        "attempt": Integer(),
        "path": Text(),
        "kind": Text(),
        "step_id": Text(),
        "name": Text(),
        "request": Text(),
        "due_us": BigInteger(),
        "match": Text(),
        "lookback_us": BigInteger(),
    },
    purpose="Open waits of an attempt, through the fence.",
)


def _settle(batch: FromClause) -> Executable:
    b = batch.c
    return (
        update(run_waits)
        .where(
            run_waits.c.run_id == b.run_id,
            run_waits.c.path == b.path,
            exists().where(runs.c.id == b.run_id, runs.c.attempt == b.attempt),
        )
        .values(settled_at=now_us())
    )


SETTLE_WAITS = Statement(
    "close_waits",
    _settle,
    {"run_id": Text(), "path": Text(), "attempt": Integer()},
    purpose="Close waits that an attempt has consumed, through the fence.",
)
_waiting = run_waits.alias("waiting")
WAKE_ANSWERED = Statement(
    "wake_answered",
    update(runs)
    .where(
        member(runs.c.id, "ids"),
        runs.c.status == lit(Status.PAUSED),
        exists().where(
            run_waits.c.run_id == runs.c.id,
            run_waits.c.answered_at.is_not(None),
            run_waits.c.settled_at.is_(None),
            or_(
                run_waits.c.kind != lit("sent"),
                exists().where(
                    _waiting.c.run_id == run_waits.c.run_id,
                    _waiting.c.kind == lit("event"),
                    _waiting.c.name == run_waits.c.name,
                    _waiting.c.settled_at.is_(None),
                ),
            ),
        ),
    )
    .values(status=lit(Status.QUEUED), due_at=None)
    .returning(runs.c.id),
    purpose="Requeue runs that were answered while they suspended.",
)

_due_in = (run_waits.c.due_at - now_us()).label("due_in")
WAITS_OF_RUN = Statement(
    "waits_of_run",
    select(run_waits, _due_in)
    .where(run_waits.c.run_id == bindparam("run_id"), run_waits.c.settled_at.is_(None))
    .order_by(run_waits.c.opened_at, run_waits.c.path),
    purpose="Read the open and answered waits of a run.",
)
_opened_at = bindparam("opened_at", type_=BigInteger())
ANSWER = Statement(
    "answer_wait",
    update(run_waits)
    .where(
        run_waits.c.run_id == bindparam("run_id"),
        run_waits.c.path == bindparam("path"),
        run_waits.c.answered_at.is_(None),
        run_waits.c.settled_at.is_(None),
        or_(run_waits.c.due_at.is_(None), run_waits.c.due_at > now_us()),
        # A question that is asked again has the same path.
        or_(cast(_opened_at, BigInteger).is_(None), run_waits.c.opened_at == _opened_at),
    )
    .values(
        answer=bindparam("answer", type_=Text()),
        answered_at=now_us(),
        answered_by=bindparam("answered_by", type_=Text()),
        note=bindparam("note", type_=Text()),
    )
    .returning(run_waits.c.path, run_waits.c.step_id, run_waits.c.kind),
    purpose="Store the answer of an open wait.",
)
KEEP_EVENT = Statement(
    "store_sent_event",
    insert(run_waits).values(
        run_id=bindparam("run_id"),
        path=bindparam("path"),
        tenant=bindparam("tenant"),
        target=bindparam("target"),
        kind="sent",
        step_id="",
        name=bindparam("name"),
        request="{}",
        opened_at=now_us(),
        answer=bindparam("answer", type_=Text()),
        answered_at=now_us(),
        answered_by=bindparam("answered_by", type_=Text()),
    ),
    purpose="Store an event that was sent before the run waits for it.",
)


async def read_waits(database: Database, run_id: str) -> list[Wait]:
    """Return the waits of a run, oldest first, including answered ones that its worker has not consumed yet."""
    return [wait_of(row) for row in await database.query(WAITS_OF_RUN, run_id=run_id)]


def wait_of(row: Row) -> Wait:
    """Return the wait of a row."""
    return from_row(Wait, row, json=("request", "answer"))
