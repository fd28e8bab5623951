"""Roll-ups of runs per minute and per hour, written once per bucket from accepted and ended runs, and read as series.

A minute is counted after its end, through the primary key (ids sort by time) and the index of ended runs; counting it
again replaces its rows. Rows of all tenants together have an empty tenant, so that the figures of a platform are read
as fast as those of one tenant. The row without tenant, lane and target marks a minute as counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    FromClause,
    Integer,
    Select,
    Text,
    bindparam,
    case,
    delete,
    func,
    or_,
    select,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.ids import run_id_at, run_id_time_us
from runlane.domain.run import AGENT, ORCHESTRATION, Status
from runlane.domain.series import BOUNDS_SECONDS, SeriesCounts
from runlane.domain.text import dump_json, load_json
from runlane.store.queue.runs import STARTED_AT
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, optional, upsert
from runlane.store.sql.schema import run_calls, run_series, runs
from runlane.store.sql.statement import Row, Statement

MINUTE: Final = 60
HOUR: Final = 3600
ALL_TENANTS: Final = ""
KEPT_MINUTES_SECONDS: Final = 48 * HOUR
MAX_ROWS: Final = 100_000
# The group of a row: a lane, a target and a tenant.
Group = tuple[str, str, str]

_from = bindparam("from_us", type_=BigInteger())
_to = bindparam("to_us", type_=BigInteger())
_ended = (
    select(
        runs.c.tenant,
        runs.c.lane,
        runs.c.target,
        runs.c.status,
        (runs.c.failures + runs.c.losses).label("bad"),
        runs.c.accepted_at,
        STARTED_AT,
        runs.c.ended_at,
    )
    .where(runs.c.ended_at.is_not(None), runs.c.ended_at >= _from, runs.c.ended_at < _to)
    .subquery("ended")
)
_e = _ended.c


def _buckets(taken: ColumnElement[Any], name: str) -> Iterable[ColumnElement[Any]]:
    """Yield the number of durations up to each bound, then that of all; unknown durations are not counted."""
    for number, bound in enumerate(BOUNDS_SECONDS):
        within = case((taken <= lit(int(bound * 1_000_000)), lit(1)), else_=lit(0))
        yield func.sum(within).label(f"{name}{number}")
    yield func.count(taken).label(f"{name}_all")


_group = (_e.tenant, _e.lane, _e.target, _e.status)
_ENDED = Statement(
    "count_ended_runs",
    select(
        *_group,
        func.count().label("runs"),
        func.sum(case((_e.bad > lit(0), lit(1)), else_=lit(0))).label("retried"),
        *_buckets(_e.started_at - _e.accepted_at, "wait"),
        *_buckets(_e.ended_at - _e.started_at, "took"),
    ).group_by(*_group),
    purpose="Count the runs that ended within a time, by tenant, lane, target and status.",
)
_ACCEPTED = Statement(
    "count_accepted_runs",
    select(runs.c.tenant, runs.c.lane, runs.c.target, func.count().label("runs"))
    .where(runs.c.id >= bindparam("from_id", type_=Text()), runs.c.id < bindparam("to_id", type_=Text()))
    .group_by(runs.c.tenant, runs.c.lane, runs.c.target),
    purpose="Count the runs that were accepted within a time, by tenant, lane and target.",
)
HAS_STEPS = or_(
    func.substr(runs.c.target, 1, len(ORCHESTRATION)) == bindparam("orchestration", type_=Text()),
    func.substr(runs.c.target, 1, len(AGENT)) == bindparam("agent", type_=Text()),
)
_COSTS = Statement(
    "sum_costs_of_ended_runs",
    select(
        runs.c.tenant,
        runs.c.lane,
        runs.c.target,
        func.coalesce(func.sum(run_calls.c.cost_usd), lit(0)).label("cost"),
        func.coalesce(func.sum(run_calls.c.tokens_in + run_calls.c.tokens_out), lit(0)).label("tokens"),
    )
    .select_from(runs.join(run_calls, run_calls.c.run_id == runs.c.id))
    .where(runs.c.ended_at.is_not(None), runs.c.ended_at >= _from, runs.c.ended_at < _to, HAS_STEPS)
    .group_by(runs.c.tenant, runs.c.lane, runs.c.target),
    purpose="Sum what the runs that ended within a time have used of models.",
)
_s = run_series.c
_COLUMNS = {
    "seconds": Integer(),
    "tenant": Text(),
    "bucket": BigInteger(),
    "lane": Text(),
    "target": Text(),
    "accepted": Integer(),
    "completed": Integer(),
    "failed": Integer(),
    "cancelled": Integer(),
    "retried": Integer(),
    "cost_usd": Float(),
    "tokens": BigInteger(),
    "waits": Text(),
    "durations": Text(),
    "started": Integer(),
}
_KEY = ["seconds", "tenant", "bucket", "lane", "target"]


def _store(batch: FromClause) -> Executable:
    statement = upsert(run_series).from_select(
        list(_COLUMNS), select(*(batch.c[name] for name in _COLUMNS)).select_from(batch).where(batch.c.seconds > lit(0))
    )
    again = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=_KEY, set_={name: again[name] for name in _COLUMNS if name not in _KEY}
    )


_STORE = Statement("store_run_series", _store, _COLUMNS, purpose="Store the figures of a minute or an hour.")
_none = bindparam("all", type_=Text())
_marks = (_s.tenant == _none, _s.lane == _none, _s.target == _none)
_LAST = Statement(
    "last_counted_bucket",
    select(func.max(_s.bucket).label("bucket")).where(_s.seconds == bindparam("seconds", type_=Integer()), *_marks),
    purpose="Read the last minute, or hour, that was counted.",
)


def _reading() -> Select[Any]:
    return (
        select(run_series)
        .where(
            _s.seconds == bindparam("seconds", type_=Integer()),
            _s.tenant == bindparam("tenant", type_=Text()),
            _s.bucket >= bindparam("from_bucket", type_=BigInteger()),
            _s.bucket < bindparam("to_bucket", type_=BigInteger()),
            optional("lane", _s.lane),
            optional("target", _s.target),
        )
        .order_by(_s.bucket)
        .limit(lit(MAX_ROWS))
    )


_READ = Statement("read_run_series", _reading(), purpose="Read the figures of a tenant, or of all, within a time.")
_BY_TENANT = Statement(
    "read_run_series_of_tenants",
    select(run_series)
    .where(
        _s.seconds == bindparam("seconds", type_=Integer()),
        _s.tenant != bindparam("all", type_=Text()),
        _s.bucket >= bindparam("from_bucket", type_=BigInteger()),
        _s.bucket < bindparam("to_bucket", type_=BigInteger()),
        optional("lane", _s.lane),
        optional("target", _s.target),
    )
    .limit(lit(MAX_ROWS)),
    purpose="Read the figures of every tenant within a time.",
)
_NEXT = Statement(
    "next_run_to_count",
    select(
        select(func.min(runs.c.id))
        .where(runs.c.id >= bindparam("from_id", type_=Text()))
        .scalar_subquery()
        .label("id"),
        select(func.min(runs.c.ended_at))
        .where(runs.c.ended_at.is_not(None), runs.c.ended_at >= _from)
        .scalar_subquery()
        .label("ended_at"),
    ),
    purpose="Find the first run that was accepted, and the first that ended, from a time on.",
)
_FORGET = Statement(
    "forget_run_series",
    delete(run_series).where(
        _s.seconds == bindparam("seconds", type_=Integer()), _s.bucket < bindparam("before", type_=BigInteger())
    ),
    purpose="Delete the figures of minutes, or hours, that are too old.",
)


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """The figures of one group in one bucket, which begins at this second."""

    bucket: int
    tenant: str
    lane: str
    target: str
    counts: SeriesCounts


async def count_between(session: Session, from_us: int, to_us: int) -> dict[Group, SeriesCounts]:
    """Count the runs that were accepted and that ended within a time, by lane, target and tenant."""
    found: dict[Group, SeriesCounts] = {}

    def counts(row: Row) -> SeriesCounts:
        return found.setdefault((row["lane"], row["target"], row["tenant"]), SeriesCounts())

    ids = {"from_id": run_id_at(from_us), "to_id": run_id_at(to_us)}
    for row in await session.fetch(_ACCEPTED, **ids):
        counts(row).accepted += row["runs"]
    for row in await session.fetch(_ENDED, from_us=from_us, to_us=to_us):
        one = counts(row)
        name = {Status.COMPLETED: "completed", Status.FAILED: "failed"}.get(Status(row["status"]), "cancelled")
        setattr(one, name, getattr(one, name) + row["runs"])
        one.retried += row["retried"]
        one.waits = [old + new for old, new in zip(one.waits, _histogram(row, "wait"), strict=True)]
        one.durations = [old + new for old, new in zip(one.durations, _histogram(row, "took"), strict=True)]
    for row in await session.fetch(_COSTS, from_us=from_us, to_us=to_us, orchestration=ORCHESTRATION, agent=AGENT):
        one = counts(row)
        one.cost_usd += float(row["cost"])
        one.tokens += int(row["tokens"])
    return found


def _histogram(row: Row, name: str) -> list[int]:
    """Return the counts between the bounds, computed from the counts up to each bound."""
    up_to = [int(row[f"{name}{number}"] or 0) for number in range(len(BOUNDS_SECONDS))]
    whole = [*up_to, int(row[f"{name}_all"])]
    return [count - before for count, before in zip(whole, [0, *up_to], strict=True)]


async def store_bucket(session: Session, seconds: int, bucket: int, found: dict[Group, SeriesCounts]) -> None:
    """Store the figures of a bucket, with those of all tenants together, and mark the bucket as counted."""
    whole: dict[Group, SeriesCounts] = {("", "", ALL_TENANTS): SeriesCounts()}
    for (lane, target, tenant), counts in found.items():
        whole[lane, target, tenant] = counts
        if tenant != ALL_TENANTS:
            whole.setdefault((lane, target, ALL_TENANTS), SeriesCounts()).add(counts)
    await session.fetch(_STORE, [_member(seconds, bucket, group, counts) for group, counts in whole.items()])


def _member(seconds: int, bucket: int, group: Group, counts: SeriesCounts) -> tuple[Any, ...]:
    lane, target, tenant = group
    return (
        seconds, tenant, bucket, lane, target, counts.accepted, counts.completed, counts.failed, counts.cancelled,
        counts.retried, counts.cost_usd, counts.tokens, dump_json(counts.waits), dump_json(counts.durations),
        counts.started,
    )  # fmt: skip


async def last_counted(session: Session, seconds: int) -> int | None:
    """Return the start of the last bucket that was counted."""
    return (await session.fetch(_LAST, seconds=seconds, all=ALL_TENANTS))[0]["bucket"]


async def next_change_us(session: Session, from_us: int) -> int | None:
    """Return when the next run was accepted or ended, from this time on; None if none was."""
    row = (await session.fetch(_NEXT, from_id=run_id_at(from_us), from_us=from_us))[0]
    accepted_at = None if row["id"] is None else run_id_time_us(row["id"])
    return min((at for at in (accepted_at, row["ended_at"]) if at is not None), default=None)


async def forget_buckets(session: Session, seconds: int, before: int) -> None:
    """Delete the buckets that began before this second."""
    await session.fetch(_FORGET, seconds=seconds, before=before)


async def rows_between(session: Session, seconds: int, from_bucket: int, to_bucket: int) -> list[SeriesRow]:
    """Return the figures of every tenant, to be summed up for an hour."""
    given = {"seconds": seconds, "from_bucket": from_bucket, "to_bucket": to_bucket}
    rows = await session.fetch(_BY_TENANT, all=ALL_TENANTS, lane=None, target=None, **given)
    return [_row(row) for row in rows]


async def read_series_rows(
    database: Database,
    seconds: int,
    from_bucket: int,
    to_bucket: int,
    *,
    tenant: str | None,
    lane: str | None = None,
    target: str | None = None,
    by_tenant: bool = False,
) -> tuple[list[SeriesRow], int | None]:
    """Return the figures of a tenant or of all, and the end of the last bucket that was counted."""

    async def work(session: Session) -> tuple[Sequence[Row], int | None]:
        given = {
            "seconds": seconds,
            "from_bucket": from_bucket,
            "to_bucket": to_bucket,
            "lane": lane,
            "target": target,
        }
        if by_tenant and tenant is None:
            rows = await session.fetch(_BY_TENANT, all=ALL_TENANTS, **given)
        else:
            rows = await session.fetch(_READ, tenant=ALL_TENANTS if tenant is None else tenant, **given)
        return rows, await last_counted(session, seconds)

    rows, last = await database.transact(work)
    # The mark of a bucket has neither lane nor target.
    found = [_row(row) for row in rows if row["lane"] or row["target"]]
    return found, None if last is None else last + seconds


def _row(row: Row) -> SeriesRow:
    counts = SeriesCounts(
        row["accepted"], row["completed"], row["failed"], row["cancelled"], row["retried"], row["cost_usd"],
        row["tokens"], load_json(row["waits"]), load_json(row["durations"]), row["started"],
    )  # fmt: skip
    return SeriesRow(row["bucket"], row["tenant"], row["lane"], row["target"], counts)
