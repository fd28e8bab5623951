"""The snapshot that is stored with each checkpoint: its next nodes, its tasks, and the channels of its state.

Servers read states without loading graphs, and only the graph determines which nodes a checkpoint triggers. The results
and interrupts of the tasks are not part of it: they are writes, which are stored later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, cast

import structlog
from langchain_core.runnables import RunnableConfig
from langgraph.channels.base import BaseChannel
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata
from langgraph.pregel import Pregel
from langgraph.types import PregelTask

from runlane.domain.text import dump_json, load_json
from runlane.graphs.exports import Graph
from runlane.graphs.langgraph_internals import (
    PULL,
    PUSH,
    TASKS,
    checkpoint_null_version,
    hash_task_id,
    is_triggered,
    prepare_next_tasks,
    recast_checkpoint_ns,
)
from runlane.graphs.plain import to_json

log = structlog.get_logger(__name__)

# Separates the namespaces of nested graphs, and the name of a node from the id of its task.
_NAMESPACES, _TASK = "|", ":"


class CheckpointSnapshots:
    """Describes the checkpoints of a graph and of its subgraphs. One instance serves all runs of an unchanged graph."""

    def __init__(self, graph: Graph) -> None:
        self._described: dict[str, _Description | None] = {"": _Description(graph)}
        self._root = graph

    def describes(self, graph: Graph) -> bool:
        """Return whether these are the snapshots of this graph."""
        return self._root is graph

    def describe(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata) -> str | None:
        """Return the snapshot of a checkpoint as JSON; None for a graph that a node calls without being a subgraph."""
        ns: str = config.get("configurable", {}).get("checkpoint_ns") or ""
        described = self._find(recast_checkpoint_ns(ns) if ns else ns)
        if described is None:
            return None
        try:
            tasks = described.next_tasks(config, checkpoint, metadata)
        except Exception as error:  # noqa: BLE001 - a state without next nodes is better than a failed run
            log.warning("checkpoint_not_described", error=f"{type(error).__name__}: {error}")
            return None
        return dump_json(
            {
                "next": [task.name for task in tasks],
                "tasks": [described.task(ns, task) for task in tasks],
                "channels": described.names,
                "single": described.single,
                "defaults": described.defaults(checkpoint),
            }
        )

    def _find(self, name: str) -> _Description | None:
        if name not in self._described:
            found = next(
                (graph for _, graph in cast("Any", self._root).get_subgraphs(namespace=name, recurse=True)), None
            )
            self._described[name] = _Description(cast("Graph", found)) if isinstance(found, Pregel) else None
        return self._described[name]


class _Description:
    """The parts of a snapshot that are the same for all checkpoints of a graph."""

    def __init__(self, graph: Graph) -> None:
        channels = graph.stream_channels_asis
        self.single = isinstance(channels, str)
        self.names = [channels] if isinstance(channels, str) else list(channels)
        self._graph = graph
        self._nodes = cast("dict[str, Any]", graph.nodes)
        specs = cast("dict[str, Any]", graph.channels)
        self._specs: dict[str, Any] = {name: spec for name, spec in specs.items() if isinstance(spec, BaseChannel)}
        self._managed = {name: spec for name, spec in specs.items() if name not in self._specs}
        self._nested = frozenset(found for found, _ in cast("Any", graph).get_subgraphs())
        self._order = {name: place for place, name in enumerate(self._nodes)}

    def task(self, ns: str, task: PregelTask) -> dict[str, Any]:
        """Return a task. That of a subgraph has the namespace of the subgraph's checkpoints."""
        inner = f"{ns}{_NAMESPACES if ns else ''}{task.name}{_TASK}{task.id}" if task.name in self._nested else None
        return {
            "id": task.id,
            "name": task.name,
            "path": list(cast("tuple[Any, ...]", task.path)),
            "checkpoint_ns": inner,
        }

    def defaults(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Return the initial values of channels that were never written, such as an empty list."""
        versions = checkpoint["channel_versions"]
        channels = self._channels([name for name in self.names if name not in versions], checkpoint)
        return {name: load_json(to_json(found.get())) for name, found in channels.items() if found.is_available()}

    def next_tasks(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
    ) -> list[PregelTask]:
        """Return the tasks that follow a checkpoint."""
        nodes, triggers = self._nodes, self._graph.trigger_to_nodes
        updated = set(checkpoint.get("updated_channels") or ())
        # Only the nodes that an updated channel triggers can be next, so only their channels are restored.
        triggered = {name for channel in updated for name in triggers.get(channel, ())}
        if updated and TASKS not in checkpoint["channel_values"]:
            if not triggered:
                return []
            if checkpoint["v"] > 1 and all(isinstance(nodes[name].channels, list) for name in triggered):
                return self._pulled(config, checkpoint, metadata, triggered)
        wanted = {TASKS, *(c for name in triggered for c in _read_by(nodes[name]))} if updated else self._specs
        step = metadata.get("step", -1) + 1
        tasks: dict[str, PregelTask] = prepare_next_tasks(
            checkpoint,
            [],
            nodes,
            self._channels(wanted, checkpoint),
            self._managed,
            config,
            step,
            step + 2,
            for_execution=False,
            trigger_to_nodes=triggers,
            updated_channels=updated,
        )
        found = list(tasks.values())
        if len(found) > 1 and updated:
            # The tasks are in the order of the graph, as without a choice of nodes. Tasks of sends come first.
            place = self._order
            found.sort(key=lambda task: (task.path[0] != PUSH, 0 if task.path[0] == PUSH else place[task.name]))
        return found

    def _pulled(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, triggered: Collection[str]
    ) -> list[PregelTask]:
        """Return the tasks of the triggered nodes among these nodes, as `prepare_next_tasks` would.

        It does not read their inputs, which is most of the work: a node with a list of channels always has one.
        """
        versions, seen = checkpoint["channel_versions"], checkpoint["versions_seen"]
        none = checkpoint_null_version(checkpoint)
        parent: str = config.get("configurable", {}).get("checkpoint_ns") or ""
        step = str(metadata.get("step", -1) + 1)
        checkpoint_id = bytes.fromhex(checkpoint["id"].replace("-", ""))
        found: list[PregelTask] = []
        for name in sorted(triggered, key=self._order.__getitem__):
            node = self._nodes[name]
            channels = self._channels(node.triggers, checkpoint)
            if none is not None and is_triggered(channels, versions, seen.get(name), none, node):
                ns = f"{parent}{_NAMESPACES}{name}" if parent else name
                parts = (ns, step, name, PULL, *sorted(node.triggers))
                found.append(PregelTask(hash_task_id(checkpoint_id, *parts), name, (PULL, name)))
        return found

    def _channels(self, names: Iterable[str], checkpoint: Checkpoint) -> dict[str, Any]:
        values = checkpoint["channel_values"]
        # A channel that is rebuilt from its writes has no value here. It triggers no node, so an empty one is enough.
        return {
            name: spec.from_checkpoint(values[name]) if name in values else spec.copy()
            for name in names
            if (spec := self._specs.get(name)) is not None
        }


def _read_by(node: Any) -> Iterable[str]:
    """Return the channels that trigger a node, and the channels of its input."""
    channels = node.channels
    return (*node.triggers, *([channels] if isinstance(channels, str) else channels))
