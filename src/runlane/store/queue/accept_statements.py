"""The statements that store new runs: with keys, without any, with rules only, or with concurrency limits only.

The lane is the operator's assignment or else the declared one. The insert checks that a tenant has no limits, and that
its runs have their start tags if it shares lanes with other tenants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from runlane.domain.run import RunHook, Status
from runlane.domain.start_tags import PRIORITY_SECONDS
from runlane.store.access.tenants import FREE
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.expressions import MARK, has_bits, json_of, lit, now_us
from runlane.store.sql.schema import lane_kinds, lanes, limit_slots, run_events, run_inputs, runs, tenants

ALONE_COLUMNS = {
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
_FLOW_COLUMNS = {
    "due_at": BigInteger(),
    "expires_us": BigInteger(),
    "unique_key": Text(),
    "backlog_key": Text(),
    "flow_key": Text(),
}
_RULED_COLUMNS = {**ALONE_COLUMNS, **_FLOW_COLUMNS}
_RUN_COLUMNS = {
    **ALONE_COLUMNS,
    "limited": Boolean(),
    "origin": Text(),
    "hooks": SmallInteger(),
    "tags": Text(),
    "ordering_key": Text(),
    "key_position": Integer(),
    "fairness_key": Text(),
    "placed": Boolean(),
    "rank": BigInteger(),
    "start_tag": BigInteger(),
    "limits": Text(),
    "limit_is_full": Boolean(),
    **_FLOW_COLUMNS,
}
_LIMITED_COLUMNS = {**ALONE_COLUMNS, "limits": Text(), "limit_key": Text(), "limit_is_full": Boolean()}


def timed(batch: FromClause, may_store: ColumnElement[bool]) -> FromClause:
    """Return the members of a batch that may be stored, with the time of their acceptance."""
    # The time is read once per row: a run's rank and its time of acceptance must agree. Materialized, because
    # SQLite would repeat the call wherever the column is used, and Postgres would unpack the batch twice.
    timed = select(batch, now_us().label("at")).select_from(batch).where(may_store)
    return timed.cte("admitted").prefix_with("materialized")


def _free(batch: FromClause, has_tag: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that the tenant has no limits and that the run has a start tag, if it needs one.

    The statement does not store other runs.
    """
    return exists().where(tenants.c.id == batch.c.tenant, FREE, has_tag)


def admit_alone(batch: FromClause) -> FromClause:
    """Return the members whose tenants have no limits and share no lanes, with the time of their acceptance."""
    return timed(batch, _free(batch, ~tenants.c.shares_lanes))


def _admit(batch: FromClause) -> FromClause:
    return timed(batch, or_(batch.c.limited, _free(batch, or_(batch.c.placed, ~tenants.c.shares_lanes))))


def new_rows(t: ColumnCollection[str, Any]) -> dict[str, ColumnElement[Any]]:
    """Return the columns of a new run without keys."""
    # Without `correlate_except`, a subquery in a subquery would read all rows of the statement instead of its own.
    kind = select(lane_kinds.c.lane).where(lane_kinds.c.kind == t.target)
    moved = kind.correlate_except(lane_kinds).scalar_subquery()
    lane = func.coalesce(moved, t.lane)
    named = select(lanes.c.priority_seconds).where(lanes.c.name == lane)
    seconds = named.correlate_except(lanes).scalar_subquery()
    point = func.coalesce(seconds, lit(PRIORITY_SECONDS)) * lit(1_000_000)
    return {
        "id": t.id,
        "target": t.target,
        "lane": lane,
        "status": case(
            (t.hold, lit(Status.AWAITING_APPROVAL)),
            (t.delay_us > lit(0), lit(Status.SCHEDULED)),
            else_=lit(Status.QUEUED),
        ),
        # The lane is read only for a run with a priority.
        "rank": case((t.priority == lit(0), t.at), else_=t.at - cast(t.priority, BigInteger) * point),
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
    # No conflict clause, which would cost each row a second index lookup: an id is already stored only after a crash.
    rows = new_rows(admitted.c)
    return (
        insert(runs)
        .from_select(list(rows), select(*rows.values()).select_from(admitted))
        .returning(runs.c.id, runs.c.status, runs.c.lane, runs.c.accepted_at)
    )


def is_ready(t: ColumnCollection[str, Any]) -> ColumnElement[bool]:
    """Return the condition that a new run waits for no approval and no time."""
    return and_(~t.hold, t.delay_us <= lit(0))


def insert_runs_limited(admitted: FromClause) -> Executable:
    """Store runs with concurrency limits and no keys, blocked where `limit_is_full`."""
    t = admitted.c
    rows = new_rows(t)
    rows["status"] = case((and_(t.limit_is_full, is_ready(t)), lit(Status.BLOCKED)), else_=rows["status"])
    rows["hooks"] = case((t.limit_key.is_(None), lit(0)), else_=lit(RunHook.LIMITS))
    return (
        insert(runs)
        .from_select(list(rows), select(*rows.values()).select_from(admitted))
        .returning(runs.c.id, runs.c.status, runs.c.lane, runs.c.accepted_at, MARK)
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
    rows = _ruled_rows(t)
    waits = or_(and_(keyed, held), has_bits(t.hooks, RunHook.WAITS_FOR_RUNS))
    waits = or_(waits, and_(t.limit_is_full, is_ready(t), t.due_at.is_(None)))
    rows["status"] = case((waits, lit(Status.BLOCKED)), else_=rows["status"])
    rows["ordering_key"] = t.ordering_key
    rows["key_no"] = case((keyed, func.coalesce(last_no, lit(0)) + t.key_position), else_=null())
    rows["holds_key"] = and_(keyed, ~held)
    rows["limited"] = t.limited
    rows["hooks"] = t.hooks
    rows["fairness_key"] = t.fairness_key
    rows["rank"] = func.coalesce(t.rank, rows["rank"])
    rows["start_tag"] = t.start_tag
    rows["tags"] = t.tags
    return _insert_new(rows, admitted)


def _insert_runs_ruled(admitted: FromClause) -> Executable:
    return _insert_new(_ruled_rows(admitted.c), admitted)


def _ruled_rows(t: ColumnCollection[str, Any]) -> dict[str, ColumnElement[Any]]:
    """Return the columns of a new run with rules of flow control."""
    rows = new_rows(t)
    # A due time of flow control that has passed meanwhile is left to the timers, because they complete batches.
    rows["status"] = case((and_(~t.hold, t.due_at.is_not(None)), lit(Status.SCHEDULED)), else_=rows["status"])
    rows["due_at"] = func.coalesce(t.due_at, rows["due_at"])
    rows["expires_at"] = t.at + t.expires_us
    rows["unique_key"] = t.unique_key
    rows["backlog_key"] = t.backlog_key
    rows["flow_key"] = t.flow_key
    return rows


def _insert_new(rows: Mapping[str, ColumnElement[Any]], admitted: FromClause) -> Executable:
    # This process makes the ids, so an existing run was stored by an earlier try whose result was lost. `where true`
    # keeps SQLite's parser from reading ON as a join.
    return (
        postgresql.insert(runs)
        .from_select(list(rows), select(*rows.values()).select_from(admitted).where(true()))
        .on_conflict_do_nothing(index_elements=["id"])
        .returning(runs.c.id, runs.c.status, runs.c.lane, runs.c.accepted_at, MARK)
    )


def insert_inputs_alone(batch: FromClause | None, changed: FromClause) -> Executable:
    """A link: store the inputs of runs without keys."""
    assert batch is not None  # noqa: S101 - this compound write has a batch
    return insert(run_inputs).from_select(
        ["run_id", "input", "trace", "plan"],
        select(batch.c.id, batch.c.input, batch.c.trace, batch.c.plan).select_from(batch),
    )


def insert_inputs_limited(batch: FromClause | None, changed: FromClause) -> Executable:
    """A link: store the inputs of runs with their concurrency limits."""
    assert batch is not None  # noqa: S101 - this compound write has a batch
    b = batch.c
    return insert(run_inputs).from_select(
        ["run_id", "input", "trace", "plan", "limits"],
        select(b.id, b.input, b.trace, b.plan, b.limits).select_from(batch),
    )


def insert_slots(batch: FromClause | None, changed: FromClause) -> Executable:
    """A link: store the slots of the runs that are admitted."""
    assert batch is not None  # noqa: S101 - this compound write has a batch
    b = batch.c
    return insert(limit_slots).from_select(
        ["key", "run_id"],
        select(b.limit_key, b.id).select_from(batch).where(b.limit_key.is_not(None), ~b.limit_is_full, is_ready(b)),
    )


def _insert_inputs(batch: FromClause | None, changed: FromClause) -> Executable:
    return _insert_inputs_with(batch, "input", "trace", "plan", "origin", "limits")


def _insert_inputs_ruled(batch: FromClause | None, changed: FromClause) -> Executable:
    return _insert_inputs_with(batch, "input", "trace", "plan")


def _insert_inputs_with(batch: FromClause | None, *columns: str) -> Executable:
    assert batch is not None  # noqa: S101 - these compound writes have a batch
    rows = select(batch.c.id, *(batch.c[name] for name in columns)).select_from(batch).where(true())
    new = postgresql.insert(run_inputs).from_select(["run_id", *columns], rows)
    return new.on_conflict_do_nothing(index_elements=["run_id"])


def insert_first_events(batch: FromClause | None, changed: FromClause) -> Executable:
    """A link: add the first event of each run."""
    c = changed.c
    first = select(c.id, lit(1), lit(0), lit(EventType.QUEUED), c.accepted_at, json_of(status=c.status))
    columns = ["run_id", "seq", "attempt", "type", "at", "data"]
    return insert(run_events).from_select(columns, first.select_from(changed))


RETURNS = {"id": Text(), "status": Text(), "lane": Text(), "accepted_at": BigInteger()}
ACCEPT = CompoundWrite(
    "accept",
    _insert_runs,
    columns=_RUN_COLUMNS,
    returns={**RETURNS, "mark": Text()},
    links=[_insert_inputs, insert_first_events],
    admit=_admit,
    purpose="Store new runs with their inputs and first events.",
)
ACCEPT_RULED = CompoundWrite(
    "accept_ruled",
    _insert_runs_ruled,
    columns=_RULED_COLUMNS,
    returns={**RETURNS, "mark": Text()},
    links=[_insert_inputs_ruled, insert_first_events],
    admit=admit_alone,
    purpose="Store new runs that have rules of flow control and nothing else that needs further columns.",
)
ACCEPT_LIMITED = CompoundWrite(
    "accept_limited",
    insert_runs_limited,
    columns=_LIMITED_COLUMNS,
    returns={**RETURNS, "mark": Text()},
    links=[insert_inputs_limited, insert_first_events, insert_slots],
    admit=admit_alone,
    purpose="Store new runs that have concurrency limits and no keys, with the slots of their first limits.",
)
ACCEPT_ALONE = CompoundWrite(
    "accept_alone",
    _insert_runs_alone,
    columns=ALONE_COLUMNS,
    returns=RETURNS,
    links=[insert_inputs_alone, insert_first_events],
    admit=admit_alone,
    purpose="Store new runs without keys, as one statement without a transaction.",
)
