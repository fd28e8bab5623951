"""Start runs of threads. The transaction that accepts a run decides its effect on the open runs of its thread.

One transaction accepts the run, applies its strategy and changes the thread, under the lock of the ordering key that
all runs of the thread have. Concurrent requests are therefore decided one after the other, and the runs of a thread are
executed one at a time, in the order in which they were accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import FromClause, Integer, Text, insert, select
from sqlalchemy.sql.base import Executable

from runlane.domain.graph import MultitaskStrategy
from runlane.domain.run import Accepted
from runlane.domain.text import dump_json
from runlane.domain.thread import ThreadRun
from runlane.errors import UnknownThread
from runlane.failpoints import failpoint
from runlane.store.queue.accept import accept
from runlane.store.queue.limit_gate import accept_locks
from runlane.store.queue.run_changes import RunChange
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import now_us
from runlane.store.sql.schema import thread_runs
from runlane.store.sql.statement import Row, Statement
from runlane.store.threads.entering import ThreadEntry, busy_thread, enter_threads
from runlane.store.threads.native_runs import check_target, enter_conversation
from runlane.store.threads.request_checks import check_request
from runlane.store.threads.thread_runs import new_thread_run
from runlane.store.threads.thread_start import ThreadStart
from runlane.store.threads.threads import read_thread_in


@dataclass(frozen=True, slots=True)
class StartedRun:
    """An accepted run of a thread, and the changes of the runs that it interrupts.

    `run` is the run as it was accepted; None for an operation, and for a request that was accepted before.
    """

    accepted: Accepted
    run: ThreadRun | None = None
    changes: tuple[RunChange, ...] = ()


def _add_runs(batch: FromClause) -> Executable:
    names = ["run_id", "thread", "tenant", "ordinal", "assistant_id", "metadata", "multitask_strategy", "on_completion"]
    times = [now_us(), now_us()]
    rows = select(*(batch.c[name] for name in names), *times)
    return (
        insert(thread_runs)
        .from_select([*names, "created_at", "updated_at"], rows)
        .returning(thread_runs.c.run_id, thread_runs.c.created_at)
    )


_ADD_RUNS = Statement(
    "add_thread_runs",
    _add_runs,
    {
        "run_id": Text(),
        "thread": Text(),
        "tenant": Text(),
        "ordinal": Integer(),
        "assistant_id": Text(),
        "metadata": Text(),
        "multitask_strategy": Text(),
        "on_completion": Text(),
    },
    purpose="Add runs to threads.",
)


async def start_runs(database: Database, starts: Sequence[ThreadStart]) -> list[StartedRun]:
    """Accept runs of threads, all or none. UnknownThread, or Conflict for a run that is not to wait for others."""
    ready = [start.with_run(start.run) for start in starts]

    async def work(session: Session) -> list[StartedRun]:
        await session.lock(exclusive=accept_locks([start.run for start in ready]))
        started = await start_in(session, ready)
        failpoint("accept.before_commit")
        return started

    started = await database.transact(work)
    failpoint("accept.committed")
    return started


async def start_in(session: Session, starts: Sequence[ThreadStart], *, holds_limits: bool = True) -> list[StartedRun]:
    """Do the same for starts that `with_run` returned, within a transaction that holds the locks of their threads.

    With `holds_limits` it holds those of the runs' concurrency limits, too.
    """
    starts = [start if start.turn is None else await _with_turn(session, start) for start in starts]
    verdicts = await accept(session, [start.run for start in starts], holds_limits=holds_limits)
    accepted: list[tuple[ThreadStart, Accepted]] = []
    for start, verdict in zip(starts, verdicts, strict=True):
        if not isinstance(verdict, Accepted):
            raise verdict
        accepted.append((start, verdict))
    entries = await enter_threads(session, [start for start, verdict in accepted if not verdict.replayed])
    members = [_member(start, entries[start.run.id].ordinal) for start in starts if start.run.id in entries]
    rows: Sequence[Row] = await session.fetch(_ADD_RUNS, [member for member in members if member[3]])
    times: dict[str, int] = {row["run_id"]: row["created_at"] for row in rows}
    return [_started(start, verdict, entries.get(start.run.id, ThreadEntry()), times) for start, verdict in accepted]


def _started(start: ThreadStart, verdict: Accepted, entry: ThreadEntry, times: Mapping[str, int]) -> StartedRun:
    at_us = times.get(start.run.id)
    run = None if at_us is None else new_thread_run(start, verdict.status, at_us, entry.ordinal)
    return StartedRun(verdict, run, entry.changes)


async def _with_turn(session: Session, start: ThreadStart) -> ThreadStart:
    assert start.turn is not None  # noqa: S101 - the caller has checked it
    row = await read_thread_in(session, start.key)
    run, turn = await enter_conversation(session, row, start.thread_id, start.graph_id, start.run, start.turn)
    return replace(start, run=run, turn=turn)


async def check_start(session: Session, start: ThreadStart) -> None:
    """Raise what `start_in` would raise because of the thread."""
    row = await read_thread_in(session, start.key)
    if row is None:
        if not start.creates:
            raise UnknownThread(start.thread_id)
        return
    check_target(row, start.thread_id, None if start.turn is None else start.graph_id)
    await check_request(session, row, start.request)
    if row["open_runs"] and start.strategy is MultitaskStrategy.REJECT:
        raise busy_thread(start.thread_id)


def _member(start: ThreadStart, ordinal: int) -> tuple[object, ...]:
    metadata, strategy = dump_json(start.request.metadata), start.strategy.value
    return (start.run.id, start.key, start.tenant, ordinal, start.assistant_id, metadata, strategy, start.on_completion)
