"""Calls: the journal of steps that call models and tools, one row per call.

A row is written through the fence when its call has returned, and is never changed. After a takeover the new attempt
reads the rows of the open steps and makes only the calls without a row, so no answer is paid for twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Float, FromClause, Integer, Text, and_, bindparam, case, exists, func, literal, or_, select
from sqlalchemy.sql.base import Executable

from runlane.store.sql.database import Database
from runlane.store.sql.expressions import lit, member, now_us, upsert
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import run_calls, runs
from runlane.store.sql.statement import Row, Statement, text_list

# Prefixes of keys, see `agents/journal.py`.
EARLIER: Final = "earlier/"
SETTLED: Final = "settled/"


class CallKind(StrEnum):
    """The kind of a row. The values are stored and must not change."""

    MODEL = "model"
    TOOL = "tool"
    BEGUN = "begun"
    DISCOVERY = "discovery"
    ANSWER = "answer"
    CLOSED = "closed"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One row. `payload` is JSON; a model's answer is charged to `agent` and `model`."""

    path: str
    key: str
    kind: CallKind
    payload: str
    model: str | None = None
    agent: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = None

    def row(self, run_id: str, attempt: int) -> tuple[Any, ...]:
        """Return the record as a member of RECORD_CALLS."""
        return (
            run_id, attempt, self.path, self.key, self.kind.value, self.payload, self.model, self.agent,
            self.tokens_in, self.tokens_out, self.cost_usd,
        )  # fmt: skip


_RECORDED = {
    "run_id": Text(),
    "attempt": Integer(),
    "path": Text(),
    "key": Text(),
    "kind": Text(),
    "payload": Text(),
    "model": Text(),
    "agent": Text(),
    "tokens_in": Integer(),
    "tokens_out": Integer(),
    "cost_usd": Float(),
}


def _record_calls(batch: FromClause) -> Executable:
    b = batch.c
    fence = and_(runs.c.id == b.run_id, runs.c.attempt == b.attempt)
    statement = upsert(run_calls).from_select(
        [*_RECORDED, "at"],
        # The condition also keeps SQLite's parser from reading ON CONFLICT as a join.
        select(*(b[name] for name in _RECORDED), now_us()).select_from(batch.join(runs, fence)).where(b.attempt > 0),
    )
    return statement.on_conflict_do_nothing(index_elements=["run_id", "path", "key"])


RECORD_CALLS = Statement(
    "record_calls", _record_calls, _RECORDED, purpose="Store entries of the journal of an attempt, through the fence."
)


def _copy_unsettled(batch: FromClause) -> Executable:
    b, call = batch.c, run_calls
    other = run_calls.alias("other")
    # The result of the call `0/begun/2/ID/1` has the key `0/tool/2/ID`.
    place = func.replace(call.c.key, "/begun/", "/tool/")
    result = and_(other.c.kind == lit(CallKind.TOOL), func.substr(place, 1, func.length(other.c.key)) == other.c.key)
    settled = other.c.key == literal(SETTLED, Text()) + call.c.key
    over = exists().where(other.c.run_id == call.c.run_id, other.c.path == call.c.path, or_(result, settled))
    key = case(
        (call.c.key.startswith(EARLIER, autoescape=True), call.c.key),
        else_=literal(EARLIER, Text()) + b.from_run + literal("/", Text()) + call.c.key,
    )
    # The new run has had no attempt.
    values = {"run_id": b.to_run, "path": call.c.path, "key": key, "attempt": lit(0)}
    values |= {name: call.c[name] for name in ("kind", "payload", "at")}
    return upsert(run_calls).from_select(
        list(values),
        select(*values.values())
        .select_from(batch.join(call, call.c.run_id == b.from_run))
        .where(call.c.kind == lit(CallKind.BEGUN), call.c.key.contains("/begun/", autoescape=True), ~over),
    )


COPY_UNSETTLED = Statement(
    "copy_unsettled_calls",
    _copy_unsettled,
    {"from_run": Text(), "to_run": Text()},
    purpose="Copy the announced calls without a result of a run to its fork.",
)
_OF_RUN = Statement(
    "calls_of_run",
    select(run_calls)
    .where(run_calls.c.run_id == bindparam("run_id"))
    .order_by(run_calls.c.at, run_calls.c.path, run_calls.c.key),
    purpose="Read the journal of a run.",
)
_OF_STEPS = Statement(
    "calls_of_steps",
    select(run_calls)
    .where(run_calls.c.run_id == bindparam("run_id"), member(run_calls.c.path, "paths"))
    .order_by(run_calls.c.at, run_calls.c.path, run_calls.c.key),
    purpose="Read the journal of some steps of a run.",
)
_EARLIER_CALLS = Statement(
    "earlier_calls",
    select(run_calls).where(
        run_calls.c.run_id == bindparam("run_id"), run_calls.c.key.startswith(EARLIER, autoescape=True)
    ),
    purpose="Read the announced calls without a result that a fork has from its source.",
)
_TOTALS = Statement(
    "call_totals",
    select(
        func.count().label("calls"),
        func.sum(run_calls.c.tokens_in + run_calls.c.tokens_out).label("tokens"),
        func.sum(run_calls.c.cost_usd).label("cost_usd"),
    ).where(run_calls.c.run_id == bindparam("run_id"), run_calls.c.kind == lit(CallKind.MODEL)),
    purpose="Sum tokens and cost of the model calls of a run.",
)
_TOTALS_OF = Statement(
    "call_totals_of_runs",
    select(
        run_calls.c.run_id,
        func.sum(run_calls.c.tokens_in + run_calls.c.tokens_out).label("tokens"),
        func.sum(run_calls.c.cost_usd).label("cost_usd"),
    )
    .where(member(run_calls.c.run_id, "run_ids"), run_calls.c.kind == lit(CallKind.MODEL))
    .group_by(run_calls.c.run_id),
    purpose="Sum tokens and cost of the model calls of several runs.",
)
_UNPRICED = Statement(
    "has_unpriced_call",
    select(
        exists()
        .where(
            run_calls.c.run_id == bindparam("run_id"),
            run_calls.c.kind == lit(CallKind.MODEL),
            run_calls.c.cost_usd.is_(None),
        )
        .label("found")
    ),
    purpose="Check whether a run made a model call without a known price.",
)


async def read_calls(database: Database, run_id: str) -> list[CallRecord]:
    """Return all recorded calls of a run, in order."""
    return [_value(row) for row in await database.query(_OF_RUN, run_id=run_id)]


async def read_calls_of(database: Database, run_id: str, paths: Sequence[str]) -> list[CallRecord]:
    """Return the recorded calls of some steps, so that a long run does not read those of finished steps."""
    rows = await database.query(_OF_STEPS, run_id=run_id, paths=text_list(database.dialect, sorted(paths)))
    return [_value(row) for row in rows]


async def read_earlier_calls(database: Database, run_id: str) -> list[CallRecord]:
    """Return the announced calls without a result that a fork has from its source, of all steps."""
    return [_value(row) for row in await database.query(_EARLIER_CALLS, run_id=run_id)]


async def read_totals(database: Database, run_id: str) -> tuple[float | None, int]:
    """Return the cost of a run's model answers so far in dollars, None if no price is known, and their tokens.

    The calls of steps that a fork has copied belong to the source run and are not counted.
    """
    row = (await database.query(_TOTALS, run_id=run_id))[0]
    cost = row["cost_usd"]
    if cost is None and not row["calls"]:
        cost = 0.0
    return (None if cost is None else float(cost)), int(row["tokens"] or 0)


async def read_totals_of(database: Database, run_ids: Sequence[str]) -> dict[str, tuple[float | None, int]]:
    """Return cost and tokens of each of these runs, as `read_totals` does for one."""
    found: dict[str, tuple[float | None, int]] = dict.fromkeys(run_ids, (0.0, 0))
    rows = await database.query(_TOTALS_OF, run_ids=text_list(database.dialect, list(run_ids)))
    for row in rows:
        cost = row["cost_usd"]
        found[row["run_id"]] = (None if cost is None else float(cost), int(row["tokens"] or 0))
    return found


async def has_unpriced_call(database: Database, run_id: str) -> bool:
    """Return whether the run made a model call whose price is unknown."""
    return bool((await database.query(_UNPRICED, run_id=run_id))[0]["found"])


def _value(row: Row) -> CallRecord:
    tokens: dict[str, Any] = {"tokens_in": row["tokens_in"] or 0, "tokens_out": row["tokens_out"] or 0}
    return from_row(CallRecord, row, kind=CallKind(row["kind"]), **tokens)
