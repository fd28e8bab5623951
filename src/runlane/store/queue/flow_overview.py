"""The keys of flow control as readers see them, and the doctor's findings about them and about concurrency limits."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Boolean, ColumnElement, Integer, Text, bindparam, func, or_, select

from runlane.domain.flow_keys import FlowKeyUse, FlowRule, flow_key_prefix, parts_of_key
from runlane.errors import InvalidRequest
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import lit, now_us
from runlane.store.sql.schema import concurrency_limits, flow_keys, limit_waits, runs
from runlane.store.sql.statement import Row, Statement

_HOUR_US: Final = 3600 * 1_000_000
_NAMED: Final = 5
# The rules whose keys have rows; those of concurrency limits are counted in tables of their own.
_RULES: Final = tuple(rule for rule in FlowRule if rule is not FlowRule.CONCURRENCY)


def _begins(rule: FlowRule) -> ColumnElement[bool]:
    prefix = bindparam(f"prefix_{rule.value}", type_=Text())
    # LIKE is not used, because it ignores the case of letters on SQLite.
    return func.substr(flow_keys.c.key, lit(1), func.length(prefix)) == prefix


_LIST = Statement(
    "list_flow_keys",
    select(
        flow_keys.c.key,
        flow_keys.c.skipped,
        flow_keys.c.run_id,
        flow_keys.c.starts,
        flow_keys.c.due_at,
        now_us().label("now"),
    )
    .where(
        flow_keys.c.key > bindparam("after", type_=Text()),
        or_(*(_begins(rule) for rule in _RULES)),
        or_(~bindparam("only_skipped", type_=Boolean()), flow_keys.c.skipped > lit(0)),
    )
    .order_by(flow_keys.c.key)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read the keys of flow control of a tenant.",
)
_CLOSED = Statement(
    "closed_concurrency_limits",
    select(concurrency_limits.c.name, concurrency_limits.c.tenant, func.count().label("waiting"))
    .select_from(concurrency_limits.join(limit_waits, limit_waits.c.key == concurrency_limits.c.key))
    .where(concurrency_limits.c.max_running == lit(0))
    .group_by(concurrency_limits.c.tenant, concurrency_limits.c.name)
    .order_by(concurrency_limits.c.tenant, concurrency_limits.c.name)
    .limit(lit(_NAMED)),
    purpose="Find concurrency limits of 0 for which runs wait.",
)
_oldest = func.min(func.coalesce(runs.c.due_at, runs.c.accepted_at))
_LONG = Statement(
    "long_waits_for_limits",
    select(
        limit_waits.c.key,
        func.count().label("waiting"),
        (now_us() - _oldest).label("us"),
        func.min(runs.c.id).label("run_id"),
    )
    .select_from(limit_waits.join(runs, runs.c.id == limit_waits.c.run_id))
    .group_by(limit_waits.c.key)
    .having(_oldest < now_us() - lit(_HOUR_US))
    .order_by(_oldest)
    .limit(lit(_NAMED)),
    purpose="Find keys of concurrency limits for which a run has waited for more than an hour.",
)
_waiting = (runs.c.backlog_key.is_not(None), runs.c.attempt == lit(0), runs.c.ended_at.is_(None))
_backlogs = select(runs.c.backlog_key, func.count().label("waiting")).where(*_waiting).group_by(runs.c.backlog_key)
_counted = _backlogs.subquery("backlogs")
_NEARLY_FULL = Statement(
    "nearly_full_backlogs",
    select(_counted.c.backlog_key, _counted.c.waiting, flow_keys.c.most)
    .select_from(_counted.join(flow_keys, flow_keys.c.key == _counted.c.backlog_key))
    # Four fifths, without fractions.
    .where(_counted.c.waiting * lit(5) >= flow_keys.c.most * lit(4))
    .order_by(_counted.c.waiting.desc(), _counted.c.backlog_key)
    .limit(lit(_NAMED)),
    purpose="Find keys whose backlog is nearly full.",
)


@dataclass(frozen=True, slots=True)
class ClosedLimit:
    """A concurrency limit of 0 for which runs wait."""

    tenant: str
    name: str
    waiting: int


@dataclass(frozen=True, slots=True)
class LongWait:
    """A key of a concurrency limit for which a run has waited long. `run_id` is one of the waiting runs."""

    waiting: int
    seconds: float
    run_id: str


@dataclass(frozen=True, slots=True)
class NearlyFullBacklog:
    """A key that soon accepts no more runs."""

    target: str
    key: str
    waiting: int
    most: int


@dataclass(frozen=True, slots=True)
class FlowHealth:
    """The rules that keep runs from being started or accepted."""

    closed: tuple[ClosedLimit, ...]
    long: tuple[LongWait, ...]
    nearly_full: tuple[NearlyFullBacklog, ...]


async def list_flow_keys(
    database: Database,
    tenant: str,
    *,
    rule: FlowRule | None = None,
    target: str | None = None,
    only_skipped: bool = False,
    after: str | None = None,
    limit: int = 100,
) -> Sequence[FlowKeyUse]:
    """Return the keys of a tenant, of one rule or all, of one target or all; `after` is the last id of a page."""
    prefixes = {f"prefix_{each.value}": flow_key_prefix(tenant, rule or each, target) for each in _RULES}
    begin = "" if after is None else f"{tenant}{_decoded(after)}"
    rows = await database.query(_LIST, after=begin, only_skipped=only_skipped, limit=limit, **prefixes)
    return [_use(row, tenant) for row in rows]


async def read_flow_health(database: Database) -> FlowHealth:
    """Return the facts that the doctor reports for all tenants."""
    backlogs = [(parts_of_key(row["backlog_key"]), row) for row in await database.query(_NEARLY_FULL)]
    return FlowHealth(
        tuple(ClosedLimit(row["tenant"], row["name"], row["waiting"]) for row in await database.query(_CLOSED)),
        tuple(LongWait(row["waiting"], row["us"] / 1_000_000, row["run_id"]) for row in await database.query(_LONG)),
        tuple(NearlyFullBacklog(target, key, row["waiting"], row["most"]) for (_, target, key), row in backlogs),
    )


def _use(row: Row, tenant: str) -> FlowKeyUse:
    rule, target, key = parts_of_key(row["key"])
    is_open = row["run_id"] is not None and (row["due_at"] or 0) > row["now"]
    return FlowKeyUse(
        base64.urlsafe_b64encode(row["key"].removeprefix(tenant).encode()).decode(),
        rule,
        target,
        key,
        row["skipped"],
        row["run_id"] if is_open else None,
        row["starts"] if is_open else None,
        row["due_at"] if is_open else None,
    )


def _decoded(cursor: str) -> str:
    try:
        decoded = base64.b64decode(cursor, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        decoded = ""
    if not decoded or "\0" in decoded:
        raise InvalidRequest(f"cursor={cursor!r} is not valid. Pass `next_cursor` of the previous page.")
    return decoded
