"""Accept runs: one insert per table for any number of runs.

Idempotency keys are decided by their primary key, ordering keys and limits of tenants under their locks, all in the
transaction that stores the runs. The lane is the operator's assignment or else the declared one. The insert checks that
a tenant has no limits. Runs without keys, the common case, have a shorter statement that needs no transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnCollection,
    ColumnElement,
    FromClause,
    Integer,
    SmallInteger,
    Text,
    and_,
    case,
    cast,
    delete,
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

from runlane.domain.events import EventType
from runlane.domain.run import PRIORITY_STEP_US, Accepted, Status
from runlane.domain.tenant import DEFAULT_TENANT, bare_key
from runlane.errors import IdempotencyConflict, RateQuota, Unavailable
from runlane.store.access.tenants import FREE
from runlane.store.queue.tenant_limits import Refusal, refusals
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.database import Database, Duplicate, Session
from runlane.store.sql.expressions import MARK, json_of, lit, member, now_us
from runlane.store.sql.schema import idempotency_keys, lane_kinds, run_events, run_inputs, runs, tenants
from runlane.store.sql.statement import Row, Statement


class NewRun(NamedTuple):
    """A validated request to start a run. `input` is JSON. A tuple, since bulk requests create many."""

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
    tenant: str = DEFAULT_TENANT
    limited: bool = False
    trace: str | None = None
    plan: str | None = None


_ALONE_COLUMNS = {
    "id": Text(),
    "target": Text(),
    "lane": Text(),
    "priority": SmallInteger(),
    "max_attempts": Integer(),
    "max_losses": Integer(),
    "delay_us": BigInteger(),
    "hold": Boolean(),
    "on_dead": Text(),
    "input": Text(),
    "tenant": Text(),
    "trace": Text(),
    "plan": Text(),
}
_RUN_COLUMNS = {**_ALONE_COLUMNS, "limited": Boolean(), "ordering_key": Text(), "key_position": Integer()}


def _timed(batch: FromClause, may_store: ColumnElement[bool]) -> FromClause:
    # The time is read once per row: a run's rank and its time of acceptance must agree. Materialized, because
    # SQLite would repeat the call wherever the column is used, and Postgres would unpack the batch twice.
    timed = select(batch, now_us().label("at")).select_from(batch).where(may_store)
    return timed.cte("admitted").prefix_with("materialized")


def _free(batch: FromClause) -> ColumnElement[bool]:
    """Return the condition that the tenant has no limits. Runs of other tenants are not stored by this statement."""
    return exists().where(tenants.c.id == batch.c.tenant, FREE)


def _admit_alone(batch: FromClause) -> FromClause:
    return _timed(batch, _free(batch))


def _admit(batch: FromClause) -> FromClause:
    return _timed(batch, or_(batch.c.limited, _free(batch)))


def _new_rows(t: ColumnCollection[str, Any]) -> dict[str, ColumnElement[Any]]:
    """Return the columns of a new run without keys."""
    moved = select(lane_kinds.c.lane).where(lane_kinds.c.kind == t.target).scalar_subquery()
    return {
        "id": t.id,
        "target": t.target,
        "lane": func.coalesce(moved, t.lane),
        "status": case(
            (t.hold, lit(Status.AWAITING_APPROVAL)),
            (t.delay_us > lit(0), lit(Status.SCHEDULED)),
            else_=lit(Status.QUEUED),
        ),
        "rank": t.at - cast(t.priority, BigInteger) * lit(PRIORITY_STEP_US),
        "priority": t.priority,
        "max_attempts": t.max_attempts,
        "max_losses": t.max_losses,
        "last_seq": lit(1),
        "accepted_at": t.at,
        "due_at": case((t.delay_us > lit(0), t.at + t.delay_us), else_=null()),
        "hold": t.hold,
        "on_dead": t.on_dead,
        "tenant": t.tenant,
    }


def _insert_runs_alone(admitted: FromClause) -> Executable:
    # No conflict clause: it would cost each row a second index lookup, for ids that exist only after a crash.
    rows = _new_rows(admitted.c)
    return (
        insert(runs)
        .from_select(list(rows), select(*rows.values()).select_from(admitted))
        .returning(runs.c.id, runs.c.status, runs.c.lane, runs.c.accepted_at)
    )


def _insert_runs(admitted: FromClause) -> Executable:
    t = admitted.c
    holder, waiting = runs.alias("holder"), runs.alias("waiting")
    held = or_(
        t.key_position > lit(1),
        exists().where(holder.c.ordering_key == t.ordering_key, holder.c.holds_key),
    )
    last_no = (
        select(func.max(waiting.c.key_no))
        .where(waiting.c.ordering_key == t.ordering_key, waiting.c.status == lit(Status.BLOCKED))
        .scalar_subquery()
    )
    keyed = t.ordering_key.is_not(None)
    rows = _new_rows(t)
    rows["status"] = case((and_(keyed, held), lit(Status.BLOCKED)), else_=rows["status"])
    rows["ordering_key"] = t.ordering_key
    rows["key_no"] = case((keyed, func.coalesce(last_no, lit(0)) + t.key_position), else_=null())
    rows["holds_key"] = and_(keyed, ~held)
    rows["limited"] = t.limited
    # This process makes the ids, so an existing run was stored by an earlier try whose result was lost. `where true`
    # keeps SQLite's parser from reading ON as a join.
    return (
        postgresql.insert(runs)
        .from_select(list(rows), select(*rows.values()).select_from(admitted).where(true()))
        .on_conflict_do_nothing(index_elements=["id"])
        .returning(runs.c.id, runs.c.status, runs.c.lane, runs.c.accepted_at, MARK)
    )


def _insert_inputs_alone(batch: FromClause | None, changed: FromClause) -> Executable:
    assert batch is not None  # noqa: S101 - this compound write has a batch
    return insert(run_inputs).from_select(
        ["run_id", "input", "trace", "plan"],
        select(batch.c.id, batch.c.input, batch.c.trace, batch.c.plan).select_from(batch),
    )


def _insert_inputs(batch: FromClause | None, changed: FromClause) -> Executable:
    assert batch is not None  # noqa: S101 - this compound write has a batch
    return (
        postgresql.insert(run_inputs)
        .from_select(
            ["run_id", "input", "trace", "plan"],
            select(batch.c.id, batch.c.input, batch.c.trace, batch.c.plan).select_from(batch).where(true()),
        )
        .on_conflict_do_nothing(index_elements=["run_id"])
    )


def _insert_first_events(batch: FromClause | None, changed: FromClause) -> Executable:
    c = changed.c
    first = select(c.id, lit(1), lit(0), lit(EventType.QUEUED), c.accepted_at, json_of(status=c.status))
    columns = ["run_id", "seq", "attempt", "type", "at", "data"]
    return insert(run_events).from_select(columns, first.select_from(changed))


def _claim_keys(batch: FromClause) -> Executable:
    # Both dialects spell ON CONFLICT the same.
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


_RETURNS = {"id": Text(), "status": Text(), "lane": Text(), "accepted_at": BigInteger()}
_ACCEPT = CompoundWrite(
    "accept",
    _insert_runs,
    columns=_RUN_COLUMNS,
    returns={**_RETURNS, "mark": Text()},
    links=[_insert_inputs, _insert_first_events],
    admit=_admit,
    purpose="Store new runs with their inputs and first events.",
)
_ACCEPT_ALONE = CompoundWrite(
    "accept_alone",
    _insert_runs_alone,
    columns=_ALONE_COLUMNS,
    returns=_RETURNS,
    links=[_insert_inputs_alone, _insert_first_events],
    admit=_admit_alone,
    purpose="Store new runs without keys, as one statement without a transaction.",
)
_STORED = Statement(
    "find_stored_runs",
    select(runs.c.id, runs.c.status, runs.c.lane).where(member(runs.c.id, "ids")),
    purpose="Find those of some runs that are stored.",
)
_CLAIM_KEYS = Statement(
    "claim_idempotency_keys",
    _claim_keys,
    {"key": Text(), "fingerprint": Text(), "run_id": Text()},
    purpose="Reserve idempotency keys for new runs.",
)
_READ_KEYS = Statement(
    "read_idempotency_keys",
    select(idempotency_keys, runs.c.status, runs.c.lane)
    .select_from(idempotency_keys.join(runs, runs.c.id == idempotency_keys.c.run_id))
    .where(member(idempotency_keys.c.key, "keys")),
    purpose="Read the runs stored under idempotency keys.",
)
_FREE_KEYS = Statement(
    "free_idempotency_keys",
    delete(idempotency_keys).where(member(idempotency_keys.c.run_id, "ids")),
    purpose="Free the idempotency keys of refused runs.",
)

Verdict = Accepted | IdempotencyConflict | Refusal


async def accept(session: Session, requests: Sequence[NewRun], sizes: Sequence[int] | None = None) -> list[Verdict]:
    """Store the runs and return verdicts in the order of the requests. The caller holds the locks of ordering keys.

    `sizes` splits the requests into groups; a tenant's limit rejects a whole group. Without it they are one group.
    """
    replays, twins = await _replays(session, requests)
    fresh = [run for run in requests if run.id not in replays and run.id not in twins]
    verdicts: dict[str, Verdict] = {**replays, **await _store(session, fresh)}
    left_out = {run.id for run in fresh if run.id not in verdicts}
    if left_out:
        verdicts |= await _store_limited(session, _groups(requests, sizes, left_out))
    for run_id, first in twins.items():
        verdict = verdicts[first]
        verdicts[run_id] = replace(verdict, replayed=True) if isinstance(verdict, Accepted) else verdict
    return [verdicts[run.id] for run in requests]


async def _store(session: Session, fresh: Sequence[NewRun]) -> dict[str, Accepted]:
    """Store the runs of tenants without limits, and find those that an earlier try has stored."""
    rows = list(await session.write(_ACCEPT, _members(fresh)))
    if len(rows) < len(fresh):
        missing = {run.id for run in fresh} - {row["id"] for row in rows}
        rows += await session.fetch(_STORED, ids=session.texts(sorted(missing)))
    return _accepted_of(rows)


async def _store_limited(session: Session, groups: Sequence[Sequence[NewRun]]) -> dict[str, Verdict]:
    """Store the groups that are within the limits of their tenants."""
    refused: dict[str, Verdict] = {}
    admitted: list[NewRun] = []
    reasons = await refusals(session, [(group[0].tenant, len(group)) for group in groups])
    quotas: dict[str, RateQuota | None] = {}
    for group, reason in zip(groups, reasons, strict=True):
        if reason is None or isinstance(reason, RateQuota):
            admitted += [run._replace(limited=True) for run in group]
            quotas |= {run.id: reason for run in group}
        else:
            refused |= {run.id: reason for run in group}
    if any(run.idempotency_key is not None for group in groups for run in group):
        # The next request with the key must count as the first one.
        await session.fetch(_FREE_KEYS, ids=session.texts(sorted(refused)))
    stored = await _store(session, admitted)
    return {**refused, **{run_id: replace(item, quota=quotas[run_id]) for run_id, item in stored.items()}}


def _groups(requests: Sequence[NewRun], sizes: Sequence[int] | None, wanted: Collection[str]) -> list[list[NewRun]]:
    """Return the requests by group and tenant."""
    groups: list[list[NewRun]] = []
    rest = iter(requests)
    for size in sizes or [len(requests)]:
        by_tenant: dict[str, list[NewRun]] = {}
        for run in islice(rest, size):
            if run.id in wanted:
                by_tenant.setdefault(run.tenant, []).append(run)
        groups += by_tenant.values()
    return groups


def stand_alone(requests: Iterable[NewRun]) -> bool:
    """Return whether no run has a key that involves other runs."""
    return all(run.ordering_key is None and run.idempotency_key is None for run in requests)


async def accept_alone(database: Database, requests: Sequence[NewRun]) -> dict[str, Accepted] | None:
    """Store runs without keys with one statement, in one round trip; return the verdicts by id.

    Return None when a tenant has limits or some runs exist; then use `accept`. A broken connection leaves nothing in
    doubt: this process makes the ids, so the next try finds what was stored.
    """
    try:
        rows = await database.execute_single(_ACCEPT_ALONE, [_alone(run) for run in requests])
    except Duplicate:
        return None
    return _accepted_of(rows) if len(rows) == len(requests) else None


def _alone(run: NewRun) -> tuple[object, ...]:
    return (
        run.id, run.target, run.lane, run.priority, run.max_attempts, run.max_losses, run.delay_us, run.hold,
        run.on_dead, run.input, run.tenant, run.trace, run.plan,
    )  # fmt: skip


def _members(requests: Sequence[NewRun]) -> list[tuple[object, ...]]:
    positions: Counter[str] = Counter()
    members: list[tuple[object, ...]] = []
    for run in requests:
        position = 0
        if run.ordering_key is not None:
            positions[run.ordering_key] += 1
            position = positions[run.ordering_key]
        members.append((*_alone(run), run.limited, run.ordering_key, position))
    return members


def _accepted_of(rows: Sequence[Row]) -> dict[str, Accepted]:
    return {row["id"]: Accepted(row["id"], Status(row["status"]), row["lane"]) for row in rows}


async def _replays(session: Session, requests: Sequence[NewRun]) -> tuple[dict[str, Verdict], dict[str, str]]:
    """Return the verdicts on requests whose idempotency key belongs to an earlier one, by the id they would have had.

    Also return the requests that repeat another one of this batch, with the id of that one, whose verdict they get.
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
            verdicts[run.id] = IdempotencyConflict(bare_key(key), owner)
    return verdicts, twins
