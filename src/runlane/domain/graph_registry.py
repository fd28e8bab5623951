"""GraphRegistry: LangGraph graphs by id, as an app registers them or a configuration file names them.

Nothing here imports LangGraph: a graph is an object or the location of one until a worker loads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from runlane.domain.task_registry import TaskRegistry
from runlane.domain.text import check_text
from runlane.errors import DuplicateGraph

MAX_GRAPH_ID: Final = 200


@dataclass(frozen=True, slots=True)
class GraphSource:
    """A graph, or its location as `file.py:name` (relative to `folder`) or `package.module:name`."""

    id: str
    export: Any = None
    location: str | None = None
    folder: Path | None = None
    description: str | None = None

    @property
    def origin(self) -> str:
        """The location of the graph, for messages."""
        return self.location or f"app.graph({self.id!r})"


@dataclass(frozen=True, slots=True)
class StoreIndex:
    """How items of the store are searched by meaning.

    `embed` is `provider:model`, or the location of a function as `file.py:name` (relative to `folder`). `fields` are
    the paths of the indexed fields of an item.
    """

    embed: str
    dims: int
    fields: tuple[str, ...] = ("$",)
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class StoreTtl:
    """How long items of the store are kept. `minutes` applies to items without a time of their own."""

    minutes: float | None = None
    refresh_on_read: bool = True


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of the store of graphs."""

    index: StoreIndex | None = None
    ttl: StoreTtl | None = None


@dataclass(frozen=True, slots=True)
class AuthSource:
    """The location of an auth module as `file.py:name` or `package.module:name`.

    With `studio`, requests of LangGraph Studio are authenticated by a key of Runlane, as a Studio user.
    """

    location: str
    folder: Path
    studio: bool = True


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Routes of the project's own, and the pages that may call the server.

    `app` is the location of an ASGI application; with `authenticates`, its routes require the same authentication as
    the agent server.
    """

    app: str | None = None
    folder: Path | None = None
    authenticates: bool = False
    origins: tuple[str, ...] = ()
    exposed_headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WebhookUrlRules:
    """The rules for the webhook URLs of runs."""

    require_https: bool = False
    allowed_domains: tuple[str, ...] = ()
    allowed_ports: tuple[int, ...] = ()
    max_url_length: int | None = None


@dataclass(frozen=True, slots=True)
class DefaultTtl:
    """The time to live of threads that are created without one, and whether it ends them or their old checkpoints."""

    minutes: int
    strategy: str = "delete"


@dataclass(frozen=True, slots=True)
class AgentServerOptions:
    """The options that a configuration file sets for servers."""

    auth: AuthSource | None = None
    http: HttpOptions = field(default_factory=HttpOptions)
    webhook_urls: WebhookUrlRules = field(default_factory=WebhookUrlRules)
    thread_ttl: DefaultTtl | None = None


class GraphRegistry(TaskRegistry):
    """Tasks and graphs; a part of App. `graph_store` are the options of the store of graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.graph_store = StoreOptions()
        self.agent_server = AgentServerOptions()
        self._graphs: dict[str, GraphSource] = {}

    @property
    def graphs(self) -> Mapping[str, GraphSource]:
        """Return the registered graphs by id."""
        return self._graphs

    def graph(self, id: str, graph: Any, *, description: str | None = None) -> None:  # noqa: A002 - the word of the API
        """Host a LangGraph graph under this id: a compiled graph, a StateGraph, or a function that returns one.

        A function may take the config of the run, its runtime, or both, and may be async or a context manager; it is
        called for each run. Workers of this app execute the runs of the graph.
        """
        self.add_graph(GraphSource(id, graph, description=description))

    def include(self, other: TaskRegistry) -> None:
        """Add another app's tasks and graphs to this one."""
        super().include(other)
        if isinstance(other, GraphRegistry):
            for source in other.graphs.values():
                self.add_graph(source)

    def add_graph(self, source: GraphSource) -> None:
        """Add a graph. DuplicateGraph if another one has its id."""
        check_text(source.id, "The id of a graph", MAX_GRAPH_ID)
        known = self._graphs.setdefault(source.id, source)
        if known is not source:
            raise DuplicateGraph(source.id, known.origin, source.origin)
