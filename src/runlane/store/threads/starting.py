"""Start runs of threads: what a new run does about the open runs of its thread is decided where it is accepted.

One transaction accepts the run, applies its strategy and changes the thread, under the lock of the ordering key that
all runs of the thread have. So two requests at once are decided one after the other, and the runs of a thread are
executed one at a time, in the order in which they were accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqlalchemy import FromClause, Integer, Text, bindparam, insert, select, update
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
from runlane.store.threads.cancelling import cancel_open_runs, has_open_runs
from runlane.store.threads.native_runs import (
    NativeTurn,
    asking_runs_in,
    check_target,
    enter_conversation,
    store_turn,
)
from runlane.store.threads.request_checks import check_request
from runlane.store.threads.thread_runs import new_thread_run
from runlane.store.threads.threads import Ttl, create_thread_in, read_thread_in

_SERIALIZED: Final = ("tenant", "thread_id", "assistant_id", "graph_id", "creates", "deletes", "actor")


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
    turn: NativeTurn | None = None
    # Of a thread that is created for the run.
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ttl: DefaultTtl | None = None
    rule: AccessRule | None = None

    def to_dict(self) -> dict[str, Any]:
        """Serialize all of it except the run."""
        values = {name: getattr(self, name) for name in _SERIALIZED}
        message = None if self.turn is None else self.turn.message
        return {
            **values,
            "request": self.request.to_json(),
            "strategy": self.strategy.value,
            "message": message,
        }

    @classmethod
    def from_dict(cls, run: NewRun, stored: Mapping[str, Any]) -> ThreadStart:
        """Parse what `to_dict` returned."""
        values = {name: stored[name] for name in _SERIALIZED}
        request, strategy = GraphRequest.from_json(stored["request"]), MultitaskStrategy(stored["strategy"])
        turn = None if stored["message"] is None else NativeTurn(stored["message"])
        return cls(**values, run=run, request=request, strategy=strategy, turn=turn)

    def with_run(self, run: NewRun) -> ThreadStart:
        """Return the start of a run that belongs to the thread."""
        plan = ThreadPlan(self.thread_id, self.key, self.assistant_id, self.operation)
        ready = run._replace(
            ordering_key=thread_ordering_key(self.tenant, self.thread_id),
            plan=dump_json({**load_json(run.plan or "{}"), THREAD_PLAN: plan.to_dict()}),
            hooks=run.hooks | RunHook.THREAD,
        )
        return replace(self, run=ready)

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


@dataclass(frozen=True, slots=True)
class _Entry:
    """How a run entered its thread: its ordinal there, 0 for an operation, and what it changed."""

    ordinal: int = 0
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
_OPEN = Statement(
    "open_thread_run",
    update(threads)
    .where(threads.c.key == bindparam("key", type_=Text()))
    .values(
        open_runs=threads.c.open_runs + lit(1),
        run_count=threads.c.run_count + lit(1),
        metadata=bindparam("metadata", type_=Text()),
        config=bindparam("config", type_=Text()),
        updated_at=now_us(),
        # A thread does not expire while it has an open run; the end of the run sets the time again.
        expires_at=None,
    )
    .returning(threads.c.run_count),
    purpose="Note a new run in its thread.",
)


_OCCUPY = Statement(
    "occupy_thread",
    update(threads)
    .where(threads.c.key == bindparam("key", type_=Text()))
    .values(open_runs=threads.c.open_runs + lit(1), updated_at=now_us(), expires_at=None),
    purpose="Note in a thread that its state is being changed.",
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
    accepted: list[tuple[ThreadStart, Accepted, _Entry]] = []
    for start, verdict in zip(starts, verdicts, strict=True):
        if not isinstance(verdict, Accepted):
            raise verdict
        entry = _Entry() if verdict.replayed else await _enter_thread(session, start)
        accepted.append((start, verdict, entry))
    members = [_member(start, entry.ordinal) for start, _, entry in accepted if entry.ordinal]
    rows: Sequence[Row] = await session.fetch(_ADD_RUNS, members) if members else ()
    times: dict[str, int] = {row["run_id"]: row["created_at"] for row in rows}
    return [
        StartedRun(
            verdict,
            new_thread_run(start, verdict.status, times[start.run.id], entry.ordinal)
            if start.run.id in times
            else None,
            entry.changes,
        )
        for start, verdict, entry in accepted
    ]


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
        raise _busy(start.thread_id)


async def _enter_thread(session: Session, start: ThreadStart) -> _Entry:
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
    check_target(row, start.thread_id, None if start.turn is None else start.graph_id)
    await check_request(session, row, start.request)
    if start.operation is not Operation.RUN:
        # Operations wait for each other in the order of the thread; a run may take long.
        if row["open_runs"] and await has_open_runs(session, start.key):
            raise _busy(start.thread_id)
        await session.fetch(_OCCUPY, key=start.key)
        return _Entry()
    changes = await _make_room(session, start, row["open_runs"])
    (opened,) = await session.fetch(
        _OPEN,
        key=start.key,
        metadata=dump_json(
            load_json(row["metadata"]) | {"graph_id": start.graph_id, "assistant_id": start.assistant_id}
        ),
        config=dump_json({"configurable": start.request.config.get("configurable", {})}),
    )
    if start.turn is not None:
        await store_turn(session, start.key, start.graph_id, start.run, start.turn)
    return _Entry(opened["run_count"], changes)


async def _make_room(session: Session, start: ThreadStart, open_runs: int) -> tuple[RunChange, ...]:
    if start.turn is not None and open_runs:
        # New input takes the place of a question that has no answer, as it does for graphs.
        asking = await asking_runs_in(session, start.key)
        withdrawn = await cancel_open_runs(session, start.key, CancelAction.INTERRUPT, actor=start.actor, only=asking)
        return (*withdrawn, *await _apply_strategy(session, start, open_runs - len(withdrawn)))
    return await _apply_strategy(session, start, open_runs)


async def _apply_strategy(session: Session, start: ThreadStart, open_runs: int) -> tuple[RunChange, ...]:
    if not open_runs or start.strategy is MultitaskStrategy.ENQUEUE:
        return ()
    if start.strategy is MultitaskStrategy.REJECT:
        raise _busy(start.thread_id)
    action = CancelAction(start.strategy.value)
    return await cancel_open_runs(session, start.key, action, actor=start.actor)


def _member(start: ThreadStart, ordinal: int) -> tuple[object, ...]:
    metadata, strategy = dump_json(start.request.metadata), start.strategy.value
    return (start.run.id, start.key, start.tenant, ordinal, start.assistant_id, metadata, strategy, start.on_completion)


def _busy(thread_id: str) -> Conflict:
    return Conflict(
        f'The thread "{thread_id}" has a run that has not ended. Wait for it, or send "multitask_strategy": '
        '"enqueue", "interrupt" or "rollback".'
    )
