"""Definitions that a command works with: in the folder of the project, in the database, or on a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from runlane.definitions.loader import parse_directory
from runlane.definitions.versions import restore
from runlane.domain.text import dump_json
from runlane.errors import InvalidDefinitions, UnknownDefinition
from runlane.settings import DEFINITIONS_FOLDER, load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runlane.definitions.schema.definition import Kind, McpServer, Orchestration
    from runlane.store.sql.database import Database

D = TypeVar("D", "Orchestration", "McpServer")


def definitions_folder(given: Path | None) -> Path:
    """Return the folder with definitions: the given one, that of the settings, or the default."""
    return given or load_settings().definitions_dir or DEFINITIONS_FOLDER


def find_in_folder(folder: Path, kind: Kind, model: type[D], name: str) -> D:
    """Return a definition of a folder. Errors in other definitions are ignored."""
    loaded = parse_directory(folder)
    known = {item.id: item for item in (parsed.definition for parsed in loaded.definitions) if isinstance(item, model)}
    if name in known:
        return known[name]
    errors = [problem for problem in loaded.errors if problem.location.kind == kind and problem.location.id == name]
    if errors:
        raise InvalidDefinitions([(str(problem.location), problem.message) for problem in errors])
    raise UnknownDefinition(kind, name, known)


async def find_in_database(database: Database, tenant: str, kind: Kind, model: type[D], name: str) -> D:
    """Return the newest version of a stored definition."""
    from runlane.store.definitions import find_definition

    found = await find_definition(database, tenant, kind, name)
    return restore_definition(kind, model, found.body)


def restore_definition(kind: Kind, model: type[D], body: Mapping[str, Any]) -> D:
    """Parse a definition that was valid when it was stored."""
    definition = restore(kind, dump_json(dict(body)))
    assert isinstance(definition, model)  # noqa: S101 - the kind determines the model
    return definition
