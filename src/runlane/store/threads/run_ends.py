"""Settle the end of a run in its thread, in the transaction that ends the run, whichever process ends it.

The thread has one open run less, and gets the status that the run left. A cancelled run that is to be rolled back takes
its checkpoints with it. A thread that was created for one run is deleted with the end of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import FromClause, Integer, Text, bindparam, case, delete, func, or_, select, update
from sqlalchemy.sql.base import Executable

from runlane.domain.graph import CancelAction, GraphRequest, PruneStrategy, ThreadStatus, key_of_thread
from runlane.domain.run import RunHook, Status
from runlane.errors import WrongState
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, member, now_us
from runlane.store.sql.schema import run_inputs, run_results, thread_runs, threads
from runlane.store.sql.statement import Row, Statement
from runlane.store.threads.deletion import delete_threads, expiry, remove_runs
from runlane.store.threads.refresh import refresh_threads

_ROLLBACK: Final = CancelAction.ROLLBACK.value
_DELETE: Final = PruneStrategy.DELETE.value


def _end(batch: FromClause) -> Executable:
    b = batch.c
    left = threads.c.open_runs - b.ended
    error = select(run_results.c.error).where(run_results.c.run_id == b.failed).scalar_subquery()
    return (
        update(threads)
        .where(threads.c.key == b.key)
        .values(
            open_runs=case((left > lit(0), left), else_=lit(0)),
            status=case((b.failed.is_not(None), lit(ThreadStatus.ERROR)), else_=threads.c.status),
            error=case((b.failed.is_not(None), error), else_=threads.c.error),
            updated_at=now_us(),
            expires_at=expiry(),
        )
        .returning(threads.c.key, threads.c.open_runs, threads.c.native)
    )


_END = Statement(
    "end_thread_runs",
    _end,
    {"key": Text(), "ended": Integer(), "failed": Text()},
    purpose="Note in threads that runs of them have ended.",
)
_SPECIAL = Statement(
    "read_special_thread_runs",
    select(thread_runs.c.run_id, thread_runs.c.thread, thread_runs.c.on_cancel, thread_runs.c.on_completion)
    .where(
        member(thread_runs.c.run_id, "ids"),
        or_(thread_runs.c.on_cancel == lit(_ROLLBACK), thread_runs.c.on_completion == lit(_DELETE)),
    )
    .order_by(thread_runs.c.run_id),
    purpose="Find ended runs that are rolled back when they are cancelled, or whose threads are deleted.",
)
_KNOWN = Statement(
    "read_failed_thread_runs",
    select(thread_runs.c.run_id, thread_runs.c.thread)
    .select_from(thread_runs.join(run_results, run_results.c.run_id == thread_runs.c.run_id))
    .where(
        member(thread_runs.c.run_id, "ids"),
        func.coalesce(run_results.c.error, lit("none")).not_like('{"type":"UnknownInterruptError"%'),
    ),
    purpose="Find which failed runs leave an error in their threads.",
)
_FORGET = Statement(
    "delete_rolled_back_runs",
    delete(thread_runs).where(member(thread_runs.c.run_id, "ids")),
    purpose="Remove runs that were rolled back from their threads.",
)
_REOPEN = Statement(
    "reopen_thread",
    update(threads)
    .where(member(threads.c.key, "keys"))
    .values(open_runs=threads.c.open_runs + lit(1), updated_at=now_us(), expires_at=None)
    .returning(threads.c.key),
    purpose="Note in a thread that a failed run of it is retried.",
)

_LATER = Statement(
    "read_request_before_later_runs",
    select(run_inputs.c.input)
    .select_from(
        thread_runs.join(threads, threads.c.key == thread_runs.c.thread).join(
            run_inputs, run_inputs.c.run_id == thread_runs.c.run_id
        )
    )
    .where(thread_runs.c.run_id == bindparam("run_id", type_=Text()), thread_runs.c.ordinal < threads.c.run_count),
    purpose="Read the request of a run if its thread has had later runs.",
)


async def settle_threads(session: Session, ended: Sequence[Row]) -> None:
    """Note the ends of runs in their threads. The caller holds the locks of the runs' ordering keys."""
    of_threads = [row for row in ended if row["hooks"] & RunHook.THREAD]
    counts: dict[str, int] = {}
    failed: dict[str, str] = {}
    for row in of_threads:
        key = key_of_thread(row["ordering_key"])
        counts[key] = counts.get(key, 0) + 1
        if row["status"] == Status.FAILED:
            failed[key] = row["id"]
    if failed:
        # An operation that the graph has refused leaves the thread as it was, and so does an answer without a question.
        known = await session.fetch(_KNOWN, ids=session.texts(sorted(failed.values())))
        failed = {row["thread"]: row["run_id"] for row in known}
    unreported = {key_of_thread(row["ordering_key"]) for row in of_threads if row["status"] != Status.COMPLETED}
    changed = await session.fetch(_END, [(key, counts[key], failed.get(key)) for key in sorted(counts)])
    special = await session.fetch(_SPECIAL, ids=session.texts(sorted(row["id"] for row in of_threads)))
    rolled_back: set[str] = set()
    if special:
        free = {row["key"] for row in changed if row["open_runs"] == 0}
        rolled_back = await _settle_special(session, special, {row["id"]: row["status"] for row in of_threads}, free)
    native = {row["key"] for row in changed if row["native"] is not None}
    if native:
        await _settle_native(session, of_threads, native, rolled_back)
    await refresh_threads(session, sorted(unreported - native))


async def _settle_native(session: Session, ended: Sequence[Row], native: set[str], rolled_back: set[str]) -> None:
    # Imported here, because most threads belong to graphs.
    from runlane.store.chat.deletion import drop_turns
    from runlane.store.threads.native_runs import settle_native

    by_thread: dict[str, list[str]] = {}
    for row in ended:
        key = key_of_thread(row["ordering_key"])
        if key in native and row["id"] not in rolled_back:
            by_thread.setdefault(key, []).append(row["id"])
    await settle_native(session, by_thread)
    if rolled_back:
        await drop_turns(session, sorted(rolled_back))


async def _settle_special(
    session: Session, special: Sequence[Row], statuses: dict[str, str], free: set[str]
) -> set[str]:
    """Roll runs back and delete threads. Return the runs that were rolled back."""
    rolled_back = [
        row for row in special if row["on_cancel"] == _ROLLBACK and statuses[row["run_id"]] == Status.CANCELLED
    ]
    for row in rolled_back:
        await remove_runs(session, row["thread"], [row["run_id"]])
    if rolled_back:
        await session.fetch(_FORGET, ids=session.texts([row["run_id"] for row in rolled_back]))
    # A thread with an open run is deleted with the end of that run.
    over = {row["thread"] for row in special if row["on_completion"] == _DELETE and row["thread"] in free}
    await delete_threads(session, sorted(over), keep_runs=sorted(statuses))
    return {row["run_id"] for row in rolled_back}


async def reopen_thread(session: Session, run_id: str, ordering_key: str) -> None:
    """Note that a failed run of a thread is retried. WrongState if it cannot have the effect that it was to have."""
    for row in await session.fetch(_LATER, run_id=run_id):
        if "resume" in (GraphRequest.from_json(row["input"]).command or {}):
            raise WrongState(
                f"The thread of run {run_id} has had later runs, so the answer of this run could reach another "
                "question. Answer the open question in a new run."
            )
    if not await session.fetch(_REOPEN, keys=session.texts([key_of_thread(ordering_key)])):
        raise WrongState(f"The thread of run {run_id} was deleted. Start a new run in another thread.")
