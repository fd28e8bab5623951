"""Definitions: the current ones, all of their versions, and the versions that a run pins.

Versions are immutable and addressed by their content, so they are cached: a worker that has a run's definitions starts
it without reading them. The versions that a run uses are stored with the orchestration when definitions change;
accepting a run reads that one row.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, cast

import orjson
from pydantic import Field
from sqlalchemy import FromClause, Integer, Text, bindparam, delete, or_, select
from sqlalchemy import cast as sql_cast
from sqlalchemy.sql.base import Executable

from runlane.definitions.schema.definition import Definition, Kind
from runlane.definitions.versions import restore
from runlane.domain.text import load_json
from runlane.domain.wire import Timestamp
from runlane.errors import UnknownDefinition
from runlane.event_loop.offload import LARGE_BYTES, offload_if
from runlane.store.sql.database import Database, Session, read
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import definition_versions, definitions
from runlane.store.sql.statement import Row, Statement

# The memory of cached definitions, counted by their stored size.
_KEPT_BYTES: Final = 32 * 1024 * 1024
_KNOWN_NAMES: Final = 500
_EXAMPLE: Final = "439a53bd9d3b5df6b6dd2b1b59fbab9b1a76766fc8c3552ab962d296ebfc4237"


@dataclass(frozen=True, slots=True)
class CurrentDefinition:
    """The current version of a definition. `origin` is sync or import, `source` the project that it was synced from."""

    id: str
    version: Annotated[str, Field(description="The SHA-256 of its content.", examples=[_EXAMPLE])]
    name: str
    description: str
    origin: Annotated[str, Field(description="sync or import.")]
    source: Annotated[
        str | None, Field(description="The project that synced it; null if it was imported.", examples=["shop"])
    ]
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    updated_at_us: Annotated[Timestamp, Field(alias="updated_at")]


@dataclass(frozen=True, slots=True)
class VersionSummary:
    """A version of a definition without its content."""

    version: str
    created_at_us: Annotated[
        Timestamp, Field(alias="created_at", description="When this version was stored, or became current again.")
    ]
    current: bool


@dataclass(frozen=True, slots=True)
class DefinitionVersion(VersionSummary):
    """A version of a definition; `body` is its content."""

    id: str
    body: Annotated[
        Mapping[str, Any],
        Field(alias="definition", description="Its content, without defaults."),
    ]


@dataclass(frozen=True, slots=True)
class VersionList:
    """The versions of a definition, newest first."""

    id: str
    versions: tuple[VersionSummary, ...]


_here = (definitions.c.tenant == bindparam("tenant"), definitions.c.removed_at.is_(None))
_one = (definitions.c.kind == bindparam("kind"), definitions.c.id == bindparam("id"))
_after = bindparam("after", type_=Text())
_LIST = Statement(
    "list_definitions",
    select(definitions)
    .where(
        *_here,
        definitions.c.kind == bindparam("kind"),
        or_(sql_cast(_after, Text).is_(None), definitions.c.id > _after),
    )
    .order_by(definitions.c.id)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read a page of a tenant's definitions of a kind.",
)
_CURRENT = Statement(
    "find_definition",
    select(definitions, definition_versions.c.body)
    .join(
        definition_versions,
        (definition_versions.c.tenant == definitions.c.tenant)
        & (definition_versions.c.kind == definitions.c.kind)
        & (definition_versions.c.id == definitions.c.id)
        & (definition_versions.c.version == definitions.c.version),
    )
    .where(*_here, *_one),
    purpose="Read the current version of a definition.",
)
_NEWEST = Statement(
    "newest_definitions",
    select(definitions.c.kind, definition_versions.c.body)
    .join(
        definition_versions,
        (definition_versions.c.tenant == definitions.c.tenant)
        & (definition_versions.c.kind == definitions.c.kind)
        & (definition_versions.c.id == definitions.c.id)
        & (definition_versions.c.version == definitions.c.version),
    )
    .where(definitions.c.removed_at.is_(None))
    .order_by(definitions.c.updated_at.desc())
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read the current versions of all definitions of a kind.",
)
_versions_of = (
    definition_versions.c.tenant == bindparam("tenant"),
    definition_versions.c.kind == bindparam("kind"),
    definition_versions.c.id == bindparam("id"),
)
_current_version = (
    select(definitions.c.version).where(*_here, *_one).correlate(definition_versions).scalar_subquery().label("current")
)
_VERSION = Statement(
    "find_definition_version",
    select(definition_versions, _current_version).where(
        *_versions_of, definition_versions.c.version == bindparam("version")
    ),
    purpose="Read one version of a definition.",
)
_VERSIONS = Statement(
    "list_definition_versions",
    select(
        definition_versions.c.version,
        definition_versions.c.created_at,
        _current_version,
    )
    .where(*_versions_of)
    .order_by(definition_versions.c.created_at.desc(), definition_versions.c.version)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read a page of the versions of a definition, newest first.",
)
_PINS = Statement(
    "find_pins",
    select(definitions.c.pins).where(*_here, *_one),
    purpose="Read the versions that a new run of a definition uses.",
)
_NAMES = Statement(
    "definition_names",
    select(definitions.c.id)
    .where(*_here, definitions.c.kind == bindparam("kind"))
    .order_by(definitions.c.id)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read the ids of definitions, for suggestions in errors.",
)

_DROP = Statement(
    "delete_definitions_of_tenant",
    delete(definitions).where(definitions.c.tenant == bindparam("tenant")),
    purpose="Delete the definitions of a deleted tenant.",
)
_DROP_VERSIONS = Statement(
    "delete_definition_versions_of_tenant",
    delete(definition_versions).where(definition_versions.c.tenant == bindparam("tenant")),
    purpose="Delete the versions of definitions of a deleted tenant.",
)


def _bodies(batch: FromClause) -> Executable:
    return select(
        definition_versions.c.kind,
        definition_versions.c.id,
        definition_versions.c.version,
        definition_versions.c.body,
    ).join(
        batch,
        (definition_versions.c.tenant == bindparam("tenant"))
        & (definition_versions.c.kind == batch.c.kind)
        & (definition_versions.c.id == batch.c.id)
        & (definition_versions.c.version == batch.c.version),
    )


_BODIES = Statement(
    "definition_bodies",
    _bodies,
    {"kind": Text(), "id": Text(), "version": Text()},
    purpose="Read pinned versions of definitions.",
)


async def list_definitions(
    database: Database, tenant: str, kind: Kind, *, after: str | None = None, limit: int = 100
) -> list[CurrentDefinition]:
    """Return the current definitions of a kind, by id; `after` is the last id of the previous page."""
    rows = await database.query(_LIST, tenant=tenant, kind=kind, after=after, limit=limit)
    return [from_row(CurrentDefinition, row) for row in rows]


async def read_newest(database: Database, limit: int) -> list[tuple[str, str]]:
    """Return kind and body of the definitions of all tenants that changed last, which a worker is likely to need."""
    return [(row["kind"], row["body"]) for row in await read(database, _NEWEST, limit=limit)]


async def find_definition(database: Database, tenant: str, kind: Kind, name: str) -> DefinitionVersion:
    """Return the current version of a definition. Raises UnknownDefinition if it does not exist or was removed."""
    rows = await database.query(_CURRENT, tenant=tenant, kind=kind, id=name)
    if not rows:
        raise await _unknown(database, tenant, kind, name)
    row = rows[0]
    return DefinitionVersion(row["version"], row["updated_at"], True, name, load_json(row["body"]))


async def find_version(database: Database, tenant: str, kind: Kind, name: str, version: str) -> DefinitionVersion:
    """Return one version of a definition, even if the definition was removed."""
    rows = await database.query(_VERSION, tenant=tenant, kind=kind, id=name, version=version)
    if not rows:
        if await database.query(_VERSIONS, tenant=tenant, kind=kind, id=name, limit=1):
            raise UnknownDefinition(kind, name, (), version)
        raise await _unknown(database, tenant, kind, name)
    row = rows[0]
    return DefinitionVersion(version, row["created_at"], row["current"] == version, name, load_json(row["body"]))


async def list_versions(database: Database, tenant: str, kind: Kind, name: str, *, limit: int = 100) -> VersionList:
    """Return all versions of a definition, newest first."""
    rows = await database.query(_VERSIONS, tenant=tenant, kind=kind, id=name, limit=limit)
    if not rows:
        raise await _unknown(database, tenant, kind, name)
    versions = (VersionSummary(row["version"], row["created_at"], row["current"] == row["version"]) for row in rows)
    return VersionList(name, tuple(versions))


async def pins(database: Database, tenant: str, name: str, kind: Kind = "orchestration") -> dict[str, str]:
    """Return the version of everything that a run of this orchestration or agent may use: "kind:id" to version."""
    rows = await database.query(_PINS, tenant=tenant, kind=kind, id=name)
    if not rows or rows[0]["pins"] is None:
        raise await _unknown(database, tenant, kind, name)
    return cast("dict[str, str]", load_json(rows[0]["pins"]))


async def load_pinned(database: Database, tenant: str, pinned: Mapping[str, str]) -> dict[str, Definition]:
    """Return the definitions of these pins, by the same keys. They are cached within a bound."""
    found: dict[str, Definition] = {}
    missing: list[tuple[str, str, str]] = []
    for key, version in pinned.items():
        kind, _, name = key.partition(":")
        known = _kept.get(kind, version)
        if known is None:
            missing.append((kind, name, version))
        else:
            found[key] = known
    if missing:
        rows = await read(database, _BODIES, missing, tenant=tenant)
        for row, definition in zip(rows, await _restored(rows), strict=True):
            found[f"{row['kind']}:{row['id']}"] = definition
    for key, version in pinned.items():
        if key not in found:
            kind, _, name = key.partition(":")
            raise UnknownDefinition(kind, name, (), version)
    return {key: found[key] for key in pinned}


async def load_all(session: Session, tenant: str, versions: Iterable[tuple[str, str, str]]) -> list[Definition]:
    """Return the definitions of these kinds, ids and versions, in this order, within a transaction."""
    members = list(versions)
    found = {(kind, version): _kept.get(kind, version) for kind, _, version in members}
    missing = [member for member in members if found[member[0], member[2]] is None]
    if missing:
        rows = await session.fetch(_BODIES, missing, tenant=tenant)
        for row, definition in zip(rows, await _restored(rows), strict=True):
            found[row["kind"], row["version"]] = definition
    aligned: list[Definition] = []
    for kind, name, version in members:
        definition = found[kind, version]
        if definition is None:
            raise UnknownDefinition(kind, name, (), version)
        aligned.append(definition)
    return aligned


async def _restored(rows: Sequence[Row]) -> list[Definition]:
    """Return the definitions of rows; large ones are parsed in a thread, because they can take a second together."""

    def restore_all() -> list[Definition]:
        return [_kept.put(row["kind"], row["version"], row["body"]) for row in rows]

    return await offload_if(sum(len(row["body"]) for row in rows) > LARGE_BYTES, restore_all)


async def drop_definitions(session: Session, tenant: str) -> None:
    """Delete every definition of a deleted tenant."""
    await session.fetch(_DROP, tenant=tenant)
    await session.fetch(_DROP_VERSIONS, tenant=tenant)


async def _unknown(database: Database, tenant: str, kind: Kind, name: str) -> UnknownDefinition:
    rows: Sequence[Row] = await database.query(_NAMES, tenant=tenant, kind=kind, limit=_KNOWN_NAMES)
    return UnknownDefinition(kind, name, [row["id"] for row in rows])


def pins_json(pinned: Mapping[str, str]) -> str:
    """Return pins as they are stored."""
    return orjson.dumps(pinned, option=orjson.OPT_SORT_KEYS).decode()


class _Kept:
    """Parsed definitions by kind and version; the least recently used are evicted. Used from several threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._found: OrderedDict[tuple[str, str], tuple[Definition, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, kind: str, version: str) -> Definition | None:
        with self._lock:
            entry = self._found.get((kind, version))
            if entry is None:
                return None
            self._found.move_to_end((kind, version))
            return entry[0]

    def put(self, kind: Kind, version: str, body: str) -> Definition:
        definition = restore(kind, body)
        with self._lock:
            if (kind, version) not in self._found:
                self._found[kind, version] = (definition, len(body))
                self._bytes += len(body)
            while self._bytes > self._most:
                _, (_, size) = self._found.popitem(last=False)
                self._bytes -= size
        return definition


_kept: Final = _Kept(_KEPT_BYTES)
