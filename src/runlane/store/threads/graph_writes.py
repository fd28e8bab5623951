"""The writes of a graph: checkpoints, values of channels, writes of tasks, and the state of its thread after a run.

A run that a worker executes stores them with `record()`, through the fence: the statements join the attempt that owns
the run, so the checkpoint of an attempt that has lost its run is not stored. A saver outside a run stores the same rows
in a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, FromClause, Integer, LargeBinary, Text, and_, func, literal, or_, select, update
from sqlalchemy.sql.base import Executable

from runlane.domain.graph import CancelAction
from runlane.domain.run import Status
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import by_key_only, lit, now_us, upsert
from runlane.store.sql.schema import checkpoint_values, checkpoint_writes, checkpoints, runs, thread_runs, threads
from runlane.store.sql.statement import Row, Statement


class StoredCheckpoint(NamedTuple):
    """A checkpoint without the values of its channels. `versions`, `metadata` and `snapshot` are JSON."""

    thread: str
    ns: str
    id: str
    parent_id: str | None
    encoding: str
    checkpoint: bytes
    versions: str
    metadata: str
    snapshot: str | None = None


class StoredValue(NamedTuple):
    """The value of a channel in one version. The encoding of a channel without a value is `empty`."""

    thread: str
    ns: str
    channel: str
    version: str
    encoding: str
    value: bytes


class StoredWrite(NamedTuple):
    """A write of a task. Those with a negative number (errors, interrupts, answers) replace an earlier one."""

    thread: str
    ns: str
    checkpoint_id: str
    task_id: str
    number: int
    task_path: str
    channel: str
    encoding: str
    value: bytes


@dataclass(frozen=True, slots=True)
class ThreadResult:
    """How a run left its thread, stored with the end of the run. `values` and `interrupts` are JSON.

    `status` is `idle` or `interrupted`. `outcome` is None for a run that did not complete its graph. With
    `is_temporary`, the thread is deleted with the end of the run, unless another run of it is open.
    """

    thread: str
    status: str
    values: str | None = None
    interrupts: str | None = None
    outcome: str | None = None
    is_temporary: bool = False


@dataclass(frozen=True, slots=True)
class GraphWrites:
    """The writes of a graph in one transaction."""

    checkpoints: tuple[StoredCheckpoint, ...] = ()
    values: tuple[StoredValue, ...] = ()
    writes: tuple[StoredWrite, ...] = ()
    thread: ThreadResult | None = None

    def merged(self, later: GraphWrites | None) -> GraphWrites:
        """Return these writes followed by later ones of the same attempt."""
        return self if later is None else GraphWrites.joined([self, later])

    @staticmethod
    def joined(written: Sequence[GraphWrites]) -> GraphWrites:
        """Return writes of one attempt in their order as one value."""
        if len(written) == 1:
            return written[0]
        return GraphWrites(
            checkpoints=tuple([row for item in written for row in item.checkpoints]),
            values=tuple([row for item in written for row in item.values]),
            writes=tuple([row for item in written for row in item.writes]),
            thread=next((item.thread for item in reversed(written) if item.thread is not None), None),
        )

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        # Loops, because a generator for a few rows takes longer than the rows.
        size = 0
        for row in self.checkpoints:
            size += len(row.checkpoint) + len(row.metadata) + len(row.snapshot or "")
        for row in self.values:
            size += len(row.value)
        for row in self.writes:
            size += len(row.value)
        return size + (len(self.thread.values or "") + len(self.thread.interrupts or "") if self.thread else 0)


# The run, its attempt, and the writes of the attempt; without a run, the writes of a saver.
OwnedWrites = tuple[str | None, int | None, GraphWrites]

# A write that another run has replaced is kept under the checkpoint's id, this separator and the id of that run, until
# the checkpoint is deleted. Readers of the checkpoint do not find it.
REPLACED_BY: Final = "/"
_OWNER: Final = {"run_id": Text(), "attempt": Integer()}
_CHECKPOINT: Final = {
    "thread": Text(),
    "ns": Text(),
    "id": Text(),
    "parent_id": Text(),
    "encoding": Text(),
    "checkpoint": LargeBinary(),
    "versions": Text(),
    "metadata": Text(),
    "snapshot": Text(),
}
_VALUE: Final = {
    "thread": Text(),
    "ns": Text(),
    "channel": Text(),
    "version": Text(),
    "encoding": Text(),
    "value": LargeBinary(),
}
_WRITE: Final = {
    "thread": Text(),
    "ns": Text(),
    "checkpoint_id": Text(),
    "task_id": Text(),
    "index": Integer(),
    "task_path": Text(),
    "channel": Text(),
    "encoding": Text(),
    "value": LargeBinary(),
}


def _rows(batch: FromClause, columns: Sequence[Any], *, fenced: bool) -> Any:
    """Select the rows of a batch; rows of a worker are selected through the fence."""
    b = batch.c
    source = batch.join(runs, and_(runs.c.id == b.run_id, runs.c.attempt == b.attempt)) if fenced else batch
    # The condition keeps SQLite's parser from reading ON CONFLICT as a join.
    return select(*columns).select_from(source).where(b.thread.is_not(None))


def _store_checkpoints(batch: FromClause, *, fenced: bool) -> Executable:
    b = batch.c
    statement = upsert(checkpoints).from_select(
        ["run_id", "attempt", *_CHECKPOINT, "created_at"],
        _rows(batch, [b.run_id, b.attempt, *(b[name] for name in _CHECKPOINT), now_us()], fenced=fenced),
    )
    changed = ("run_id", "attempt", "parent_id", "encoding", "checkpoint", "versions", "metadata", "snapshot")
    return statement.on_conflict_do_update(
        index_elements=["thread", "ns", "id"], set_={name: statement.excluded[name] for name in changed}
    )


def _store_values(batch: FromClause, *, fenced: bool) -> Executable:
    rows = _rows(batch, [batch.c[name] for name in _VALUE], fenced=fenced)
    return upsert(checkpoint_values).from_select(list(_VALUE), rows).on_conflict_do_nothing()


def _store_writes(batch: FromClause, *, fenced: bool) -> Executable:
    b = batch.c
    statement = upsert(checkpoint_writes).from_select(
        ["run_id", *_WRITE], _rows(batch, [b.run_id, *(b[name] for name in _WRITE)], fenced=fenced)
    )
    changed = ("run_id", "task_path", "channel", "encoding", "value")
    return statement.on_conflict_do_update(
        index_elements=["thread", "ns", "checkpoint_id", "task_id", "index"],
        set_={name: statement.excluded[name] for name in changed},
        # A repeated task keeps its first writes; errors, interrupts and answers are replaced.
        where=statement.excluded.index < lit(0),
    )


def _keep_replaced(batch: FromClause) -> Executable:
    b, w = batch.c, checkpoint_writes.c
    same = and_(
        w.thread == b.thread,
        w.ns == b.ns,
        w.checkpoint_id == b.checkpoint_id,
        w.task_id == b.task_id,
        w["index"] == b["index"],
    )
    copied: dict[str, ColumnElement[Any]] = {name: w[name] for name in ("run_id", *_WRITE)}
    copied["checkpoint_id"] = w.checkpoint_id + literal(REPLACED_BY, Text()) + b.run_id
    source = batch.join(runs, and_(runs.c.id == b.run_id, runs.c.attempt == b.attempt)).join(checkpoint_writes, same)
    rows = select(*copied.values()).select_from(source).where(w.run_id.is_distinct_from(b.run_id))
    return upsert(checkpoint_writes).from_select(list(copied), rows).on_conflict_do_nothing()


_KEEP_REPLACED = Statement(
    "keep_replaced_writes",
    _keep_replaced,
    {**_OWNER, "thread": Text(), "ns": Text(), "checkpoint_id": Text(), "task_id": Text(), "index": Integer()},
    purpose="Keep the questions and answers of earlier runs that an attempt replaces, for a rollback of its run.",
)
STORE_CHECKPOINTS = Statement(
    "store_checkpoints_fenced",
    lambda batch: _store_checkpoints(batch, fenced=True),
    {**_OWNER, **_CHECKPOINT},
    purpose="Store checkpoints of an attempt, through the fence.",
)
STORE_VALUES = Statement(
    "store_checkpoint_values_fenced",
    lambda batch: _store_values(batch, fenced=True),
    {**_OWNER, **_VALUE},
    purpose="Store values of channels of an attempt, through the fence.",
)
STORE_WRITES = Statement(
    "store_checkpoint_writes_fenced",
    lambda batch: _store_writes(batch, fenced=True),
    {**_OWNER, **_WRITE},
    purpose="Store writes of tasks of an attempt, through the fence.",
)
_STORE_CHECKPOINTS_ALONE = Statement(
    "store_checkpoints",
    lambda batch: _store_checkpoints(batch, fenced=False),
    {**_OWNER, **_CHECKPOINT},
    purpose="Store checkpoints outside a run.",
)
_STORE_VALUES_ALONE = Statement(
    "store_checkpoint_values",
    lambda batch: _store_values(batch, fenced=False),
    {**_OWNER, **_VALUE},
    purpose="Store values of channels outside a run.",
)
_STORE_WRITES_ALONE = Statement(
    "store_checkpoint_writes",
    lambda batch: _store_writes(batch, fenced=False),
    {**_OWNER, **_WRITE},
    purpose="Store writes of tasks outside a run.",
)


def _set_result(batch: FromClause) -> Executable:
    b = batch.c
    # `exists` is not used, because Postgres would read all runs of threads to evaluate it.
    on_cancel = select(thread_runs.c.on_cancel).where(thread_runs.c.run_id == b.run_id).scalar_subquery()
    return (
        update(threads)
        .where(
            threads.c.key == b.thread,
            runs.c.id == b.run_id,
            runs.c.attempt == b.attempt,
            # A run that is rolled back leaves the thread as it was before.
            or_(
                by_key_only(runs.c.status) != lit(Status.CANCELLED),
                func.coalesce(on_cancel, lit(CancelAction.INTERRUPT)) != lit(CancelAction.ROLLBACK),
            ),
        )
        .values(
            status=b.status,
            state_values=b.state_values,
            interrupts=b.interrupts,
            error=None,
            state_updated_at=now_us(),
        )
        .returning(threads.c.key, threads.c.open_runs)
    )


def _set_outcome(batch: FromClause) -> Executable:
    b = batch.c
    return (
        update(thread_runs)
        .where(thread_runs.c.run_id == b.run_id, runs.c.id == b.run_id, runs.c.attempt == b.attempt)
        .values(outcome=b.outcome, updated_at=now_us())
    )


SET_RESULTS = Statement(
    "set_thread_results",
    _set_result,
    {**_OWNER, "thread": Text(), "status": Text(), "state_values": Text(), "interrupts": Text()},
    purpose="Store the state in which attempts left their threads, through the fence.",
)
SET_OUTCOMES = Statement(
    "set_thread_outcomes",
    _set_outcome,
    {**_OWNER, "outcome": Text()},
    purpose="Store how the graphs of attempts ended, through the fence.",
)


async def store_graphs(session: Session, written: Sequence[OwnedWrites], ended: Collection[str]) -> None:
    """Store what attempts have written, through the fence. RECORD has locked their runs before.

    `ended` are the runs that end in this transaction, under the locks of their threads.
    """
    if not written:
        return
    results = [(run_id, attempt, item.thread) for run_id, attempt, item in written if item.thread is not None]
    leaving = [result for result in results if result[0] in ended and result[2].is_temporary]
    changed = await _set_results(session, leaving)
    # This transaction deletes their threads, so the last checkpoints are not stored first.
    deleted = {row["key"] for row in changed if row["open_runs"] <= 1}
    kept = [item for item in written if item[2].thread is None or item[2].thread.thread not in deleted]
    replacing = [(run_id, attempt, *row[:5]) for run_id, attempt, *row in _write_members(kept) if row[4] < 0]
    await session.fetch(_KEEP_REPLACED, replacing)
    await _store(session, kept, STORE_CHECKPOINTS, STORE_VALUES, STORE_WRITES)
    # The state follows the checkpoints: if the state of a thread is older than its newest checkpoint, that checkpoint
    # is read.
    await _set_results(session, [result for result in results if result[2].thread not in deleted])
    await session.fetch(SET_OUTCOMES, [(run_id, attempt, end.outcome) for run_id, attempt, end in results])


async def _set_results(
    session: Session, results: Sequence[tuple[str | None, int | None, ThreadResult]]
) -> Sequence[Row]:
    return await session.fetch(
        SET_RESULTS,
        [(run_id, attempt, end.thread, end.status, end.values, end.interrupts) for run_id, attempt, end in results],
    )


async def store_alone(session: Session, written: GraphWrites, run_id: str | None = None) -> None:
    """Store checkpoints outside an attempt. `run_id` is the run that their metadata names, if any."""
    owned = [(run_id, None, written)]
    await _store(session, owned, _STORE_CHECKPOINTS_ALONE, _STORE_VALUES_ALONE, _STORE_WRITES_ALONE)


async def _store(
    session: Session, written: Sequence[OwnedWrites], heads: Statement, values: Statement, writes: Statement
) -> None:
    # Values are stored before checkpoints, so that a checkpoint that exists has its values.
    await session.fetch(values, _value_members(written))
    await session.fetch(writes, _write_members(written))
    await session.fetch(heads, _checkpoint_members(written))


# One row per key: a statement of Postgres cannot change a row twice.


def _checkpoint_members(written: Sequence[OwnedWrites]) -> list[tuple[Any, ...]]:
    members: dict[tuple[str, str, str], tuple[Any, ...]] = {}
    for run_id, attempt, item in written:
        for row in item.checkpoints:
            members[row.thread, row.ns, row.id] = (run_id, attempt, *row)
    return list(members.values())


def _value_members(written: Sequence[OwnedWrites]) -> list[tuple[Any, ...]]:
    members: dict[tuple[str, ...], tuple[Any, ...]] = {}
    for run_id, attempt, item in written:
        for row in item.values:
            members.setdefault((row.thread, row.ns, row.channel, row.version), (run_id, attempt, *row))
    return list(members.values())


def _write_members(written: Sequence[OwnedWrites]) -> list[tuple[Any, ...]]:
    members: dict[tuple[str, str, str, str, int], tuple[Any, ...]] = {}
    for run_id, attempt, item in written:
        for row in item.writes:
            key = (row.thread, row.ns, row.checkpoint_id, row.task_id, row.number)
            if row.number < 0 or key not in members:
                members[key] = (run_id, attempt, *row)
    return list(members.values())
