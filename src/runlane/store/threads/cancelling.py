"""Cancel runs of threads: interrupt keeps what a run has stored, rollback deletes it with the end of the run.

The caller holds the lock of the thread's ordering key, under which no run of the thread is accepted or released.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Integer, Text, bindparam, case, cast, insert, select, union_all, update

from runlane.domain.graph import CancelAction, MultitaskStrategy, PruneStrategy, thread_key, thread_ordering_key
from runlane.domain.run import Status
from runlane.domain.thread import Thread
from runlane.store.queue.run_changes import RunChange, cancel_in
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member, now_us
from runlane.store.sql.schema import runs, thread_runs
from runlane.store.sql.statement import Row, Statement
from runlane.store.threads.deletion import delete_threads
from runlane.store.threads.threads import find_thread_in, lock_thread_key

CANCELLED_AT_ONCE = 100

_ENDED = [lit(status) for status in Status if status.terminal]
_thread = bindparam("thread", type_=Text())
_OPEN_RUNS = Statement(
    "open_runs_of_thread",
    select(runs.c.id, runs.c.status)
    .select_from(thread_runs.join(runs, runs.c.id == thread_runs.c.run_id))
    .where(thread_runs.c.thread == _thread, runs.c.status.not_in(_ENDED))
    # The newest run comes first, so that no later run of the thread starts in between.
    .order_by(thread_runs.c.created_at.desc(), thread_runs.c.run_id.desc()),
    purpose="Find the runs of a thread that have not ended, newest first.",
)
_ON_CANCEL = Statement(
    "set_on_cancel",
    update(thread_runs)
    .where(member(thread_runs.c.run_id, "ids"))
    .values(
        on_cancel=bindparam("action", type_=Text()),
        on_completion=case(
            (cast(bindparam("deletes", type_=Integer()), Integer) == lit(1), lit("delete")),
            else_=thread_runs.c.on_completion,
        ),
    ),
    purpose="Note what cancelled runs of a thread leave.",
)
_key = bindparam("ordering_key", type_=Text())
_of_thread = select(thread_runs.c.run_id).where(thread_runs.c.thread == _thread)
_OPERATIONS = Statement(
    "open_operations_of_thread",
    # Two queries, because each has an index.
    union_all(
        *(
            select(runs.c.id, runs.c.status).where(runs.c.ordering_key == _key, condition, runs.c.id.not_in(_of_thread))
            for condition in (runs.c.holds_key, runs.c.status == lit(Status.BLOCKED))
        )
    ),
    purpose="Find the operations on the state of a thread that have not ended.",
)
_ADD_OPERATION = Statement(
    "add_operation_of_deleted_thread",
    insert(thread_runs).values(
        run_id=bindparam("run_id", type_=Text()),
        thread=_thread,
        tenant=bindparam("tenant", type_=Text()),
        ordinal=lit(0),
        assistant_id=bindparam("assistant_id", type_=Text()),
        metadata=bindparam("metadata", type_=Text()),
        multitask_strategy=lit(MultitaskStrategy.ENQUEUE),
        created_at=now_us(),
        updated_at=now_us(),
    ),
    purpose="Note an operation in its thread, so that the thread is deleted with the end of the operation.",
)
_DELETED = Statement(
    "open_runs_of_deleted_thread",
    select(thread_runs.c.run_id)
    .select_from(thread_runs.join(runs, runs.c.id == thread_runs.c.run_id))
    .where(
        thread_runs.c.thread == _thread,
        thread_runs.c.on_cancel == lit(CancelAction.ROLLBACK),
        thread_runs.c.on_completion == lit(PruneStrategy.DELETE),
        runs.c.status.not_in(_ENDED),
    )
    .limit(lit(1)),
    purpose="Check whether a thread is deleted with the end of a run of it that was cancelled.",
)
_OF_TENANT = Statement(
    "open_thread_runs_of_tenant",
    select(runs.c.id, thread_runs.c.thread)
    .select_from(thread_runs.join(runs, runs.c.id == thread_runs.c.run_id))
    .where(
        thread_runs.c.tenant == bindparam("tenant", type_=Text()),
        thread_runs.c.run_id > bindparam("after", type_=Text()),
        member(runs.c.status, "statuses"),
    )
    .order_by(thread_runs.c.run_id)
    .limit(lit(CANCELLED_AT_ONCE)),
    purpose="Find some runs of threads of a tenant in these statuses.",
)


async def has_open_runs(session: Session, key: str) -> bool:
    """Return whether a thread has a run that has not ended; operations on its state are not runs of it."""
    return bool(await session.fetch(_OPEN_RUNS, thread=key))


async def is_deleted(session: Session, key: str) -> bool:
    """Return whether a thread is being deleted: a worker still executes a run of it that was cancelled for that."""
    return bool(await session.fetch(_DELETED, thread=key))


async def cancel_open_runs(
    session: Session, key: str, action: CancelAction, *, actor: str, only: Collection[str] | None = None
) -> tuple[RunChange, ...]:
    """Cancel the open runs of a thread, or only its runs with one of these ids. Return their changes."""
    found = await session.fetch(_OPEN_RUNS, thread=key)
    chosen: list[str] = [row["id"] for row in found if only is None or row["id"] in only]
    if not chosen:
        return ()
    await session.fetch(_ON_CANCEL, ids=session.texts(chosen), action=action.value, deletes=0)
    return tuple([await cancel_in(session, run_id, actor=actor) for run_id in chosen])


async def cancel_thread_runs(
    database: Database,
    tenant: str,
    thread_id: str,
    action: CancelAction,
    *,
    actor: str,
    only: Collection[str] | None = None,
) -> tuple[RunChange, ...]:
    """Cancel open runs of a thread in a transaction of their own."""

    async def work(session: Session) -> tuple[RunChange, ...]:
        await lock_thread_key(session, tenant, thread_id)
        return await cancel_open_runs(session, thread_key(tenant, thread_id), action, actor=actor, only=only)

    return await database.transact(work)


async def find_open_runs(
    database: Database, tenant: str, statuses: Sequence[Status], after: str
) -> dict[str, list[str]]:
    """Return a page of the open runs of a tenant by the key of their thread; `after` is the highest id before it."""

    async def work(session: Session) -> Sequence[Row]:
        wanted = session.texts([one.value for one in statuses])
        return await session.fetch(_OF_TENANT, tenant=tenant, statuses=wanted, after=after)

    found: dict[str, list[str]] = {}
    for row in await database.transact(work):
        found.setdefault(row["thread"], []).append(row["id"])
    return found


async def delete_thread(database: Database, tenant: str, thread_id: str, *, actor: str) -> tuple[RunChange, ...]:
    """Delete a thread with everything that its runs have stored, and cancel its open runs.

    While a worker executes a run of it, the thread is deleted with the end of that run: nothing that the run stores
    until then is left.
    """

    async def work(session: Session) -> tuple[RunChange, ...]:
        await lock_thread_key(session, tenant, thread_id)
        thread = await find_thread_in(session, tenant, thread_id)
        await _note_operations(session, tenant, thread)
        found = await session.fetch(_OPEN_RUNS, thread=thread.key)
        running = [row["id"] for row in found if row["status"] == Status.RUNNING]
        waiting = [row["id"] for row in found if row["status"] != Status.RUNNING]
        rollback = CancelAction.ROLLBACK.value
        await session.fetch(_ON_CANCEL, ids=session.texts(waiting), action=rollback, deletes=0)
        await session.fetch(_ON_CANCEL, ids=session.texts(running), action=rollback, deletes=1)
        changes = tuple([await cancel_in(session, run_id, actor=actor) for run_id in (*waiting, *running)])
        if not running:
            await delete_threads(session, [thread.key])
        return changes

    return await database.transact(work)


async def _note_operations(session: Session, tenant: str, thread: Thread) -> None:
    """Make the operations on the state of a thread runs of it, which are cancelled like others."""
    if not thread.open_runs:
        return
    key = thread_ordering_key(tenant, thread.id)
    for row in await session.fetch(_OPERATIONS, ordering_key=key, thread=thread.key):
        await session.fetch(
            _ADD_OPERATION, run_id=row["id"], thread=thread.key, tenant=tenant, assistant_id="", metadata="{}"
        )
