"""Accepting runs: one insert per table for any number of them, whatever their keys.

Idempotency keys are decided by their primary key, ordering keys under their lock, the lane by the operator's
choice for the kind or else the declared one. All of it is in the transaction that stores the runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import (
    BigInteger,
    Boolean,
    FromClause,
    Integer,
    SmallInteger,
    Text,
    and_,
    case,
    cast,
    exists,
    func,
    insert,
    null,
    or_,
    select,
    true,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.base import Executable

from runlane.errors import IdempotencyConflict
from runlane.model.event import EventType
from runlane.model.run import PRIORITY_STEP_US, Accepted, Status
from runlane.store.database import Session
from runlane.store.events import append
from runlane.store.schema import idempotency_keys, lane_kinds, run_inputs, runs
from runlane.store.statement import MARK, Statement, lit, member, now_us


@dataclass(frozen=True, slots=True)
class NewRun:
    """A checked request to run something. `input` is JSON text."""

    id: str
    target: str
    lane: str
    input: str
    priority: int
    max_attempts: int
    max_losses: int
    delay_us: int
    hold: bool
    ordering_key: str | None
    on_dead: str
    idempotency_key: str | None
    fingerprint: str


_RUN_COLUMNS = {
    "id": Text(),
    "target": Text(),
    "lane": Text(),
    "priority": SmallInteger(),
    "max_attempts": Integer(),
    "max_losses": Integer(),
    "delay_us": BigInteger(),
    "hold": Boolean(),
    "ordering_key": Text(),
    "key_position": Integer(),
    "on_dead": Text(),
}


def _insert_runs(batch: FromClause) -> Executable:
    # The time is taken once per row: a run's rank and its time of acceptance must agree. Materialized, because
    # SQLite would put the call itself wherever the column is used.
    timed = select(batch, now_us().label("at")).select_from(batch).cte("timed").prefix_with("materialized")
    t = timed.c
    holder, waiting = runs.alias("holder"), runs.alias("waiting")
    held = or_(
        t.key_position > lit(1),
        exists().where(holder.c.ordering_key == t.ordering_key, holder.c.holds_key),
    )
    moved = select(lane_kinds.c.lane).where(lane_kinds.c.kind == t.target).scalar_subquery()
    last_no = (
        select(func.max(waiting.c.key_no))
        .where(waiting.c.ordering_key == t.ordering_key, waiting.c.status == lit(Status.BLOCKED))
        .scalar_subquery()
    )
    keyed = t.ordering_key.is_not(None)
    return (
        insert(runs)
        .from_select(
            [
                "id", "target", "lane", "status", "rank", "priority", "max_attempts", "max_losses", "last_seq",
                "accepted_at", "due_at", "hold", "ordering_key", "key_no", "holds_key", "on_dead",
            ],
            select(
                t.id,
                t.target,
                func.coalesce(moved, t.lane),
                case(
                    (and_(keyed, held), lit(Status.BLOCKED)),
                    (t.hold, lit(Status.AWAITING_APPROVAL)),
                    (t.delay_us > lit(0), lit(Status.SCHEDULED)),
                    else_=lit(Status.QUEUED),
                ),
                t.at - cast(t.priority, BigInteger) * lit(PRIORITY_STEP_US),
                t.priority,
                t.max_attempts,
                t.max_losses,
                lit(1),
                t.at,
                case((t.delay_us > lit(0), t.at + t.delay_us), else_=null()),
                t.hold,
                t.ordering_key,
                case((keyed, func.coalesce(last_no, lit(0)) + t.key_position), else_=null()),
                and_(keyed, ~held),
                t.on_dead,
            ).select_from(timed),
        )
        .returning(runs.c.id, runs.c.status, runs.c.lane, MARK)
    )  # fmt: skip


def _insert_inputs(batch: FromClause) -> Executable:
    return insert(run_inputs).from_select(["run_id", "input"], select(batch.c.run_id, batch.c.input).select_from(batch))


def _claim_keys(batch: FromClause) -> Executable:
    # Both dialects spell ON CONFLICT the same; `where true` keeps SQLite's parser from reading ON as a join.
    b = batch.c
    return (
        postgresql.insert(idempotency_keys)
        .from_select(
            ["key", "fingerprint", "run_id", "created_at"],
            select(b.key, b.fingerprint, b.run_id, now_us()).select_from(batch).where(true()),
        )
        .on_conflict_do_nothing(index_elements=["key"])
        .returning(idempotency_keys.c.key, idempotency_keys.c.run_id, MARK)
    )


_INSERT_RUNS = Statement("insert_runs", _insert_runs, _RUN_COLUMNS)
_INSERT_INPUTS = Statement("insert_inputs", _insert_inputs, {"run_id": Text(), "input": Text()})
_CLAIM_KEYS = Statement("claim_idempotency_keys", _claim_keys, {"key": Text(), "fingerprint": Text(), "run_id": Text()})
_READ_KEYS = Statement(
    "read_idempotency_keys",
    select(idempotency_keys, runs.c.status, runs.c.lane)
    .select_from(idempotency_keys.join(runs, runs.c.id == idempotency_keys.c.run_id))
    .where(member(idempotency_keys.c.key, "keys")),
)

Verdict = Accepted | IdempotencyConflict


async def accept(session: Session, requests: Sequence[NewRun]) -> list[Verdict]:
    """Store the runs; the verdicts are in the order of the requests. The caller holds the ordering keys' locks."""
    replays, twins = await _replays(session, requests)
    fresh = [run for run in requests if run.id not in replays and run.id not in twins]
    positions: Counter[str] = Counter()
    members: list[tuple[object, ...]] = []
    for run in fresh:
        if run.ordering_key is not None:
            positions[run.ordering_key] += 1
        members.append(
            (
                run.id, run.target, run.lane, run.priority, run.max_attempts, run.max_losses, run.delay_us,
                run.hold, run.ordering_key, positions[run.ordering_key] if run.ordering_key else 0, run.on_dead,
            )
        )  # fmt: skip
    rows = await session.fetch(_INSERT_RUNS, members)
    await session.fetch(_INSERT_INPUTS, [(run.id, run.input) for run in fresh])
    await append(
        session,
        [(row["id"], 1, 0, EventType.QUEUED.value, f'{{"status":"{row["status"]}"}}') for row in rows],
    )
    stored = {row["id"]: Accepted(row["id"], Status(row["status"]), row["lane"]) for row in rows}
    stored |= {run_id: replace(stored[first], replayed=True) for run_id, first in twins.items()}
    return [replays[run.id] if run.id in replays else stored[run.id] for run in requests]


async def _replays(session: Session, requests: Sequence[NewRun]) -> tuple[dict[str, Verdict], dict[str, str]]:
    """The verdicts on requests whose idempotency key belongs to an earlier one, by the id they would have had.

    Apart from these, the requests that repeat another one of this very batch, with that one's id: its run is stored
    a moment later, and its verdict is theirs.
    """
    verdicts: dict[str, Verdict] = {}
    twins: dict[str, str] = {}
    keyed = {run.id: run for run in requests if run.idempotency_key is not None}
    if not keyed:
        return verdicts, twins
    # Sorted, so that two processes with the same keys wait for each other and do not deadlock.
    members = sorted((run.idempotency_key, run.fingerprint, run.id) for run in keyed.values())
    won = {row["run_id"] for row in await session.fetch(_CLAIM_KEYS, members)}
    lost = [run for run in keyed.values() if run.id not in won]
    if not lost:
        return verdicts, twins
    keys = sorted({run.idempotency_key for run in lost if run.idempotency_key is not None})
    known = {row["key"]: row for row in await session.fetch(_READ_KEYS, keys=session.texts(keys))}
    first_of = {run.idempotency_key: run for run in keyed.values() if run.id in won}
    for run in lost:
        key = run.idempotency_key or ""
        row = known.get(key)
        if row is not None:
            owner, same = row["run_id"], row["fingerprint"] == run.fingerprint
            verdicts[run.id] = Accepted(owner, Status(row["status"]), row["lane"], replayed=True)
        else:
            first = first_of[key]
            owner, same = first.id, first.fingerprint == run.fingerprint
            twins[run.id] = owner
        if not same:
            twins.pop(run.id, None)
            verdicts[run.id] = IdempotencyConflict(key, owner)
    return verdicts, twins
