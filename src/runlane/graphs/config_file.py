"""Read `langgraph.json` and `aegra.json`, the configuration files of projects with LangGraph graphs.

A key that has no effect here is reported with its name and its replacement, so that no setting of a migrated project is
ignored silently. Reading the file changes nothing; `activate` makes its folders importable and sets its variables.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final, cast

import orjson

from runlane.domain.graph_registry import AgentServerOptions, GraphSource, StoreIndex, StoreOptions, StoreTtl
from runlane.errors import ConfigurationError
from runlane.graphs.server_keys import SERVER_KEYS, read_server_keys, unsupported_server_keys

# The names of the file, in the order of precedence.

# Keys that describe how an image is built or how a platform deploys it.
_BUILD_KEYS: Final = frozenset(
    {
        "$schema",
        "_INTERNAL_docker_tag",
        "api_version",
        "base_image",
        "dockerfile_lines",
        "image_distro",
        "internal_docker_tag",
        "keep_pkg_tools",
        "node_version",
        "pip_config_file",
        "pip_installer",
        "python_version",
        "source",
        "name",
    }
)
# Keys of a server that have no effect here, with what to do instead.
_UNSUPPORTED: Final[Mapping[str, str]] = {
    "encryption": "Values are stored as they are; encrypt the database's storage.",
    "priority": "Assign graphs to lanes: runlane lanes set LANE --kinds graph:ID. Tenants share a lane fairly.",
    "swr": "It has no replacement.",
    "ui": "Serve the components with the frontend.",
    "ui_config": "Serve the components with the frontend.",
    "checkpointer.backend": "Checkpoints are stored in Runlane's database.",
    "checkpointer.path": "Checkpoints are stored in Runlane's database.",
    "checkpointer.serde": "Checkpoints are stored with LangGraph's own serializer.",
    "store.path": "Items are stored in Runlane's database.",
    "store.scopes": "Items are scoped by tenant.",
}
_LOCATION: Final = re.compile(r"^(?P<module>.+):(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)$", re.ASCII)
_REQUIREMENT: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class UnsupportedKey:
    """A key of the file that has no effect, and what to do instead."""

    key: str
    cure: str


@dataclass(frozen=True, slots=True)
class GraphsFile:
    """The content of a configuration file. Paths are absolute."""

    path: Path
    graphs: tuple[GraphSource, ...]
    folders: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    store: StoreOptions = field(default_factory=StoreOptions)
    unsupported: tuple[UnsupportedKey, ...] = ()
    missing_packages: tuple[str, ...] = ()
    server: AgentServerOptions = field(default_factory=AgentServerOptions)

    def activate(self) -> None:
        """Make its folders importable and set its environment variables. Variables that are already set are kept."""
        for name, value in self.environment.items():
            os.environ.setdefault(name, value)
        for folder in reversed((*self.folders, self.path.parent)):
            if str(folder) not in sys.path:
                sys.path.insert(0, str(folder))


def read_graphs_file(path: Path) -> GraphsFile:
    """Read a configuration file. ConfigurationError with the key that is not valid."""
    path = path.resolve()
    try:
        content: Any = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigurationError(f"The file {path} does not exist. Check --graphs.") from None
    except OSError as error:
        raise ConfigurationError(f"The file {path} cannot be read: {error.strerror or error}.") from None
    except orjson.JSONDecodeError as error:
        raise ConfigurationError(f"The file {path} is not valid JSON: {error}. Correct it.") from None
    parser = _Parser(path)
    table = parser.table(content, "The file")
    folders, missing = parser.dependencies(table.get("dependencies"))
    store = parser.table(table.get("store"), '"store"')
    return GraphsFile(
        path,
        tuple(parser.graphs(table.get("graphs"))),
        folders,
        parser.environment(table.get("env")),
        StoreOptions(parser.store_index(store.get("index")), parser.store_ttl(store.get("ttl"))),
        tuple(_unsupported(table)),
        missing,
        _server_options(path, table),
    )


def _server_options(path: Path, table: Mapping[str, Any]) -> AgentServerOptions:
    try:
        return read_server_keys(table, path.parent)
    except ValueError as error:
        raise ConfigurationError(f"{path.name}: {error}") from None


class _Parser:
    """Parses the values of a file. Messages name the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = path.parent

    def table(self, value: Any, what: str) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._error(f"{what} must be an object, not {_kind(value)}.")
        return cast("dict[str, Any]", value)

    def graphs(self, value: Any) -> Iterator[GraphSource]:
        graphs = self.table(value, '"graphs"')
        if not graphs:
            raise self._error('"graphs" is empty. Name at least one: {"agent": "./agent.py:graph"}.')
        for graph_id, entry in graphs.items():
            table: dict[str, Any] = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {"path": entry}
            location, description = table.get("path"), table.get("description")
            if not isinstance(location, str) or _LOCATION.match(location) is None:
                raise self._error(
                    f'The path {_shown(location)} of the graph "{graph_id}" is not valid. Form: ./file.py:name or '
                    "package.module:name"
                )
            if description is not None and not isinstance(description, str):
                raise self._error(f'The description of the graph "{graph_id}" must be a string.')
            yield GraphSource(graph_id, None, location, self._folder, description)

    def dependencies(self, value: Any) -> tuple[tuple[Path, ...], tuple[str, ...]]:
        """Return the folders to import from, and the packages that are not installed."""
        folders: list[Path] = []
        missing: list[str] = []
        for entry in self._strings(value, "dependencies"):
            folder = (self._folder / entry).resolve()
            if folder.is_dir():
                source = folder / "src"
                folders += [folder, *([source] if source.is_dir() and (folder / "pyproject.toml").is_file() else [])]
            elif entry.startswith("."):
                raise self._error(f'The folder "{entry}" of "dependencies" does not exist.')
            elif not _is_installed(entry):
                missing.append(entry)
        return tuple(dict.fromkeys(folders)), tuple(missing)

    def environment(self, value: Any) -> dict[str, str]:
        if isinstance(value, str):
            file = self._folder / value
            if not file.is_file():
                raise self._error(f'The file "{value}" of "env" does not exist. Create it, or remove the key.')
            from dotenv import dotenv_values

            return {name: text for name, text in dotenv_values(file).items() if text is not None}
        table = self.table(value, '"env"')
        for name, text in table.items():
            if not isinstance(text, (str, int, float)):
                raise self._error(f'The variable "{name}" of "env" must be a string.')
        return {name: str(text) for name, text in table.items()}

    def store_index(self, value: Any) -> StoreIndex | None:
        index = self.table(value, '"store.index"')
        if not index:
            return None
        embed, dims = index.get("embed"), index.get("dims")
        if not isinstance(embed, str) or not isinstance(dims, int) or dims < 1:
            raise self._error('"store.index" needs "embed" (a string) and "dims" (a number above 0).')
        fields = tuple(self._strings(index.get("fields"), "store.index.fields"))
        return StoreIndex(embed, dims, fields or ("$",), self._folder)

    def store_ttl(self, value: Any) -> StoreTtl | None:
        ttl = self.table(value, '"store.ttl"')
        if not ttl:
            return None
        minutes = ttl.get("default_ttl")
        if minutes is not None and (not isinstance(minutes, (int, float)) or minutes <= 0):
            raise self._error('"store.ttl.default_ttl" must be a number of minutes above 0.')
        return StoreTtl(minutes, bool(ttl.get("refresh_on_read", True)))

    def _strings(self, value: Any, key: str) -> list[str]:
        if value is None:
            return []
        entries = cast("list[Any]", value) if isinstance(value, list) else [None]
        if not all(isinstance(entry, str) and entry for entry in entries):
            raise self._error(f'"{key}" must be a list of strings.')
        return cast("list[str]", entries)

    def _error(self, problem: str) -> ConfigurationError:
        return ConfigurationError(f"{self._path.name}: {problem}")


def _unsupported(table: Mapping[str, Any]) -> Iterator[UnsupportedKey]:
    """Yield the keys without effect: those of the file, and those inside of `checkpointer` and `store`."""
    for key, value in table.items():
        if key in ("graphs", "dependencies", "env") or key in _BUILD_KEYS:
            continue
        if key in ("checkpointer", "store") and isinstance(value, dict):
            for name in cast("dict[str, Any]", value):
                if (inner := f"{key}.{name}") not in ("checkpointer.ttl", "store.index", "store.ttl"):
                    yield UnsupportedKey(inner, _UNSUPPORTED.get(inner, "It has no effect; remove it."))
            continue
        if key in SERVER_KEYS:
            continue
        yield UnsupportedKey(key, _UNSUPPORTED.get(key, "It has no effect; remove it."))
    for inner, cure in unsupported_server_keys(table):
        yield UnsupportedKey(inner, cure)


def _is_installed(requirement: str) -> bool:
    name = _REQUIREMENT.match(requirement)
    if name is None:
        return False
    try:
        metadata.version(name.group())
    except metadata.PackageNotFoundError:
        return False
    return True


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else _kind(value)


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
