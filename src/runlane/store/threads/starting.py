"""Start runs of threads: what a new run does about the open runs of its thread is decided where it is accepted.

One transaction accepts the run, applies its strategy and changes the thread, under the lock of the ordering key that
all runs of the thread have. So two requests at once are decided one after the other, and the runs of a thread are
executed one at a time, in the order in which they were accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import FromClause, Text, bindparam, insert, select, update
from sqlalchemy.sql.base import Executable

from runlane.domain.access_rule import AccessRule
from runlane.domain.graph import PLAN_KEY as THREAD_PLAN
from runlane.domain.graph import (
    CancelAction,
    GraphRequest,
    MultitaskStrategy,
    Operation,
    PruneStrategy,
    ThreadPlan,
    thread_key,
    thread_ordering_key,
)
from runlane.domain.graph_registry import DefaultTtl
from runlane.domain.run import Accepted, RunHook
from runlane.domain.text import dump_json, load_json
from runlane.domain.thread import ThreadRun
from runlane.errors import Conflict, UnknownThread
from runlane.failpoints import failpoint
from runlane.store.queue.accept import NewRun, accept
from runlane.store.queue.limit_gate import accept_locks
from runlane.store.queue.run_changes import RunChange
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_us
from runlane.store.sql.json_containment import text_contains_any
from runlane.store.sql.schema import thread_runs, threads
from runlane.store.sql.statement import Row, Statement
from runlane.store.threads.cancelling import cancel_open_runs
from runlane.store.threads.request_checks import check_request
from runlane.store.threads.thread_runs import new_thread_run
from runlane.store.threads.threads import Ttl, create_thread_in, read_thread_in


@dataclass(frozen=True, slots=True)
class ThreadStart:
    """A run of a thread to accept. `run` is checked; its ordering key, plan and hooks are set here.

    `creates` creates a missing thread. `deletes` deletes the thread with the end of the run.
    """

    tenant: str
    thread_id: str
    assistant_id: str
    graph_id: str
    run: NewRun
    request: GraphRequest
    strategy: MultitaskStrategy = MultitaskStrategy.ENQUEUE
    creates: bool = False
    deletes: bool = False
    operation: Operation = Operation.RUN
    actor: str = "local"
    # Of a thread that is created for the run.
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ttl: DefaultTtl | None = None
    rule: AccessRule | None = None

    @property
    def key(self) -> str:
        """The key of the thread."""
        return thread_key(self.tenant, self.thread_id)

    @property
    def on_completion(self) -> str | None:
        """What happens to the thread at the end of the run."""
        return PruneStrategy.DELETE.value if self.deletes else None


@dataclass(frozen=True, slots=True)
class StartedRun:
    """An accepted run of a thread, and the changes of the runs that it interrupts.

    `run` is the run as it was accepted; None for an operation, and for a request that was accepted before.
    """

    accepted: Accepted
    run: ThreadRun | None = None
    changes: tuple[RunChange, ...] = ()


def _add_runs(batch: FromClause) -> Executable:
    names = ["run_id", "thread", "tenant", "assistant_id", "metadata", "multitask_strategy", "on_completion"]
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
        "assistant_id": Text(),
        "metadata": Text(),
        "multitask_strategy": Text(),
        "on_completion": Text(),
    },
    purpose="Add runs to threads.",
)
_OPEN = Statement(
    "open_thread_run",
    update(threads)
    .where(threads.c.key == bindparam("key", type_=Text()))
    .values(
        open_runs=threads.c.open_runs + lit(1),
        metadata=bindparam("metadata", type_=Text()),
        config=bindparam("config", type_=Text()),
        updated_at=now_us(),
        # A thread does not expire while it has an open run; the end of the run sets the time again.
        expires_at=None,
    ),
    purpose="Note a new run in its thread.",
)


async def start_runs(database: Database, starts: Sequence[ThreadStart]) -> list[StartedRun]:
    """Accept runs of threads, all or none. UnknownThread, or Conflict for a run that is not to wait for others."""
    ready = [_ready(start) for start in starts]

    async def work(session: Session) -> list[StartedRun]:
        await session.lock(exclusive=accept_locks([start.run for start in ready]))
        started = await start_in(session, ready)
        failpoint("accept.before_commit")
        return started

    started = await database.transact(work)
    failpoint("accept.committed")
    return started


async def start_in(session: Session, starts: Sequence[ThreadStart]) -> list[StartedRun]:
    """Do the same within a transaction that holds the locks of the runs."""
    verdicts = await accept(session, [start.run for start in starts], holds_limits=True)
    accepted: list[tuple[ThreadStart, Accepted, tuple[RunChange, ...]]] = []
    for start, verdict in zip(starts, verdicts, strict=True):
        if not isinstance(verdict, Accepted):
            raise verdict
        changes = () if verdict.replayed else await _enter_thread(session, start)
        accepted.append((start, verdict, changes))
    members = [
        _member(start) for start, verdict, _ in accepted if start.operation is Operation.RUN and not verdict.replayed
    ]
    rows: Sequence[Row] = await session.fetch(_ADD_RUNS, members) if members else ()
    times: dict[str, int] = {row["run_id"]: row["created_at"] for row in rows}
    return [
        StartedRun(
            verdict,
            new_thread_run(start, verdict.status, times[start.run.id]) if start.run.id in times else None,
            changes,
        )
        for start, verdict, changes in accepted
    ]


async def _enter_thread(session: Session, start: ThreadStart) -> tuple[RunChange, ...]:
    """Apply the strategy of a new run to the open runs of its thread, and note the run in the thread."""
    row = await read_thread_in(session, start.key)
    if row is None:
        if not start.creates:
            raise UnknownThread(start.thread_id)
        ttl = None if start.ttl is None else Ttl(start.ttl.minutes, start.ttl.strategy)
        row = await create_thread_in(session, start.tenant, start.thread_id, metadata=start.metadata, ttl=ttl)
    elif start.rule is not None and not text_contains_any(row["metadata"], start.rule.text):
        raise UnknownThread(start.thread_id)
    if row is None:  # the lock of the key excludes it
        raise UnknownThread(start.thread_id)
    await check_request(session, row, start.request)
    if start.operation is not Operation.RUN:
        if row["open_runs"]:
            raise _busy(start.thread_id)
        return ()
    changes = await _make_room(session, start, row["open_runs"])
    await session.fetch(
        _OPEN,
        key=start.key,
        metadata=dump_json(
            load_json(row["metadata"]) | {"graph_id": start.graph_id, "assistant_id": start.assistant_id}
        ),
        config=dump_json({"configurable": start.request.config.get("configurable", {})}),
    )
    return changes


async def _make_room(session: Session, start: ThreadStart, open_runs: int) -> tuple[RunChange, ...]:
    if not open_runs or start.strategy is MultitaskStrategy.ENQUEUE:
        return ()
    if start.strategy is MultitaskStrategy.REJECT:
        raise _busy(start.thread_id)
    action = CancelAction(start.strategy.value)
    return await cancel_open_runs(session, start.key, action, actor=start.actor)


def _ready(start: ThreadStart) -> ThreadStart:
    """Return the start with a run that belongs to its thread."""
    run = start.run
    plan = ThreadPlan(start.thread_id, start.key, start.assistant_id, start.operation)
    hook = RunHook.THREAD if start.operation is Operation.RUN else 0
    ready = run._replace(
        ordering_key=thread_ordering_key(start.tenant, start.thread_id),
        plan=dump_json({**load_json(run.plan or "{}"), THREAD_PLAN: plan.to_dict()}),
        hooks=run.hooks | hook,
    )
    return replace(start, run=ready)


def _member(start: ThreadStart) -> tuple[object, ...]:
    metadata, strategy = dump_json(start.request.metadata), start.strategy.value
    return (start.run.id, start.key, start.tenant, start.assistant_id, metadata, strategy, start.on_completion)


def _busy(thread_id: str) -> Conflict:
    return Conflict(
        f'The thread "{thread_id}" has a run that has not ended. Wait for it, or send "multitask_strategy": '
        '"enqueue", "interrupt" or "rollback".'
    )
