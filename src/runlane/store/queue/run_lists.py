"""The statements behind lists of runs: one for each `RunIndex`, newest first.

A statement keeps the ranges with the newest runs, takes a page of each and merges them, in one snapshot. Filters that
the index does not have are checked run by run, down to a floor: the id below which the statement does not look.
"""

from __future__ import annotations

from typing import Any, Final, get_args

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Integer,
    Select,
    Text,
    bindparam,
    cast,
    func,
    or_,
    select,
    union_all,
)

from runlane.domain.run import Status
from runlane.store.queue.run_checks import has_parent, run_checks
from runlane.store.queue.run_ranges import FOUND, TAGGED, RunIndex, for_each, in_range, ranges_of
from runlane.store.queue.runs import STARTED_AT
from runlane.store.sql.expressions import by_key_only, lit, member, optional
from runlane.store.sql.schema import idempotency_keys, run_children, run_tags, runs
from runlane.store.sql.statement import Dialect, Statement

_pattern = bindparam("pattern", type_=Text())
_from = bindparam("accepted_from", type_=BigInteger())
_before = bindparam("accepted_before", type_=BigInteger())
_limit = bindparam("limit", type_=Integer())


def _within(column: ColumnElement[str]) -> tuple[ColumnElement[bool], ...]:
    return column < bindparam("below", type_=Text()), column >= bindparam("floor", type_=Text())


def _checks(index: RunIndex) -> list[ColumnElement[bool]]:
    """Return the filters that are checked run by run; one that is null matches every run."""
    c = FOUND.c
    searched = (c.id, c.target, c.ordering_key, c.progress_note)
    checks = [
        optional("target", c.target),
        optional("lane", c.lane),
        or_(cast(_from, BigInteger).is_(None), c.accepted_at >= _from),
        or_(cast(_before, BigInteger).is_(None), c.accepted_at < _before),
        or_(cast(_pattern, Text).is_(None), *(func.lower(text).like(_pattern, escape="\\") for text in searched)),
    ]
    checks += run_checks(FOUND)
    if not index.by_status:
        checks.append(member(c.status, "statuses"))
    if not index.by_tenant:
        checks.append(optional("tenant", c.tenant))
    if not index.by_status:
        others = (run_tags.c.tenant == c.tenant, member(run_tags.c.tag, "other_tags"), run_tags.c.run_id == c.id)
        count = select(func.count()).where(*others).scalar_subquery()
        wanted = bindparam("other_count", type_=Integer())
        checks.append(or_(wanted == lit(0), count == wanted))
    if index.is_short:
        checks.append(optional("ordering_key", c.ordering_key))
    if index is RunIndex.IDS:
        checks.append(has_parent(FOUND))
    return checks


def _has_key() -> tuple[ColumnElement[bool], ...]:
    """Return the condition on the ordering key, written as in the index of lists."""
    key = FOUND.c.ordering_key
    return key.is_not(None), by_key_only(key) == bindparam("ordering_key", type_=Text())


def _order(index: RunIndex) -> ColumnElement[str]:
    return TAGGED.c.run_id if index is RunIndex.TAG else FOUND.c.id


def _walk(index: RunIndex) -> Select[Any]:
    """Return a walk over an index from the newest run on, within the bounds of the statement."""
    return select().where(*_within(_order(index))).order_by(_order(index).desc())


def _newest_of_ranges(index: RunIndex, dialect: Dialect, *, ended: bool) -> Select[Any]:
    """Return the newest matching runs: at most a page of each range, of at most as many ranges as a page has runs."""
    walk = _walk(index).where(*_checks(index))
    if index is RunIndex.TAG:
        # Tags first, then their runs by id, and not the other way round.
        walk = walk.select_from(TAGGED.join(FOUND, FOUND.c.id == by_key_only(TAGGED.c.run_id)))
    ranges = ranges_of(index, dialect, ended=ended)
    first = walk.add_columns(_order(index)).where(*in_range(index, ranges, ended=ended)).limit(lit(1))
    heads = select(ranges, first.correlate(ranges).scalar_subquery().label("newest")).subquery("heads")
    # A range whose newest run is older than those of this many other ranges has no run on the page.
    chosen = select(heads).order_by(heads.c.newest.desc().nulls_last()).limit(_limit).subquery("chosen")
    # A range is read from its newest matching run on. Without such a run, the bound is null and no run is read.
    page = walk.where(*in_range(index, chosen, ended=ended), _order(index) <= chosen.c.newest).limit(_limit)
    return for_each(chosen, FOUND, page, ("id",), dialect)


def _running(index: RunIndex) -> Select[Any]:
    """Return the matching runs that are running, of all tenants of the list."""
    c = FOUND.c
    return select(c.id).where(
        c.status == lit(Status.RUNNING),
        bindparam("with_running", type_=Boolean()),
        member(c.tenant, "tenants"),
        # The running runs are read by the index that has only them, and not by the index of ids.
        *_within(by_key_only(c.id)),
        *_checks(index),
    )


def _newest(index: RunIndex) -> Select[Any]:
    """Return the newest matching runs of an index without ranges."""
    walk = _walk(index).add_columns(FOUND.c.id).where(*_checks(index)).limit(_limit)
    match index:
        case RunIndex.KEY:
            return walk.where(*_has_key())
        case RunIndex.IDS:
            return walk.where(member(FOUND.c.id, "ids"))
        case RunIndex.PARENT:
            children = run_children.join(idempotency_keys, idempotency_keys.c.key == run_children.c.key)
            # All children are read, since they are few. Sorted by the plain id, Postgres would walk over all runs.
            return (
                walk.select_from(children.join(FOUND, FOUND.c.id == idempotency_keys.c.run_id))
                .where(run_children.c.run_id == bindparam("parent", type_=Text()), FOUND.c.id != run_children.c.run_id)
                .order_by(None)
                .order_by(by_key_only(FOUND.c.id).desc())
            )
        case _:
            return walk


def _search(index: RunIndex, dialect: Dialect) -> Statement:
    if index.by_status:
        running = _running(index).cte("running").prefix_with("materialized")
        parts = [_newest_of_ranges(index, dialect, ended=ended) for ended in (True, False)]
        found = union_all(*parts, select(running.c.id))
    elif index.by_tenant:
        found = _newest_of_ranges(index, dialect, ended=True)
    else:
        found = _newest(index)
    ids = found.subquery("ids")
    page = select(ids.c.id).order_by(by_key_only(ids.c.id).desc()).limit(_limit).subquery("page")
    # The caller sorts the rows: with an ORDER BY here, Postgres might read all runs by their index and join this page
    # to them.
    return Statement(
        f"list_by_{index}",
        select(runs, STARTED_AT).select_from(page.join(runs, runs.c.id == page.c.id)),
        purpose=f"List runs by {index.replace('_', ' ')}, newest first.",
    )


def _floor(index: RunIndex, dialect: Dialect) -> Statement:
    walk = _walk(index).add_columns(_order(index).label("id")).limit(lit(1))
    walk = walk.offset(bindparam("skipped", type_=Integer()))
    if index is RunIndex.KEY:
        walk = walk.where(*_has_key())
    query: Any = walk
    if index.by_tenant:
        parts: list[Select[Any]] = []
        for ended in (True, False) if index.by_status else (True,):
            ranges = ranges_of(index, dialect, ended=ended)
            end = walk.where(*in_range(index, ranges, ended=ended)).correlate(ranges).scalar_subquery()
            parts.append(select(end.label("id")).select_from(ranges))
        query = union_all(*parts)
    about = f"Find the ids at which a list by {index.replace('_', ' ')} pauses, one for each range."
    return Statement(f"floor_by_{index}", query, purpose=about)


SEARCHES: Final = {dialect: {index: _search(index, dialect) for index in RunIndex} for dialect in get_args(Dialect)}
FLOORS: Final = {
    dialect: {index: _floor(index, dialect) for index in RunIndex if not index.is_short}
    for dialect in get_args(Dialect)
}
