"""The graphs that a worker serves: loaded at its start and on reload, each with the reason if it could not be loaded.

One graph that does not load does not affect the others. A worker claims only runs of graphs that it has loaded, so
during a deployment the runs of a graph that is broken in the new version are executed by the workers of the old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import structlog

from runlane.domain.assistant import HostedGraph
from runlane.domain.graph_registry import GraphSource
from runlane.errors import GraphNotLoaded
from runlane.graphs.description import describe_graph
from runlane.graphs.exports import Export, export_of
from runlane.graphs.loader import load_export

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedGraphs:
    """The graphs by id, and the descriptions of all of them, which include those that did not load."""

    exports: Mapping[str, Export]
    descriptions: tuple[HostedGraph, ...]

    @property
    def errors(self) -> dict[str, str]:
        """The reasons why graphs did not load, by id."""
        return {graph.id: graph.error for graph in self.descriptions if graph.error is not None}


async def load_graphs(sources: Collection[GraphSource]) -> LoadedGraphs:
    """Load graphs, and log those that do not load."""
    exports: dict[str, Export] = {}
    descriptions: list[HostedGraph] = []
    for source in sources:
        try:
            # In a thread, because imports of users may take long and the worker renews its lease meanwhile.
            export = await asyncio.to_thread(_export, source)
            description = await describe_graph(source.id, export, source.description)
        except GraphNotLoaded as error:
            description = HostedGraph(source.id, source.description, error=str(error))
        except Exception as error:  # noqa: BLE001 - a factory of a user raised it
            message = f'The factory of the graph "{source.id}" failed: {type(error).__name__}: {error}'
            description = HostedGraph(source.id, source.description, error=message)
        else:
            exports[source.id] = export
        descriptions.append(description)
        if description.error is not None:
            log.error("graph_not_loaded", graph=source.id, origin=source.origin, problem=description.error)
    return LoadedGraphs(exports, tuple(descriptions))


def _export(source: GraphSource) -> Export:
    return export_of(source.id, load_export(source))
