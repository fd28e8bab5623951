"""The statements of flow control: lock and store the state of keys, and change the runs that starts join."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    Text,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    select,
    true,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from runlane.domain.quota import COLLECTING_KEYS, DAY_US
from runlane.domain.run import RunHook, Status
from runlane.store.access.tenants import FREE
from runlane.store.sql.expressions import (
    MARK,
    by_key_only,
    has_bits,
    lit,
    member,
    now_once,
    now_us,
    upsert,
    without_bits,
)
from runlane.store.sql.schema import batch_items, flow_keys, idempotency_keys, run_inputs, runs, tenant_quotas, tenants
from runlane.store.sql.statement import Statement

SEALED_AT_ONCE: Final = 200
FORGOTTEN_AT_ONCE: Final = 5000
# The statuses of a run that waits for its due time, and may wait for something else meanwhile.
_WAITING: Final = [lit(status) for status in (Status.SCHEDULED, Status.BLOCKED, Status.AWAITING_APPROVAL)]
_today = cast(now_us() // lit(DAY_US), Integer)

LIMITED_TENANTS = Statement(
    "find_limited_tenants",
    select(tenants.c.id).where(member(tenants.c.id, "ids"), ~FREE),
    purpose="Find tenants with limits, which are checked before flow control.",
)


_any_limited = exists().where(member(tenants.c.id, "tenants"), ~FREE)
# In the order of the keys, so that two transactions with the same keys wait and do not deadlock. The same statement
# returns whether one of the tenants has limits, because most have none.
LOCK_KEYS = Statement(
    "lock_flow_keys",
    select(flow_keys, now_us().label("now"), _any_limited.label("limited"))
    .where(member(flow_keys.c.key, "keys"))
    .order_by(flow_keys.c.key)
    .with_for_update(of=flow_keys),
    purpose="Lock keys of flow control and read their state.",
)


def _add_keys(batch: FromClause) -> Executable:
    return (
        upsert(flow_keys)
        .from_select(
            ["key", "used_on"],
            select(batch.c.key, _today).select_from(batch).where(true()).order_by(batch.c.key),
        )
        .on_conflict_do_nothing(index_elements=["key"])
    )


ADD_KEYS = Statement("add_flow_keys", _add_keys, {"key": Text()}, purpose="Add keys of flow control without state.")


def _store_keys(batch: FromClause) -> Executable:
    b = batch.c
    return (
        update(flow_keys)
        .where(flow_keys.c.key == b.key)
        .values(
            used_on=_today,
            tat=b.tat,
            run_id=b.run_id,
            opened_at=b.opened_at,
            due_at=b.due_at,
            starts=b.starts,
            size=b.size,
            most=b.most,
            skipped=b.skipped,
        )
    )


STORE_KEYS = Statement(
    "store_flow_keys",
    _store_keys,
    {
        "key": Text(),
        "tat": BigInteger(),
        "run_id": Text(),
        "opened_at": BigInteger(),
        "due_at": BigInteger(),
        "starts": Integer(),
        "size": Integer(),
        "most": Integer(),
        "skipped": BigInteger(),
    },
    purpose="Store the state of keys of flow control.",
)


def _store_rates(batch: FromClause) -> Executable:
    return update(flow_keys).where(flow_keys.c.key == batch.c.key).values(used_on=_today, tat=batch.c.tat)


STORE_RATES = Statement(
    "store_flow_rates",
    _store_rates,
    {"key": Text(), "tat": BigInteger()},
    purpose="Store the state of keys of which nothing but the rate has changed.",
)
OPEN_UNIQUE = Statement(
    "open_unique_runs",
    select(runs.c.unique_key, runs.c.id, runs.c.lane, runs.c.status, runs.c.ordering_key).where(
        member(runs.c.unique_key, "keys"), runs.c.ended_at.is_(None)
    ),
    purpose="Find the open runs with unique keys.",
)
UNIQUE_KEY_OF = Statement(
    "unique_key_of_run",
    select(runs.c.unique_key, runs.c.target).where(runs.c.id == bindparam("run_id")),
    purpose="Read the unique key of a run that is retried.",
)
COUNT_BACKLOG = Statement(
    "count_backlog",
    select(runs.c.backlog_key, func.count().label("waiting"))
    .where(member(runs.c.backlog_key, "keys"), runs.c.attempt == lit(0), runs.c.ended_at.is_(None))
    .group_by(runs.c.backlog_key),
    purpose="Count the runs of keys that wait for their first start.",
)
# Runs of a tenant with the quota are `limited`, so the index of those is read.
COUNT_COLLECTING = Statement(
    "use_of_collecting_keys",
    select(func.count().label("used"))
    .select_from(runs.join(flow_keys, flow_keys.c.key == runs.c.flow_key))
    .where(
        runs.c.tenant == bindparam("tenant", type_=Text()),
        runs.c.limited,
        runs.c.ended_at.is_(None),
        runs.c.attempt == lit(0),
        runs.c.due_at > now_us(),
        flow_keys.c.run_id == runs.c.id,
    ),
    purpose="Count the use of the quota collecting_keys.",
)
COLLECTING_QUOTAS = Statement(
    "read_collecting_quotas",
    select(tenant_quotas.c.tenant, tenant_quotas.c.most).where(
        member(tenant_quotas.c.tenant, "ids"), tenant_quotas.c.name == lit(COLLECTING_KEYS)
    ),
    purpose="Read how many keys of tenants may have a debounced run or a batch.",
)
# Locked rows are left out: a transaction that holds a key of flow control never waits for a run.
LOCK_JOINABLE = Statement(
    "lock_joinable_runs",
    select(runs.c.id, runs.c.lane, runs.c.status)
    .where(
        member(runs.c.id, "ids"),
        by_key_only(runs.c.status).in_(_WAITING),
        runs.c.attempt == lit(0),
        runs.c.due_at > now_us(),
    )
    .with_for_update(skip_locked=True),
    purpose="Lock the runs that starts with their key may join.",
)
FIND_JOINABLE = Statement(
    "find_joinable_runs",
    select(runs.c.id).where(
        member(runs.c.id, "ids"),
        by_key_only(runs.c.status).in_(_WAITING),
        runs.c.attempt == lit(0),
        runs.c.due_at > now_us(),
    ),
    purpose="Find out whether a run that starts may join is locked by another transaction.",
)


def _join(batch: FromClause) -> Executable:
    b = batch.c
    return (
        update(runs)
        .where(runs.c.id == b.id)
        .values(due_at=b.due_at, last_seq=runs.c.last_seq + b.events)
        .returning(runs.c.id, runs.c.last_seq, runs.c.attempt, MARK)
    )


JOIN_RUNS = Statement(
    "join_runs",
    _join,
    {"id": Text(), "due_at": BigInteger(), "events": Integer()},
    purpose="Change the due times of runs that further starts have joined.",
)


def _replace_inputs(batch: FromClause) -> Executable:
    b = batch.c
    return update(run_inputs).where(run_inputs.c.run_id == b.run_id).values(input=b.input, plan=b.plan)


REPLACE_INPUTS = Statement(
    "replace_inputs",
    _replace_inputs,
    {"run_id": Text(), "input": Text(), "plan": Text()},
    purpose="Replace the inputs of debounced runs by those of their last starts.",
)


def _add_items(batch: FromClause) -> Executable:
    b = batch.c
    return insert(batch_items).from_select(
        ["run_id", "no", "item"], select(b.run_id, b.no, b.item).select_from(batch).where(true())
    )


ADD_ITEMS = Statement(
    "add_batch_items",
    _add_items,
    {"run_id": Text(), "no": Integer(), "item": Text()},
    purpose="Add the inputs of starts to batches.",
)


def _assign_keys(batch: FromClause) -> Executable:
    b = batch.c
    return update(idempotency_keys).where(idempotency_keys.c.key == b.key).values(run_id=b.run_id, start_id=b.start_id)


ASSIGN_KEYS = Statement(
    "assign_idempotency_keys",
    _assign_keys,
    {"key": Text(), "run_id": Text(), "start_id": Text()},
    purpose="Remember with idempotency keys the runs that their starts have joined.",
)
GIVE_UP_UNIQUE = Statement(
    "give_up_unique_keys",
    update(runs).where(member(runs.c.id, "ids")).values(unique_key=None),
    purpose="Take the unique keys from runs that others replace.",
)


class joined_items(FunctionElement[str]):  # noqa: N801 - reads as a SQL function in statements
    """The items of a run's batch in their order, separated by commas."""

    type = Text()
    inherit_cache = True
    name = "joined_items"


_ITEMS = "from batch_items where batch_items.run_id = run_inputs.run_id"


@compiles(joined_items, "postgresql")
def _joined_postgres(element: joined_items, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(select string_agg(item, ',' order by no) {_ITEMS})"


@compiles(joined_items, "sqlite")
def _joined_sqlite(element: joined_items, compiler: SQLCompiler, **kw: Any) -> str:
    # SQLite before 3.44 has no ORDER BY in aggregates, so the aggregate reads an ordered subquery.
    return f"(select group_concat(item, ',') from (select item {_ITEMS} order by no))"  # noqa: S608 - constants


_due_batches = (
    select(runs.c.id)
    .where(
        runs.c.status == lit(Status.SCHEDULED),
        runs.c.due_at.is_not(None),
        runs.c.due_at <= now_once(),
        has_bits(runs.c.hooks, RunHook.COLLECTS),
    )
    .order_by(runs.c.due_at)
    .limit(lit(SEALED_AT_ONCE))
    .with_for_update(skip_locked=True)
    .cte("due_batches")
)
SEAL_BATCHES = Statement(
    "seal_batches",
    update(runs)
    .where(runs.c.id == _due_batches.c.id)
    .values(hooks=without_bits(runs.c.hooks, RunHook.COLLECTS))
    .returning(runs.c.id),
    purpose="Let due batches collect no more.",
)
_EMPTY: Final = "[]"
COMPLETE_INPUTS = Statement(
    "complete_batch_inputs",
    update(run_inputs)
    .where(member(run_inputs.c.run_id, "ids"))
    .values(
        input=func.replace(
            run_inputs.c.input,
            bindparam("empty", _EMPTY, type_=Text()),
            bindparam("opening", "[", type_=Text())
            .op("||")(joined_items())
            .op("||")(bindparam("closing", "]", type_=Text())),
        )
    ),
    purpose="Make the inputs of batches of what they have collected.",
)
DELETE_ITEMS = Statement(
    "drop_batch_items",
    delete(batch_items).where(member(batch_items.c.run_id, "ids")),
    purpose="Delete the items of batches whose inputs are complete.",
)
READ_ITEMS = Statement(
    "read_batch_items",
    select(batch_items.c.item).where(batch_items.c.run_id == bindparam("run_id")),
    purpose="Read what a batch has collected so far.",
)
READ_KEY = Statement(
    "read_flow_key", select(flow_keys).where(flow_keys.c.key == bindparam("key")), purpose="Read the state of a key."
)


def _is_idle() -> ColumnElement[bool]:
    used_ns = func.coalesce(flow_keys.c.tat, lit(0))
    due_at = func.coalesce(flow_keys.c.due_at, lit(0))
    return case((used_ns > now_us() * lit(1000), lit(1)), (due_at > now_us(), lit(1)), else_=lit(0)) == lit(0)


_idle = (
    select(flow_keys.c.key)
    .where(flow_keys.c.used_on < _today - lit(1), _is_idle())
    .order_by(flow_keys.c.used_on)
    .limit(lit(FORGOTTEN_AT_ONCE))
    .with_for_update(skip_locked=True)
    .cte("idle")
)
FORGET_KEYS = Statement(
    "forget_flow_keys",
    delete(flow_keys).where(flow_keys.c.key.in_(select(_idle.c.key))).returning(flow_keys.c.key),
    purpose="Delete the state of keys that were not used for a day.",
)
