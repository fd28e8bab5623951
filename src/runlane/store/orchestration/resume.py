"""Answers to waiting runs: from a person, or an event from another system. Exactly one answer is accepted."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Text, bindparam, case, func, select, update

from runlane.domain.events import EventType, Notice
from runlane.domain.ids import new_id
from runlane.domain.run import Status
from runlane.domain.text import dump_json, utf8_size
from runlane.errors import RunNotFound, WrongState
from runlane.store.orchestration.waits import ANSWER, KEEP_EVENT, WAITS_OF_RUN, Wait, wait_of
from runlane.store.queue.events import append
from runlane.store.queue.limits import queued_status, wait_for_limits
from runlane.store.queue.run_changes import RunChange, operate
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import byte_size, lit
from runlane.store.sql.schema import run_waits, runs
from runlane.store.sql.statement import Row, Statement
from runlane.store.webhooks.outbox import has_endpoints
from runlane.store.webhooks.run_messages import report_answered

# The maximum number of events that are stored for steps which do not wait yet. A sender of more events probably uses a
# wrong name or run.
MAX_SENT = 1000
# The bytes of the answers and events that the worker of a run has not read. It reads all of them at once.
MAX_UNREAD_BYTES = 16 * 1024 * 1024

_by_id = runs.c.id == bindparam("run_id")
_LOCK_RUN = Statement(
    "lock_answered_run",
    select(runs.c.status, runs.c.tenant, runs.c.target, has_endpoints(runs.c.tenant).label("notifies"))
    .where(_by_id)
    .with_for_update(),
    purpose="Lock a run while one of its waits is answered.",
)
# A running run reads the answer itself; only a paused one has to be woken.
_RESUME = Statement(
    "resume_run",
    update(runs)
    .where(_by_id, runs.c.ended_at.is_(None))
    .values(
        status=case((runs.c.status == lit(Status.PAUSED), queued_status()), else_=runs.c.status),
        due_at=case((runs.c.status == lit(Status.PAUSED), None), else_=runs.c.due_at),
        last_seq=runs.c.last_seq + lit(1),
    )
    .returning(
        runs.c.id, runs.c.lane, runs.c.status, runs.c.attempt, runs.c.last_seq, runs.c.hooks, runs.c.ordering_key,
        runs.c.holds_key,
    ),
    purpose="Requeue a suspended run after an answer, and number the event of the answer.",
)  # fmt: skip
_WAITS_FOR = Statement(
    "waits_for_event",
    select(run_waits.c.path)
    .where(
        run_waits.c.run_id == bindparam("run_id"),
        run_waits.c.kind == lit("event"),
        run_waits.c.name == bindparam("name"),
        run_waits.c.answered_at.is_(None),
        run_waits.c.settled_at.is_(None),
    )
    .order_by(run_waits.c.opened_at, run_waits.c.path),
    purpose="Find the open waits of a run for an event.",
)
_USED = Statement(
    "event_was_used",
    select(run_waits.c.path).where(
        run_waits.c.run_id == bindparam("run_id"), run_waits.c.answered_by == bindparam("used_by", type_=Text())
    ),
    purpose="Find the wait of a run that an event of the tenant has answered.",
)
_UNREAD = Statement(
    "unread_answers",
    select(
        func.count().filter(run_waits.c.kind == lit("sent")).label("sent"),
        func.coalesce(func.sum(byte_size(run_waits.c.answer)), lit(0)).label("bytes"),
    ).where(
        run_waits.c.run_id == bindparam("run_id"),
        run_waits.c.answered_at.is_not(None),
        run_waits.c.settled_at.is_(None),
    ),
    purpose="Count the answers and sent events that the worker of a run has not read, with their bytes.",
)


async def resume_run(database: Database, run_id: str, response: Any) -> RunChange:
    """Resume a run that is paused without a question; the response becomes an event of its stream."""

    async def work(session: Session) -> RunChange:
        run = await _held(session, run_id)
        if run["status"] != Status.PAUSED:
            raise WrongState(f"Run {run_id} is {run['status']}. Only a paused run can be resumed.")
        return await _resume(session, run_id, {"response": response})

    return await operate(database, work)


async def answer_wait(
    database: Database,
    run_id: str,
    path: str,
    answer: Any,
    answered_by: str,
    note: str | None = None,
    *,
    opened_at_us: int | None = None,
) -> RunChange:
    """Store the answer to an open question and resume the run. Raise WrongState if it is no longer open.

    With `opened_at_us`, the answer is for the question that was asked then, and not for a later one at the same path.
    """

    async def work(session: Session) -> RunChange:
        run = await _held(session, run_id)
        change = await _answered(session, run, run_id, path, answer, answered_by, note, opened_at_us)
        if run["notifies"]:
            await report_answered(session, run_id, run, path, answered_by)
        return change

    return await operate(database, work)


async def store_event(database: Database, run_id: str, name: str, data: Any, sent_by: str) -> RunChange:
    """Store an event for the step that has waited longest for it, or for the first one that will."""

    async def work(session: Session) -> RunChange:
        run = await _held(session, run_id)
        if Status(run["status"]).terminal:
            raise WrongState(f"Run {run_id} is {run['status']}. Only a run that has not ended accepts events.")
        for row in await session.fetch(_WAITS_FOR, run_id=run_id, name=name):
            return await _answered(session, run, run_id, row["path"], data, sent_by)
        answer = dump_json(data)
        if await _require_room(session, run_id, answer) >= MAX_SENT:
            raise WrongState(
                f"Run {run_id} has {MAX_SENT} stored events for which no step has waited, which is the limit. "
                f'Check that a step waits for "{name}".'
            )
        await session.fetch(
            KEEP_EVENT,
            run_id=run_id,
            path=f".sent/{new_id('event')}",
            tenant=run["tenant"],
            target=run["target"],
            name=name,
            answer=answer,
            answered_by=sent_by,
        )
        return RunChange(run_id, Status(run["status"]))

    return await operate(database, work)


async def answer_by_event(database: Database, run_id: str, path: str, event_id: str, data: Any) -> RunChange | None:
    """Answer an open wait with an event of the tenant. Return None if it is not open, or the run has used the event."""
    by = f"event:{event_id}"

    async def work(session: Session) -> RunChange | None:
        rows = await session.fetch(_LOCK_RUN, run_id=run_id)
        if not rows or Status(rows[0]["status"]).terminal or await session.fetch(_USED, run_id=run_id, used_by=by):
            return None
        answer = dump_json(data)
        await _require_room(session, run_id, answer)
        taken = await session.fetch(
            ANSWER, run_id=run_id, path=path, answer=answer, answered_by=by, note=None, opened_at=None
        )
        if not taken:
            return None
        return await _resume(session, run_id, {"orch_step_id": taken[0]["step_id"], "path": path, "by": by})

    return await database.transact(work)


async def read_waits_decided(database: Database, run_id: str) -> list[Wait]:
    """Read the waits of a run under the lock that answers take, so that an answer which is being stored is not missed.

    A wait that is overdue and unanswered in this result can no longer be answered.
    """

    async def work(session: Session) -> list[Wait]:
        await _held(session, run_id)
        return [wait_of(row) for row in await session.fetch(WAITS_OF_RUN, run_id=run_id)]

    return await database.transact(work)


async def _held(session: Session, run_id: str) -> Row:
    rows = await session.fetch(_LOCK_RUN, run_id=run_id)
    if not rows:
        raise RunNotFound(run_id)
    return rows[0]


async def _require_room(session: Session, run_id: str, answer: str) -> int:
    """Raise WrongState if the worker of a run would have too much to read; return how many events are stored."""
    unread = (await session.fetch(_UNREAD, run_id=run_id))[0]
    if unread["bytes"] and unread["bytes"] + utf8_size(answer) > MAX_UNREAD_BYTES:
        raise WrongState(
            f"Run {run_id} has answers and events of {unread['bytes']} bytes that it has not read; at most "
            f"{MAX_UNREAD_BYTES} are stored. Send this one when it has continued, or send a reference to the data."
        )
    return unread["sent"]


async def _answered(
    session: Session,
    run: Row,
    run_id: str,
    path: str,
    answer: Any,
    by: str,
    note: str | None = None,
    opened_at_us: int | None = None,
) -> RunChange:
    # A run that has ended accepts no answer, though its wait may still be open.
    open_still = not Status(run["status"]).terminal
    text = dump_json(answer)
    await _require_room(session, run_id, text)
    taken = await session.fetch(
        ANSWER, run_id=run_id, path=path, answer=text, answered_by=by, note=note, opened_at=opened_at_us
    )
    if not taken or not open_still:
        raise WrongState(f"Run {run_id} is {run['status']} and does not wait for an answer at {path} any more.")
    return await _resume(session, run_id, {"orch_step_id": taken[0]["step_id"], "path": path, "by": by})


async def _resume(session: Session, run_id: str, data: dict[str, Any]) -> RunChange:
    row = (await session.fetch(_RESUME, run_id=run_id))[0]
    await wait_for_limits(session, [row])
    await append(session, [(run_id, row["last_seq"], row["attempt"], EventType.RESUMED.value, None, dump_json(data))])
    status = Status(row["status"])
    lanes = (row["lane"],) if status is Status.QUEUED else ()
    return RunChange(run_id, status, ready_lanes=lanes, notices=(Notice(run_id, row["last_seq"]),))
