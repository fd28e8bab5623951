"""Assistants: a graph with config, context and metadata, in versions.

Every graph has a default assistant, whose id follows from the graph's id. Its row is stored for a tenant when the
tenant first reads or uses it, so that it can be changed and found like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    FromClause,
    Integer,
    Text,
    bindparam,
    cast,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.assistant import Assistant, AssistantVersion
from runlane.domain.graph import default_assistant_id, metadata_json
from runlane.domain.native_thread import native_candidates
from runlane.domain.text import dump_json
from runlane.errors import Conflict, NotFound, UnknownAssistant, UnknownGraph
from runlane.store.schedules.crons import delete_crons_of_assistant
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import json_contains, lit, member, now_us, upsert
from runlane.store.sql.page_bytes import is_cut, within_bytes
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import assistant_versions, assistants, graphs
from runlane.store.sql.statement import Row, Statement, text_list
from runlane.store.threads.graphs import graph_ids
from runlane.store.threads.native_graphs import native_graph_ids

_CREATED_BY_SYSTEM: Final = {"created_by": "system"}
_CONTENT = ("graph_id", "name", "description", "config", "context", "metadata")
_JSON = ("config", "context", "metadata")


@dataclass(frozen=True, slots=True)
class AssistantContent:
    """The content of a version of an assistant."""

    graph_id: str
    name: str
    description: str | None
    config: Mapping[str, Any]
    context: Any
    metadata: Mapping[str, Any]


_tenant = bindparam("tenant", type_=Text())
_id = bindparam("assistant_id", type_=Text())
_one = (assistants.c.tenant == _tenant, assistants.c.id == _id)
_given = {name: bindparam(name, type_=Text()) for name in _CONTENT}
_version = bindparam("version", type_=Integer())
_CREATE = Statement(
    "create_assistant",
    upsert(assistants)
    .values(tenant=_tenant, id=_id, **_given, version=lit(1), created_at=now_us(), updated_at=now_us())
    .on_conflict_do_nothing()
    .returning(assistants),
    purpose="Create an assistant, unless its id exists.",
)


def _create_defaults(batch: FromClause) -> Executable:
    names = ["tenant", "id", "graph_id", "name", "config", "context", "metadata", "version", "created_at", "updated_at"]
    b = batch.c
    empty = cast(bindparam("empty", type_=Text()), Text)
    rows = select(b.tenant, b.id, b.graph_id, b.graph_id, empty, empty, b.metadata, lit(1), now_us(), now_us())
    return (
        upsert(assistants)
        .from_select(names, rows.where(b.id.is_not(None)))
        .on_conflict_do_nothing()
        .returning(assistants)
    )


_CREATE_DEFAULTS = Statement(
    "create_default_assistants",
    _create_defaults,
    {"tenant": Text(), "id": Text(), "graph_id": Text(), "metadata": Text()},
    purpose="Create the default assistants of graphs that a tenant does not have yet.",
)
_ADD_VERSION = Statement(
    "add_assistant_version",
    insert(assistant_versions).values(
        tenant=_tenant, assistant_id=_id, version=_version, **_given, created_at=bindparam("at", type_=BigInteger())
    ),
    purpose="Store a version of an assistant.",
)
_FIND = Statement(
    "find_assistant",
    select(assistants).where(assistants.c.tenant == _tenant, member(assistants.c.id, "ids")),
    purpose="Read assistants by their ids.",
)
_RESOLVE = Statement(
    "resolve_assistant",
    select(assistants, graphs.c.error)
    .select_from(assistants.outerjoin(graphs, graphs.c.id == assistants.c.graph_id))
    .where(assistants.c.tenant == _tenant, member(assistants.c.id, "ids")),
    purpose="Read the assistant of a new run, and whether its graph is loaded.",
)
_LOCK = Statement(
    "lock_assistant", select(assistants).where(*_one).with_for_update(), purpose="Lock an assistant while it changes."
)
_CHANGE = Statement(
    "change_assistant",
    update(assistants).where(*_one).values(**_given, version=_version, updated_at=now_us()).returning(assistants),
    purpose="Make a version the current one of an assistant.",
)
_of_assistant = (assistant_versions.c.tenant == _tenant, assistant_versions.c.assistant_id == _id)
_NEXT_VERSION = Statement(
    "next_assistant_version",
    select((func.max(assistant_versions.c.version) + lit(1)).label("version")).where(*_of_assistant),
    purpose="Find the number of the next version of an assistant.",
)
_VERSION = Statement(
    "find_assistant_version",
    select(assistant_versions).where(*_of_assistant, assistant_versions.c.version == _version),
    purpose="Read a version of an assistant.",
)
_limit, _offset = bindparam("limit", type_=Integer()), bindparam("offset", type_=Integer())
_metadata = bindparam("metadata", type_=Text())
_VERSIONS = Statement(
    "list_assistant_versions",
    within_bytes(
        select(assistant_versions),
        *_of_assistant,
        or_(cast(_metadata, Text).is_(None), json_contains(assistant_versions.c.metadata, _metadata)),
        keys=[assistant_versions.c.tenant, assistant_versions.c.assistant_id, assistant_versions.c.version],
        order=[(assistant_versions.c.version, True)],
        large=[assistant_versions.c[name] for name in ("config", "context", "metadata", "name")],
        limit=_limit,
        offset=_offset,
    ),
    purpose="Read versions of an assistant, newest first.",
)
_DELETE = Statement("delete_assistant", delete(assistants).where(*_one), purpose="Delete an assistant.")
_DELETE_VERSIONS = Statement(
    "delete_assistant_versions",
    delete(assistant_versions).where(*_of_assistant),
    purpose="Delete the versions of an assistant.",
)
_DROP = [
    Statement(
        f"delete_{table.name}_of_tenant",
        delete(table).where(table.c.tenant == _tenant),
        purpose=f"Delete the rows of a deleted tenant in {table.name}.",
    )
    for table in (assistants, assistant_versions)
]


async def create_assistant(
    database: Database, tenant: str, assistant_id: str, content: AssistantContent, *, may_exist: bool
) -> Assistant:
    """Create an assistant. If its id exists: return it with `may_exist`, else raise Conflict."""

    async def work(session: Session) -> Assistant:
        known = await known_graphs(session, tenant)
        if content.graph_id not in known:
            raise UnknownGraph(content.graph_id, known)
        params = _columns(content)
        rows = await session.fetch(_CREATE, tenant=tenant, assistant_id=assistant_id, **params)
        if rows:
            await _add_version(session, tenant, rows[0])
            return assistant_of(rows[0])
        if not may_exist:
            raise Conflict(
                f'The assistant "{assistant_id}" exists already. Use another id, or send "if_exists": "do_nothing".'
            )
        return assistant_of((await session.fetch(_FIND, tenant=tenant, ids=session.texts([assistant_id])))[0])

    return await database.transact(work)


async def find_assistant(database: Database, tenant: str, assistant_id: str) -> Assistant:
    """Return an assistant by its id, or the default one of a graph by the graph's id."""
    return await database.transact(lambda session: find_assistant_in(session, tenant, assistant_id))


async def find_assistant_in(session: Session, tenant: str, assistant_id: str) -> Assistant:
    """Do the same within a transaction."""
    ids = _meant(assistant_id)
    rows = await session.fetch(_FIND, tenant=tenant, ids=session.texts(ids))
    if not rows:
        known = await create_defaults(session, tenant)
        rows = await session.fetch(_FIND, tenant=tenant, ids=session.texts(ids))
        if not rows:
            raise UnknownAssistant(assistant_id, known)
    return assistant_of(min(rows, key=lambda row: ids.index(row["id"])))


async def resolve_assistant(database: Database, tenant: str, assistant_id: str) -> Assistant:
    """Return the assistant of a new run. Conflict if the newest worker could not load its graph."""
    ids = _meant(assistant_id)

    async def create(session: Session) -> Sequence[Row]:
        await find_assistant_in(session, tenant, assistant_id)
        return await session.fetch(_RESOLVE, tenant=tenant, ids=session.texts(ids))

    rows = await database.query(_RESOLVE, tenant=tenant, ids=text_list(database.dialect, ids))
    if not rows:
        rows = await database.transact(create)
    row = min(rows, key=lambda one: ids.index(one["id"]))
    if row["error"] is not None:
        raise Conflict(
            f'The graph "{row["graph_id"]}" could not be loaded: {row["error"]}. Correct it and restart the worker.'
        )
    return assistant_of(row)


async def update_assistant(database: Database, tenant: str, assistant_id: str, changes: Mapping[str, Any]) -> Assistant:
    """Store a new version with these fields changed and make it the current one. Metadata is merged."""

    async def work(session: Session) -> Assistant:
        current = await _lock(session, tenant, assistant_id)
        if "graph_id" in changes and changes["graph_id"] not in (known := await known_graphs(session, tenant)):
            raise UnknownGraph(changes["graph_id"], known)
        merged = {**changes, "metadata": {**current.metadata, **changes.get("metadata", {})}}
        content = replace(_content(current), **merged)
        version = (await session.fetch(_NEXT_VERSION, tenant=tenant, assistant_id=current.id))[0]["version"]
        rows = await session.fetch(
            _CHANGE, tenant=tenant, assistant_id=current.id, version=version, **_columns(content)
        )
        await _add_version(session, tenant, rows[0], at=rows[0]["updated_at"])
        return assistant_of(rows[0])

    return await database.transact(work)


async def set_latest(database: Database, tenant: str, assistant_id: str, version: int) -> Assistant:
    """Make a stored version the current one."""

    async def work(session: Session) -> Assistant:
        current = await _lock(session, tenant, assistant_id)
        rows = await session.fetch(_VERSION, tenant=tenant, assistant_id=current.id, version=version)
        if not rows:
            raise NotFound(f'The assistant "{current.id}" has no version {version}. See POST /assistants/ID/versions')
        params = {name: rows[0][name] for name in _CONTENT}
        return assistant_of(
            (await session.fetch(_CHANGE, tenant=tenant, assistant_id=current.id, version=version, **params))[0]
        )

    return await database.transact(work)


async def find_deletable_assistant(database: Database, tenant: str, assistant_id: str) -> Assistant:
    """Return an assistant. Conflict for the default assistant of a graph."""
    found = await find_assistant(database, tenant, assistant_id)
    _check_deletable(found)
    return found


def _check_deletable(current: Assistant) -> None:
    if current.id == default_assistant_id(current.graph_id):
        raise Conflict(
            f'The assistant "{current.id}" is the default of the graph "{current.graph_id}" and exists as long as the '
            "graph. Delete one that you have created."
        )


async def delete_assistant_in(session: Session, tenant: str, assistant_id: str) -> Assistant:
    """Delete an assistant and its versions. Conflict for the default assistant of a graph."""
    current = await _lock(session, tenant, assistant_id)
    _check_deletable(current)
    await session.fetch(_DELETE, tenant=tenant, assistant_id=current.id)
    await session.fetch(_DELETE_VERSIONS, tenant=tenant, assistant_id=current.id)
    await delete_crons_of_assistant(session, tenant, current.id)
    return current


async def list_versions(
    database: Database,
    tenant: str,
    assistant_id: str,
    *,
    metadata: Mapping[str, Any] | None = None,
    limit: int = 10,
    offset: int = 0,
) -> tuple[list[AssistantVersion], bool]:
    """Return versions of an assistant, newest first, and whether the bound in bytes has left out some of the page."""
    found = await find_assistant(database, tenant, assistant_id)
    rows = await database.query(
        _VERSIONS, tenant=tenant, assistant_id=found.id, metadata=json_or_none(metadata), limit=limit, offset=offset
    )
    return [from_row(AssistantVersion, row, json=_JSON) for row in rows], is_cut(rows)


async def drop_assistants(session: Session, tenant: str) -> None:
    """Delete the assistants of a deleted tenant."""
    for statement in _DROP:
        await session.fetch(statement, tenant=tenant)


async def create_defaults(session: Session, tenant: str) -> list[str]:
    """Store the default assistants that the tenant lacks. Return the ids of all graphs."""
    known = await known_graphs(session, tenant)
    by_id = {default_assistant_id(graph_id): graph_id for graph_id in known}
    stored = await session.fetch(_FIND, tenant=tenant, ids=session.texts(list(by_id)))
    missing = by_id.keys() - {row["id"] for row in stored}
    if missing:
        metadata = dump_json(_CREATED_BY_SYSTEM)
        members = [(tenant, default, by_id[default], metadata) for default in sorted(missing)]
        for row in await session.fetch(_CREATE_DEFAULTS, members, empty="{}"):
            await _add_version(session, tenant, row)
    return known


async def known_graphs(session: Session, tenant: str) -> list[str]:
    """Return the ids of the graphs of the workers, and of the agents and orchestrations of a tenant."""
    return [*await graph_ids(session), *await native_graph_ids(session, tenant)]


def _meant(assistant_id: str) -> list[str]:
    """Return the ids of the assistants that a client may mean. A graph precedes an agent with the same name."""
    named = [default_assistant_id(graph_id) for graph_id in (assistant_id, *native_candidates(assistant_id))]
    return [assistant_id, *named]


async def _lock(session: Session, tenant: str, assistant_id: str) -> Assistant:
    found = await find_assistant_in(session, tenant, assistant_id)
    rows = await session.fetch(_LOCK, tenant=tenant, assistant_id=found.id)
    if not rows:
        raise UnknownAssistant(assistant_id, await known_graphs(session, tenant))
    return assistant_of(rows[0])


async def _add_version(session: Session, tenant: str, row: Row, at: int | None = None) -> None:
    params = {name: row[name] for name in (*_CONTENT, "version")}
    await session.fetch(_ADD_VERSION, tenant=tenant, assistant_id=row["id"], at=at or row["created_at"], **params)


def json_or_none(value: Mapping[str, Any] | None) -> str | None:
    """Return a filter as JSON."""
    return None if value is None else dump_json(value)


def _columns(content: AssistantContent) -> dict[str, Any]:
    given = {name: getattr(content, name) for name in _CONTENT}
    columns = {name: dump_json(value) if name in _JSON else value for name, value in given.items()}
    return {**columns, "metadata": metadata_json(content.metadata)}


def _content(current: Assistant) -> AssistantContent:
    return AssistantContent(**{name: getattr(current, name) for name in _CONTENT})


def assistant_of(row: Row) -> Assistant:
    """Return the value of a row."""
    return from_row(Assistant, row, json=_JSON)
