"""Describe a graph for servers, which do not load it: JSON schemas, drawings, and the schemas of its subgraphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from langgraph.pregel import Pregel
from langgraph.store.memory import InMemoryStore
from pydantic import TypeAdapter, create_model

from runlane.domain.assistant import HostedGraph
from runlane.graphs.exports import READ, Export, Graph, GraphUse

# Subgraphs of subgraphs that are drawn; a graph of graphs that is deeper is drawn to this depth.
_MAX_DEPTH: Final = 10


async def describe_graph(graph_id: str, export: Export, description: str | None) -> HostedGraph:
    """Return the description of a graph."""
    async with export.open(GraphUse(READ, {"configurable": {}}, InMemoryStore())) as graph:
        inner = cast("Iterator[tuple[str, Any]]", graph.get_subgraphs(recurse=True))
        # A remote graph is not a Pregel, and its server describes it.
        subgraphs = {name: _schemas(name, found) for name, found in inner if _is_local(found)}
        return HostedGraph(graph_id, description, _schemas(graph_id, graph), _drawing(graph), subgraphs)


def _is_local(graph: Any) -> bool:
    return isinstance(graph, Pregel)


def _schemas(name: str, graph: Graph) -> dict[str, Any]:
    """Return the schemas of a graph; None where a type has no JSON schema."""
    return {
        "input_schema": _attempt(graph.get_input_jsonschema),
        "output_schema": _attempt(graph.get_output_jsonschema),
        "state_schema": _attempt(lambda: _state_schema(name, graph)),
        "config_schema": _attempt(lambda: _config_schema(graph)),
        "context_schema": _attempt(graph.get_context_jsonschema),
    }


def _attempt(make: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    try:
        return make()
    except Exception:  # noqa: BLE001 - types of users without a schema raise errors of many kinds
        return None


def _state_schema(name: str, graph: Graph) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for channel in graph.stream_channels_list:
        kind: Any = getattr(cast("Any", graph.channels[channel]), "UpdateType", Any)
        fields[channel] = (kind if _has_schema(kind) else Any, None)
    return create_model(f"{name}_state", **fields).model_json_schema()


def _has_schema(kind: Any) -> bool:
    try:
        TypeAdapter[Any](kind).json_schema()
    except Exception:  # noqa: BLE001 - as above
        return False
    return True


def _config_schema(graph: Graph) -> dict[str, Any]:
    """Return the schema of the values that a run may configure, without the keys that every graph has."""
    with warnings.catch_warnings():
        # Deprecated in LangGraph, but a field of the schemas that clients read.
        warnings.simplefilter("ignore", DeprecationWarning)
        schema = cast("Any", graph).get_config_jsonschema()
    return cast("dict[str, Any]", schema.get("$defs", {}).get("Configurable", {}))


def _drawing(graph: Graph) -> dict[str, Any]:
    """Return nodes and edges by depth, up to the depth that shows every subgraph."""
    drawings = {"0": _draw(graph, False)}
    for depth in range(1, _MAX_DEPTH + 1):
        drawing = _draw(graph, depth)
        if drawing == drawings[str(depth - 1)]:
            break
        drawings[str(depth)] = drawing
    return drawings


def _draw(graph: Graph, xray: int | bool) -> dict[str, Any]:
    drawing = cast("dict[str, Any]", graph.get_graph(xray=xray).to_json())
    for node in drawing.get("nodes", []):
        # The class of a node is an implementation detail of LangGraph.
        if isinstance(data := node.get("data"), dict):
            node["data"] = {"name": cast("dict[str, Any]", data).get("name")}
    return drawing
