"""Filters of runs that are checked run by run: worker, version, error, duration, cost, and whether a run is a root.

They have no index, since each would cost every accepted or finished run a write. A page of a list checks them on a
bounded number of runs, a bulk job on every run that its other filters find.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Float,
    FromClause,
    Text,
    bindparam,
    cast,
    exists,
    func,
    or_,
    select,
)

from runlane.store.sql.expressions import json_text, lit, now_once, optional, pinned_version
from runlane.store.sql.schema import idempotency_keys, run_attempts, run_calls, run_children, run_inputs, run_results


def run_checks(found: FromClause) -> list[ColumnElement[bool]]:
    """Return the conditions for a table of runs; a condition whose parameter is null matches every run."""
    return [
        optional("worker_id", found.c.worker_id),
        _is_root(found),
        _has_error(found),
        _has_version(found),
        *_within(_duration_us(found), "min_duration_us", "max_duration_us", BigInteger()),
        *_within(_cost_usd(found), "min_cost_usd", "max_cost_usd", Float()),
    ]


def has_parent(found: FromClause) -> ColumnElement[bool]:
    """Return the condition that a run is a child of the given parent, if one is given."""
    parent = bindparam("parent", type_=Text())
    of_run = (run_children.c.run_id == parent, idempotency_keys.c.run_id == found.c.id)
    children = run_children.join(idempotency_keys, idempotency_keys.c.key == run_children.c.key)
    return or_(cast(parent, Text).is_(None), exists().select_from(children).where(*of_run))


def _within(value: Any, least: str, most: str, kind: Any) -> tuple[ColumnElement[bool], ...]:
    low, high = bindparam(least, type_=kind), bindparam(most, type_=kind)
    return or_(cast(low, kind).is_(None), value >= low), or_(cast(high, kind).is_(None), value <= high)


def _is_root(found: FromClause) -> ColumnElement[bool]:
    parents = run_children.join(idempotency_keys, idempotency_keys.c.key == run_children.c.key)
    is_child = (idempotency_keys.c.run_id == found.c.id, run_children.c.run_id != found.c.id)
    # Here and below a scalar subquery is used, because for `exists` the planner may read the whole other table once.
    parent = select(run_children.c.run_id).select_from(parents).where(*is_child).limit(lit(1)).scalar_subquery()
    return or_(~bindparam("roots_only", type_=Boolean()), parent.is_(None))


def _has_error(found: FromClause) -> ColumnElement[bool]:
    code = bindparam("error_code", type_=Text())
    error = run_results.c.error
    named = func.coalesce(json_text(error, lit("code")), json_text(error, lit("type")))
    of_run = select(named).where(run_results.c.run_id == found.c.id).scalar_subquery()
    return or_(cast(code, Text).is_(None), of_run == code)


def _has_version(found: FromClause) -> ColumnElement[bool]:
    version = bindparam("definition", type_=Text())
    pinned = select(pinned_version(run_inputs.c.plan, found.c.target)).where(run_inputs.c.run_id == found.c.id)
    return or_(cast(version, Text).is_(None), pinned.scalar_subquery() == version)


def _duration_us(found: FromClause) -> Any:
    """Return the time from the first start to the end, or until now; null for a run that has not started."""
    of_first = (run_attempts.c.run_id == found.c.id, run_attempts.c.attempt == lit(1))
    first = select(run_attempts.c.started_at).where(*of_first).scalar_subquery()
    return func.coalesce(found.c.ended_at, now_once()) - func.coalesce(first, found.c.claimed_at)


def _cost_usd(found: FromClause) -> Any:
    calls = select(func.coalesce(func.sum(run_calls.c.cost_usd), lit(0))).where(run_calls.c.run_id == found.c.id)
    return calls.scalar_subquery()


# Filters that look up other rows of each run.
LOOKED_UP: Final = ("definition", "error_code", "roots_only", "min_cost_usd", "max_cost_usd")
