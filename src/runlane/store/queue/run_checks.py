"""Filters of lists that are checked run by run: worker, error, duration, cost, and whether a run is a root.

They have no index, since each would cost every accepted or finished run a write. A page checks them on a bounded number
of runs.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, Boolean, ColumnElement, Float, Text, bindparam, cast, func, or_, select

from runlane.store.queue.run_ranges import FOUND
from runlane.store.sql.expressions import json_text, lit, now_once, optional
from runlane.store.sql.schema import idempotency_keys, run_attempts, run_calls, run_children, run_results

_c = FOUND.c


def run_checks() -> list[ColumnElement[bool]]:
    """Return the conditions; one whose parameter is null matches every run."""
    return [
        optional("worker_id", _c.worker_id),
        _is_root(),
        _has_error(),
        *_within(_duration_us(), "min_duration_us", "max_duration_us", BigInteger()),
        *_within(_cost_usd(), "min_cost_usd", "max_cost_usd", Float()),
    ]


def _within(value: Any, least: str, most: str, kind: Any) -> tuple[ColumnElement[bool], ...]:
    low, high = bindparam(least, type_=kind), bindparam(most, type_=kind)
    return or_(cast(low, kind).is_(None), value >= low), or_(cast(high, kind).is_(None), value <= high)


def _is_root() -> ColumnElement[bool]:
    parents = run_children.join(idempotency_keys, idempotency_keys.c.key == run_children.c.key)
    is_child = (idempotency_keys.c.run_id == _c.id, run_children.c.run_id != _c.id)
    # A scalar, here and below: for `exists` the planner may read the whole other table once.
    parent = select(run_children.c.run_id).select_from(parents).where(*is_child).limit(lit(1)).scalar_subquery()
    return or_(~bindparam("roots_only", type_=Boolean()), parent.is_(None))


def _has_error() -> ColumnElement[bool]:
    code = bindparam("error_code", type_=Text())
    error = run_results.c.error
    named = func.coalesce(json_text(error, lit("code")), json_text(error, lit("type")))
    found = select(named).where(run_results.c.run_id == _c.id).scalar_subquery()
    return or_(cast(code, Text).is_(None), found == code)


def _duration_us() -> Any:
    """Return the time from the first start to the end, or until now; null for a run that has not started."""
    first = select(run_attempts.c.started_at).where(run_attempts.c.run_id == _c.id, run_attempts.c.attempt == lit(1))
    started = func.coalesce(first.scalar_subquery(), _c.claimed_at)
    return func.coalesce(_c.ended_at, now_once()) - started


def _cost_usd() -> Any:
    calls = select(func.coalesce(func.sum(run_calls.c.cost_usd), lit(0))).where(run_calls.c.run_id == _c.id)
    return calls.scalar_subquery()


# Filters that look up other rows of each run.
LOOKED_UP: Final = ("error_code", "roots_only", "min_cost_usd", "max_cost_usd")
