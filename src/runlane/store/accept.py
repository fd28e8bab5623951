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

from runlane.errors import IdempotencyConflict, Unavailable
from runlane.model.event import EventType
from runlane.model.run import PRIORITY_STEP_US, Accepted, Status
from runlane.store.chain import Chain
from runlane.store.database import Session
from runlane.store.expressions import MARK, json_of, lit, member, now_us
from runlane.store.schema import idempotency_keys, lane_kinds, run_events, run_inputs, runs
from runlane.store.statement import Row, Statement


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
    "input": Text(),
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
    # The ids are ours, so a run that is there already was stored by an earlier try whose answer was lost.
    return (
        postgresql.insert(runs)
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
            )
            .select_from(timed)
            .where(true()),
        )
        .on_conflict_do_nothing(index_elements=["id"])
        .returning(runs.c.id, runs.c.status, runs.c.lane, runs.c.accepted_at, MARK)
    )  # fmt: skip


def _insert_inputs(batch: FromClause | None, changed: FromClause) -> Executable:
    assert batch is not None  # noqa: S101 - the chain has a batch
    return (
        postgresql.insert(run_inputs)
        .from_select(["run_id", "input"], select(batch.c.id, batch.c.input).select_from(batch).where(true()))
        .on_conflict_do_nothing(index_elements=["run_id"])
    )


def _insert_first_events(batch: FromClause | None, changed: FromClause) -> Executable:
    c = changed.c
    return insert(run_events).from_select(
        ["run_id", "seq", "attempt", "type", "at", "data"],
        select(c.id, lit(1), lit(0), lit(EventType.QUEUED), c.accepted_at, json_of(status=c.status)).select_from(
            changed
        ),
    )


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


ACCEPT = Chain(
    "accept",
    _insert_runs,
    columns=_RUN_COLUMNS,
    returns={"id": Text(), "status": Text(), "lane": Text(), "accepted_at": BigInteger(), "mark": Text()},
    links=[_insert_inputs, _insert_first_events],
)
_STORED = Statement("read_stored", select(runs.c.id, runs.c.status, runs.c.lane).where(member(runs.c.id, "ids")))
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
    members = accept_members(fresh)
    rows = list(await session.chain(ACCEPT, members))
    if len(rows) < len(members):
        missing = {run.id for run in fresh} - {row["id"] for row in rows}
        rows += await session.fetch(_STORED, ids=session.texts(sorted(missing)))
    stored = accepted_of(rows)
    stored |= {run_id: replace(stored[first], replayed=True) for run_id, first in twins.items()}
    return [replays[run.id] if run.id in replays else stored[run.id] for run in requests]


def accept_members(requests: Sequence[NewRun]) -> list[tuple[object, ...]]:
    """The requests as members of the ACCEPT chain."""
    positions: Counter[str] = Counter()
    members: list[tuple[object, ...]] = []
    for run in requests:
        if run.ordering_key is not None:
            positions[run.ordering_key] += 1
        members.append(
            (
                run.id, run.target, run.lane, run.priority, run.max_attempts, run.max_losses, run.delay_us,
                run.hold, run.ordering_key, positions[run.ordering_key] if run.ordering_key else 0,
                run.on_dead, run.input,
            )
        )  # fmt: skip
    return members


def accepted_of(rows: Sequence[Row]) -> dict[str, Accepted]:
    """What the ACCEPT chain answered, by id."""
    return {row["id"]: Accepted(row["id"], Status(row["status"]), row["lane"]) for row in rows}


def stands_alone(request: NewRun) -> bool:
    """Whether the run has no key that other runs have to do with, so that one statement can store it."""
    return request.ordering_key is None and request.idempotency_key is None


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
            first = first_of.get(key)
            if first is None:
                raise Unavailable("The run of an idempotency key was deleted at this moment; the next try stores it.")
            owner, same = first.id, first.fingerprint == run.fingerprint
            twins[run.id] = owner
        if not same:
            twins.pop(run.id, None)
            verdicts[run.id] = IdempotencyConflict(key, owner)
    return verdicts, twins
