"""The snapshot that is stored with each checkpoint: its next nodes, its tasks, and the channels of its state.

Servers read states without loading graphs, and only the graph knows which nodes a checkpoint triggers. The results and
interrupts of the tasks are not part of it: they are writes, which are stored later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import structlog
from langchain_core.runnables import RunnableConfig
from langgraph._internal._config import recast_checkpoint_ns
from langgraph._internal._constants import PUSH, TASKS
from langgraph.channels.base import BaseChannel
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata
from langgraph.pregel import Pregel, _algo
from langgraph.types import PregelTask

from runlane.domain.text import dump_json, load_json
from runlane.graphs.exports import Graph
from runlane.graphs.plain import to_json

log = structlog.get_logger(__name__)

# Separates the namespaces of nested graphs, and the name of a node from the id of its task.
_NAMESPACES, _TASK = "|", ":"


class CheckpointSnapshots:
    """Describes the checkpoints of a graph and of its subgraphs."""

    def __init__(self, graph: Graph) -> None:
        self._graphs: dict[str, Graph | None] = {"": graph}
        self._nested: dict[str, frozenset[str]] = {}
        self._root = graph

    def describe(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata) -> str | None:
        """Return the snapshot of a checkpoint as JSON; None for a graph that is called by code and not a subgraph."""
        ns: str = config.get("configurable", {}).get("checkpoint_ns") or ""
        name = recast_checkpoint_ns(ns)
        graph = self._find(name)
        if graph is None:
            return None
        try:
            tasks = _next_tasks(graph, config, checkpoint, metadata)
        except Exception as error:  # noqa: BLE001 - a state without next nodes is better than a failed run
            log.warning("checkpoint_not_described", error=f"{type(error).__name__}: {error}")
            return None
        channels = graph.stream_channels_asis
        single = isinstance(channels, str)
        names = [channels] if single else list(channels)
        return dump_json(
            {
                "next": [task.name for task in tasks],
                "tasks": [self._task(name, graph, ns, task) for task in tasks],
                "channels": names,
                "single": single,
                "defaults": _defaults(graph, names, checkpoint),
            }
        )

    def _task(self, name: str, graph: Graph, ns: str, task: PregelTask) -> dict[str, Any]:
        """Return a task. That of a subgraph has the namespace of the subgraph's checkpoints."""
        nested = self._nested.get(name)
        if nested is None:
            nested = self._nested[name] = frozenset(found for found, _ in cast("Any", graph).get_subgraphs())
        inner = f"{ns}{_NAMESPACES if ns else ''}{task.name}{_TASK}{task.id}" if task.name in nested else None
        return {
            "id": task.id,
            "name": task.name,
            "path": list(cast("tuple[Any, ...]", task.path)),
            "checkpoint_ns": inner,
        }

    def _find(self, name: str) -> Graph | None:
        if name not in self._graphs:
            found = next(
                (graph for _, graph in cast("Any", self._root).get_subgraphs(namespace=name, recurse=True)), None
            )
            self._graphs[name] = cast("Graph", found) if isinstance(found, Pregel) else None
        return self._graphs[name]


def _channels(graph: Graph, names: Iterable[str], checkpoint: Checkpoint) -> dict[str, Any]:
    values = checkpoint["channel_values"]
    specs = cast("dict[str, Any]", graph.channels)
    # A channel that is rebuilt from its writes has no value here. It triggers no node, so an empty one is enough.
    return {
        name: cast("Any", spec).from_checkpoint(values[name]) if name in values else cast("Any", spec).copy()
        for name in names
        if isinstance(spec := specs.get(name), BaseChannel)
    }


def _defaults(graph: Graph, names: list[str], checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the values of channels that were never written and have one nevertheless, such as an empty list."""
    unwritten = [name for name in names if name not in checkpoint["channel_versions"]]
    channels = _channels(graph, unwritten, checkpoint)
    return {name: load_json(to_json(found.get())) for name, found in channels.items() if found.is_available()}


def _next_tasks(
    graph: Graph, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
) -> list[PregelTask]:
    nodes = cast("dict[str, Any]", graph.nodes)
    specs = cast("dict[str, Any]", graph.channels)
    updated = set(checkpoint.get("updated_channels") or ())
    # Only the nodes that an updated channel triggers can be next, so only their channels are restored.
    triggered = {name for channel in updated for name in graph.trigger_to_nodes.get(channel, ())}
    wanted = {TASKS, *(channel for name in triggered for channel in _read_by(nodes[name]))} if updated else specs
    managed = {name: spec for name, spec in specs.items() if not isinstance(spec, BaseChannel)}
    step = metadata.get("step", -1) + 1
    prepare = cast("Any", _algo).prepare_next_tasks
    tasks: dict[str, PregelTask] = prepare(
        checkpoint,
        [],
        nodes,
        _channels(graph, wanted, checkpoint),
        managed,
        config,
        step,
        step + 2,
        for_execution=False,
        trigger_to_nodes=graph.trigger_to_nodes,
        updated_channels=updated,
    )
    found = list(tasks.values())
    if len(found) > 1 and updated:
        # In the order of the graph, as without a choice of nodes. Those of sends come first.
        order = {name: place for place, name in enumerate(nodes)}
        found.sort(key=lambda task: (task.path[0] != PUSH, 0 if task.path[0] == PUSH else order[task.name]))
    return found


def _read_by(node: Any) -> Iterable[str]:
    """Return the channels that trigger a node, and those of its input."""
    channels = node.channels
    return (*node.triggers, *([channels] if isinstance(channels, str) else channels))
