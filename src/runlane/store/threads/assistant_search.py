"""Find assistants by their graph, name and metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Integer, Text, bindparam, cast, func, or_, select

from runlane.domain.access_rule import AccessRule, rule_text
from runlane.domain.assistant import Assistant
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import json_contains, optional, visible_by
from runlane.store.sql.page_bytes import is_cut, within_bytes
from runlane.store.sql.schema import assistants
from runlane.store.sql.statement import Statement
from runlane.store.threads.assistants import assistant_of, create_defaults, json_or_none

SORT_COLUMNS: Final[Mapping[str, ColumnElement[Any]]] = {
    "assistant_id": assistants.c.id,
    "graph_id": assistants.c.graph_id,
    "name": assistants.c.name,
    "created_at": assistants.c.created_at,
    "updated_at": assistants.c.updated_at,
}


@dataclass(frozen=True, slots=True)
class AssistantFilter:
    """Selects assistants: all given conditions must hold. `name` is a part of the name, in upper or lower case."""

    graph_id: str | None = None
    name: str | None = None
    metadata: Mapping[str, Any] | None = None
    rule: AccessRule | None = None


_tenant = bindparam("tenant", type_=Text())
_metadata = bindparam("metadata", type_=Text())
_limit, _offset = bindparam("limit", type_=Integer()), bindparam("offset", type_=Integer())
_part = bindparam("name", type_=Text())
_found = (
    assistants.c.tenant == _tenant,
    optional("graph_id", assistants.c.graph_id),
    or_(cast(_part, Text).is_(None), func.lower(assistants.c.name).contains(func.lower(_part), autoescape=False)),
    or_(cast(_metadata, Text).is_(None), json_contains(assistants.c.metadata, _metadata)),
    visible_by(assistants.c.metadata),
)
_SEARCH = {
    (column, descending): Statement(
        f"search_assistants_by_{column}{'_down' if descending else ''}",
        within_bytes(
            select(assistants),
            *_found,
            keys=[assistants.c.tenant, assistants.c.id],
            order=[(order, descending), (assistants.c.id, False)],
            large=[assistants.c.config, assistants.c.context, assistants.c.metadata, assistants.c.name],
            limit=_limit,
            offset=_offset,
        ),
        purpose=f"Find assistants, in the order of {column}.",
    )
    for column, order in SORT_COLUMNS.items()
    for descending in (False, True)
}
_COUNT = Statement(
    "count_assistants",
    select(func.count().label("number")).select_from(assistants).where(*_found),
    purpose="Count the assistants that a search finds.",
)


async def search_assistants(
    database: Database,
    tenant: str,
    wanted: AssistantFilter,
    *,
    sort_by: str = "created_at",
    descending: bool = True,
    limit: int = 10,
    offset: int = 0,
) -> tuple[list[Assistant], bool]:
    """Return a page of the assistants of a tenant, including the defaults of all graphs, and whether more follow."""

    async def work(session: Session) -> tuple[list[Assistant], bool]:
        await create_defaults(session, tenant)
        rows = await session.fetch(
            _SEARCH[sort_by, descending], tenant=tenant, limit=limit + 1, offset=offset, **_filter(wanted)
        )
        return [assistant_of(row) for row in rows[:limit]], len(rows) > limit or is_cut(rows)

    return await database.transact(work)


async def count_assistants(database: Database, tenant: str, wanted: AssistantFilter) -> int:
    """Return how many assistants a search finds."""

    async def work(session: Session) -> int:
        await create_defaults(session, tenant)
        return (await session.fetch(_COUNT, tenant=tenant, **_filter(wanted)))[0]["number"]

    return await database.transact(work)


def _filter(wanted: AssistantFilter) -> dict[str, Any]:
    return {
        "graph_id": wanted.graph_id,
        "name": wanted.name,
        "metadata": json_or_none(wanted.metadata),
        "rule": rule_text(wanted.rule),
    }
