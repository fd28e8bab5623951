"""The runs that a filter selects, as conditions of one statement: a bulk job stores all of them at once."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Integer, Text, bindparam, cast, func, or_, select

from runlane.domain.run import Status
from runlane.domain.tenant import DEFAULT_TENANT, scoped_key
from runlane.store.queue.run_checks import has_parent, run_checks
from runlane.store.queue.search import RunFilter, escaped
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, member, optional
from runlane.store.sql.schema import run_tags, runs

_pattern = bindparam("pattern", type_=Text())
_from = bindparam("accepted_from", type_=BigInteger())
_before = bindparam("accepted_before", type_=BigInteger())
_tag_count = bindparam("tag_count", type_=Integer())
_like = [
    func.lower(column).like(_pattern, escape="\\")
    for column in (runs.c.id, runs.c.target, runs.c.ordering_key, runs.c.progress_note)
]
_tags_found = (
    select(func.count()).where(run_tags.c.run_id == runs.c.id, member(run_tags.c.tag, "tags")).scalar_subquery()
)
# The conditions without the tenant. `selection_parameters` returns their parameters.
RUNS_MATCHING = (
    member(runs.c.status, "statuses"),
    optional("target", runs.c.target),
    optional("lane", runs.c.lane),
    optional("ordering_key", runs.c.ordering_key),
    or_(cast(_from, BigInteger).is_(None), runs.c.accepted_at >= _from),
    or_(cast(_before, BigInteger).is_(None), runs.c.accepted_at < _before),
    or_(cast(_pattern, Text).is_(None), *_like),
    or_(_tag_count == lit(0), _tags_found == _tag_count),
    has_parent(runs),
    *run_checks(runs),
)
RUNS_OF_TENANT = runs.c.tenant == bindparam("tenant", type_=Text())


def selection_parameters(session: Session, wanted: RunFilter) -> dict[str, Any]:
    """Return the parameters of the conditions. The filter has no session: `in_session` replaces it by a key."""
    key, tags = wanted.ordering_key, sorted(set(wanted.marks))
    return {
        "statuses": session.texts([status.value for status in wanted.statuses or tuple(Status)]),
        "target": wanted.target,
        "lane": wanted.lane,
        "ordering_key": None if key is None else scoped_key(wanted.tenant or DEFAULT_TENANT, key),
        "accepted_from": wanted.accepted_from_us,
        "accepted_before": wanted.accepted_before_us,
        "pattern": None if wanted.text is None else f"%{escaped(wanted.text.lower())}%",
        "tags": session.texts(tags),
        "tag_count": len(tags),
        "tenant": wanted.tenant,
        "parent": wanted.parent,
        "worker_id": wanted.worker_id,
        "error_code": wanted.error_code,
        "definition": wanted.definition,
        "roots_only": wanted.roots_only,
        "min_duration_us": wanted.min_duration_us,
        "max_duration_us": wanted.max_duration_us,
        "min_cost_usd": wanted.min_cost_usd,
        "max_cost_usd": wanted.max_cost_usd,
    }
