"""Usage of model calls per tenant, day, agent and model, summed in the transaction that records the call.

A call whose price is unknown adds its tokens and counts as unpriced; its cost is unknown, not zero. Each process
writes to its own shard, because the row of a busy tenant would otherwise be locked by one transaction after another.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Float,
    FromClause,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    literal,
    or_,
    select,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.ids import lock_key, new_id
from runlane.domain.tenant import OnCap
from runlane.domain.usage import GROUPS, Group, UsageRow
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_once, upsert
from runlane.store.sql.schema import runs, tenants, usage_daily
from runlane.store.sql.statement import Statement

SHARDS: Final = 32
_DAY_US: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class CallUsage:
    """The usage of one model call of an attempt. `agent` is empty without one; no cost means no known price."""

    run_id: str
    attempt: int
    tenant: str
    agent: str
    model: str
    tokens_in: int
    tokens_out: int
    cost_usd: float | None


@dataclass(frozen=True, slots=True)
class SpentToday:
    """The daily cap of a tenant, and the cost of the tenant and one of its agents today, in dollars."""

    tenant_limit_usd: float | None
    on_cap: OnCap
    tenant_usd: float
    agent_usd: float


_today = cast(now_once() // lit(_DAY_US), Integer)
_COLUMNS = {
    "run_id": Text(),
    "attempt": Integer(),
    "tenant": Text(),
    "agent": Text(),
    "model": Text(),
    "shard": Integer(),
    "calls": BigInteger(),
    "unpriced_calls": BigInteger(),
    "tokens_in": BigInteger(),
    "tokens_out": BigInteger(),
    "cost_usd": Float(),
}
_SUMS = ("calls", "unpriced_calls", "tokens_in", "tokens_out", "cost_usd")


_NAMED = ("tenant", "agent", "model", "shard", *_SUMS)


def _add(batch: FromClause) -> Executable:
    b = batch.c
    fence = and_(runs.c.id == b.run_id, runs.c.attempt == b.attempt)
    return _summed(_added(batch).select_from(batch.join(runs, fence)).where(b.attempt > 0))


def _added(batch: FromClause) -> Select[Any]:
    return select(_today, *(batch.c[name] for name in _NAMED))


def _summed(added: Select[Any]) -> Executable:
    statement = upsert(usage_daily).from_select(["day", *_NAMED], added)
    return statement.on_conflict_do_update(
        index_elements=["tenant", "day", "agent", "model", "shard"],
        set_={name: usage_daily.c[name] + statement.excluded[name] for name in _SUMS},
    )


# Its members come from usage_rows() and belong to entries that have passed the fence in this transaction.
ADD_USAGE = Statement(
    "add_usage", _add, _COLUMNS, purpose="Add the usage of model calls of attempts, through the fence."
)
_ADD_CALLS = Statement(
    "add_usage_of_calls",
    # SQLite needs the condition: without one, it reads "on conflict" as part of a join.
    lambda batch: _summed(_added(batch).where(lit(1) == lit(1))),
    {name: _COLUMNS[name] for name in _NAMED},
    purpose="Add the usage of model calls that no attempt records, such as embeddings.",
)
# Created at each start of a process, like a worker's id.
_SHARD: Final = lock_key("usage", new_id("shard"), str(os.getpid())) % SHARDS


def usage_rows(calls: Iterable[CallUsage], shard: int = _SHARD) -> list[tuple[Any, ...]]:
    """Return the calls as members of ADD_USAGE: one per row that they change, in an order that all transactions share.

    A member may represent calls of several runs and has the fence of one of them: all have passed already, and their
    rows are locked until the commit.
    """
    sums: dict[tuple[str, str, str], list[Any]] = {}
    for call in calls:
        found = sums.setdefault((call.tenant, call.agent, call.model), [call.run_id, call.attempt, 0, 0, 0, 0, 0.0])
        found[2] += 1
        found[3] += call.cost_usd is None
        found[4] += call.tokens_in
        found[5] += call.tokens_out
        found[6] += call.cost_usd or 0.0
    return [
        (run_id, attempt, tenant, agent, model, shard, *rest)
        for (tenant, agent, model), (run_id, attempt, *rest) in sorted(sums.items())
    ]


def _spent(*conditions: Any) -> Any:
    total = func.coalesce(func.sum(usage_daily.c.cost_usd), literal(0.0, Float()))
    return select(total).where(usage_daily.c.tenant == bindparam("tenant"), usage_daily.c.day == _today, *conditions)


SPENT_TODAY = Statement(
    "spent_today",
    select(_spent().scalar_subquery().label("used")),
    purpose="Read what a tenant has spent on models today.",
)
_of_agent = usage_daily.c.agent == bindparam("agent", type_=Text())
_BUDGET = Statement(
    "read_budget",
    select(
        tenants.c.max_cost_usd_per_day,
        tenants.c.on_cap,
        # The sums are computed only if there is a cap.
        case(
            (tenants.c.max_cost_usd_per_day.is_not(None), _spent().scalar_subquery()), else_=literal(0.0, Float())
        ).label("tenant_usd"),
        case(
            (bindparam("by_agent", type_=Integer()) == lit(1), _spent(_of_agent).scalar_subquery()),
            else_=literal(0.0, Float()),
        ).label("agent_usd"),
    ).where(tenants.c.id == bindparam("tenant")),
    purpose="Read the daily cap of a tenant and what is spent of it.",
)
DELETE_USAGE = Statement(
    "delete_usage",
    delete(usage_daily).where(usage_daily.c.tenant == bindparam("tenant")),
    purpose="Delete the usage of a deleted tenant.",
)


def _used_by(group: Group) -> Statement:
    key = usage_daily.c[group]
    wanted = bindparam("tenant", type_=Text())
    return Statement(
        f"used_by_{group}",
        select(key.label("key"), *(func.sum(usage_daily.c[name]).label(name) for name in _SUMS))
        .where(
            or_(wanted.is_(None), usage_daily.c.tenant == wanted),
            usage_daily.c.day >= bindparam("first", type_=Integer()),
            usage_daily.c.day <= bindparam("last", type_=Integer()),
        )
        .group_by(key)
        .order_by(key),
        purpose=f"Sum the usage of a time range by {group}.",
    )


_USED: Mapping[str, Statement] = {group: _used_by(group) for group in GROUPS}


async def add_call(database: Database, tenant: str, model: str, tokens_in: int, cost_usd: float | None) -> None:
    """Add the usage of a model call that no attempt records: it is billed even if its run fails."""

    async def work(session: Session) -> None:
        call = CallUsage("", 0, tenant, "", model, tokens_in, 0, cost_usd)
        await session.fetch(_ADD_CALLS, [row[2:] for row in usage_rows([call])])

    await database.transact(work)


async def read_budget(database: Database, tenant: str, agent: str | None = None) -> SpentToday:
    """Return the tenant's cap, its spending, and that of the agent if one is named, in one read."""
    rows = await database.query(_BUDGET, tenant=tenant, agent=agent or "", by_agent=int(agent is not None))
    if not rows:
        return SpentToday(None, "fail", 0.0, 0.0)
    row = rows[0]
    limit = row["max_cost_usd_per_day"]
    return SpentToday(
        None if limit is None else float(limit), row["on_cap"], float(row["tenant_usd"]), float(row["agent_usd"])
    )


async def read_usage(
    database: Database, tenant: str | None, first: date, last: date, group: Group = "day"
) -> Sequence[UsageRow]:
    """Return the usage of a tenant, or of all tenants, between two days, both included (UTC)."""
    rows = await database.query(_USED[group], tenant=tenant, first=(first - _EPOCH).days, last=(last - _EPOCH).days)
    return [
        UsageRow(
            key=(_EPOCH + timedelta(days=row["key"])).isoformat() if group == "day" else row["key"],
            calls=int(row["calls"]),
            tokens_in=int(row["tokens_in"]),
            tokens_out=int(row["tokens_out"]),
            cost_usd=None if row["calls"] == row["unpriced_calls"] else float(row["cost_usd"]),
            unpriced_calls=int(row["unpriced_calls"]),
        )
        for row in rows
    ]
