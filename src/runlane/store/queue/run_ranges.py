"""The ranges of the indexes of lists: the runs of a tenant with one status, or with one target, lane and status.

Ended runs have both kinds of ranges, waiting runs the second kind. The targets and lanes of a tenant are found by
jumping from one to the next in the index, so the cost of a list depends on the number of its ranges, and not on the
number of runs. Running runs are in none of these indexes: they are as few as the slots of the workers.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from sqlalchemy import ARRAY, CTE, ColumnElement, FromClause, Select, Text, bindparam, func, select, true

from runlane.domain.run import Status
from runlane.store.sql.expressions import lit
from runlane.store.sql.schema import run_tags, runs
from runlane.store.sql.statement import Dialect


class RunIndex(StrEnum):
    """The index by which the runs of a list are found."""

    ID = "id"
    STATUS = "status"
    TARGET = "target"
    LANE = "lane"
    TARGET_AND_LANE = "target_and_lane"
    KEY = "key"
    TAG = "tag"
    PARENT = "parent"
    IDS = "ids"

    @property
    def is_short(self) -> bool:
        """Return whether it finds so few runs that all of them can be examined."""
        return self in (RunIndex.PARENT, RunIndex.IDS)

    @property
    def by_status(self) -> bool:
        """Return whether its ranges have one status each, and running runs are found separately."""
        return self in (RunIndex.STATUS, RunIndex.TARGET, RunIndex.LANE, RunIndex.TARGET_AND_LANE)

    @property
    def by_tenant(self) -> bool:
        """Return whether its ranges have one tenant each."""
        return self.by_status or self is RunIndex.TAG


FOUND: Final = runs.alias("found")
TAGGED: Final = run_tags.alias("tagged")
_KIND: Final = ("tenant", "target", "lane")
_target = bindparam("target", type_=Text())
_lane = bindparam("lane", type_=Text())
# A join of lists needs a condition.
_all_pairs = lit(1) == lit(1)


def for_each(
    source: FromClause, found: FromClause, query: Select[Any], columns: tuple[str, ...], dialect: Dialect
) -> Select[Any]:
    """Return these columns of the runs that a query, given without columns, finds for each row of the source."""
    if dialect == "postgresql":
        part = query.add_columns(*(found.c[name] for name in columns)).correlate(source).lateral()
        return select(*(part.c[name] for name in columns)).select_from(source.join(part, true()))
    # SQLite has no lateral joins, but looks up the ids that a subquery returns for each row.
    rows = runs.alias()
    ids = query.add_columns(found.c.id).correlate(source)
    return select(*(rows.c[name] for name in columns)).select_from(source.join(rows, rows.c.id.in_(ids)))


def listed(name: str, dialect: Dialect, alias: str | None = None) -> FromClause:
    """Return a table of the strings in a parameter, in its column `value`."""
    if dialect == "postgresql":
        strings = func.unnest(bindparam(name, type_=ARRAY(Text()))).table_valued("value")
        return strings.render_derived(name=alias or name)
    return func.json_each(bindparam(name, type_=Text())).table_valued("value", name=alias or name)


def ranges_of(index: RunIndex, dialect: Dialect, *, ended: bool) -> FromClause:
    """Return the ranges of a list, of ended or of waiting runs."""
    tenants = listed("tenants", dialect)
    if index is RunIndex.TAG:
        return select(tenants.c.value.label("tenant")).subquery("ranges")
    statuses = listed("ended_statuses" if ended else "waiting_statuses", dialect)
    of_status = statuses.c.value.label("status")
    if index is RunIndex.STATUS and ended:
        pairs = select(tenants.c.value.label("tenant"), of_status).select_from(tenants.join(statuses, _all_pairs))
        return pairs.subquery("ranges")
    if index is RunIndex.TARGET_AND_LANE:
        kinds = select(tenants.c.value.label("tenant"), _target.label("target"), _lane.label("lane")).subquery("kinds")
    else:
        kinds = _kinds(index, dialect, ended=ended)
    pairs = select(kinds, of_status).select_from(kinds.join(statuses, _all_pairs))
    return (pairs.where(kinds.c.lane == _lane) if index is RunIndex.LANE else pairs).subquery("ranges")


def in_range(index: RunIndex, ranges: FromClause, *, ended: bool) -> list[ColumnElement[bool]]:
    """Return the condition that a run is in one of the ranges."""
    if index is RunIndex.TAG:
        return [TAGGED.c.tenant == ranges.c.tenant, TAGGED.c.tag == bindparam("tag", type_=Text())]
    names = [name for name in (*_KIND, "status") if name in ranges.c]
    return [*(FOUND.c[name] == ranges.c[name] for name in names), *_in_index(FOUND, ended=ended)]


def _in_index(table: FromClause, *, ended: bool) -> list[ColumnElement[bool]]:
    """Return the condition of the indexes of ended or of waiting runs, written as in the schema."""
    if ended:
        return [table.c.ended_at.is_not(None)]
    return [table.c.ended_at.is_(None), table.c.status != lit(Status.RUNNING)]


def _kinds(index: RunIndex, dialect: Dialect, *, ended: bool) -> CTE:
    """Return each tenant, target and lane that has such runs; for a list of one target, only those of this target."""
    tenants = listed("tenants", dialect)
    next_in = runs.alias("next_run")

    def first(*conditions: ColumnElement[bool]) -> ColumnElement[str]:
        c = next_in.c
        found = select(c.id).where(*conditions, *_in_index(next_in, ended=ended)).limit(lit(1))
        if index is RunIndex.TARGET:
            return found.where(c.target == _target).order_by(c.lane).scalar_subquery()
        return found.order_by(c.target, c.lane).scalar_subquery()

    one, other = runs.alias("first_run"), runs.alias("following_run")
    begin = select(*(one.c[name] for name in _KIND)).select_from(
        tenants.join(one, one.c.id == first(next_in.c.tenant == tenants.c.value))
    )
    kinds = begin.cte("ended_kinds" if ended else "waiting_kinds", recursive=True)
    of_tenant = next_in.c.tenant == kinds.c.tenant
    jump = first(of_tenant, next_in.c.target == kinds.c.target, next_in.c.lane > kinds.c.lane)
    if index is not RunIndex.TARGET:
        # The next lane of the target, or else the next target.
        jump = func.coalesce(jump, first(of_tenant, next_in.c.target > kinds.c.target))
    following = select(*(other.c[name] for name in _KIND)).select_from(kinds.join(other, other.c.id == jump))
    return kinds.union_all(following)
