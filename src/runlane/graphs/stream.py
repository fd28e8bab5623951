"""The stream of a graph as durable events: one event for each chunk of the requested modes, named `mode|namespace`.

`values` is always read, because its last chunk is the result of the run; it is stored only if it was requested. Chunks
of messages are stored once; a reader that needs whole messages joins them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final, cast

from langgraph.runtime import RunControl

from runlane.domain.graph import GraphRequest, StreamMode
from runlane.graphs.exports import Graph
from runlane.graphs.outbox import MAX_PENDING_BYTES, GraphOutbox
from runlane.graphs.plain import to_json
from runlane.graphs.recovery import Breakpoints, StartPoint
from runlane.worker.run_host import RunHost

# Modes that have another name in LangGraph.
_LANGGRAPH_NAMES: Final = {StreamMode.MESSAGES_TUPLE.value: StreamMode.MESSAGES.value}
_HIDDEN: Final = "langsmith:hidden"
_IDS: Final = StreamMode.CHECKPOINT_IDS.value
# The keys that identify a checkpoint for clients.
_ADDRESS: Final = ("checkpoint_id", "thread_id", "checkpoint_ns")

# Namespace, mode and data.
_Chunk = tuple[tuple[str, ...], str, Any]


class HandoverControl(RunControl):
    """Stops a graph between two supersteps when its worker hands its runs over."""

    __slots__ = ("_host",)

    def __init__(self, host: RunHost) -> None:
        super().__init__()
        self._host = host

    @property
    def drain_requested(self) -> bool:
        """Whether the graph should stop before its next superstep."""
        return self._host.handing_over


class GraphStream:
    """Executes a graph and emits its chunks. `values` is the newest state of the root graph."""

    def __init__(self, graph: Graph, request: GraphRequest, outbox: GraphOutbox, control: RunControl) -> None:
        self._graph = graph
        self._request = request
        self._outbox = outbox
        self._control = control
        self._shown = {_LANGGRAPH_NAMES.get(mode, mode) for mode in request.stream_mode if mode != _IDS}
        self._shows_ids = _IDS in request.stream_mode
        self.values: Any = None

    async def run(self, start: StartPoint) -> None:
        """Execute the graph to its end or to an interrupt."""
        chunks = self._events(start) if StreamMode.EVENTS.value in self._shown else self._chunks(start)
        async with aclosing(chunks):
            async for namespace, mode, data in chunks:
                if mode == StreamMode.VALUES.value and not namespace:
                    self.values = data
                if self._shows_ids and mode == StreamMode.CHECKPOINTS.value:
                    self._outbox.add_event("|".join((_IDS, *namespace)), to_json(_checkpoint_ids(data)))
                if mode in self._shown:
                    self._outbox.add_event("|".join((mode, *namespace)), to_json(_shaped(mode, data)))
                if self._outbox.pending_bytes > MAX_PENDING_BYTES:
                    await self._outbox.drain()

    async def _chunks(self, start: StartPoint) -> AsyncGenerator[_Chunk]:
        async with aclosing(cast("AsyncGenerator[Any]", self._graph.astream(**self._arguments(start)))) as chunks:
            async for chunk in chunks:
                yield self._chunk(chunk)

    async def _events(self, start: StartPoint) -> AsyncGenerator[_Chunk]:
        """Yield the events of every runnable, and the chunks of the graph in place of the events that carry them."""
        events = cast("Any", self._graph).astream_events(**self._arguments(start), version="v2")
        async with aclosing(cast("AsyncGenerator[Mapping[str, Any]]", events)) as stream:
            async for event in stream:
                if _HIDDEN in (event.get("tags") or ()):
                    continue
                if event["event"] == "on_chain_stream" and not event.get("parent_ids"):
                    yield self._chunk(event["data"]["chunk"])
                else:
                    yield (), StreamMode.EVENTS.value, event

    def _chunk(self, chunk: Any) -> _Chunk:
        return chunk if self._request.stream_subgraphs else ((), *chunk)

    def _arguments(self, start: StartPoint) -> dict[str, Any]:
        request = self._request
        modes = {*self._shown, StreamMode.VALUES.value} - {StreamMode.EVENTS.value}
        if self._shows_ids:
            modes.add(StreamMode.CHECKPOINTS.value)
        breakpoints = Breakpoints.of(request, self._graph)
        return {
            "input": start.input,
            "config": start.config,
            "context": request.context or None,
            "stream_mode": sorted(modes),
            "subgraphs": request.stream_subgraphs,
            "interrupt_before": breakpoints.before,
            "interrupt_after": breakpoints.after,
            "durability": request.durability,
            "control": self._control,
        }


def _shaped(mode: str, data: Any) -> Any:
    """Return the data of a chunk as clients expect it."""
    match mode:
        case StreamMode.CHECKPOINTS.value:
            return _checkpoint(data)
        case StreamMode.DEBUG.value if data["type"] == "checkpoint":
            return {**data, "payload": _checkpoint(data["payload"])}
        case _:
            return data


def _checkpoint(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a checkpoint with its address, and without objects of LangGraph in its config."""
    config, parent = _public(payload.get("config")), _public(payload.get("parent_config"))
    return {
        **payload,
        "config": config,
        "parent_config": parent,
        "tasks": [_task(task) for task in payload.get("tasks", ())],
        "checkpoint": _address(config),
        "parent_checkpoint": _address(parent),
    }


def _checkpoint_ids(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the address of a checkpoint, without its state."""
    parent = _address(_public(payload.get("parent_config")))
    metadata = cast("Mapping[str, Any]", payload.get("metadata") or {})
    shown = {
        "id": (_address(_public(payload.get("config"))) or {}).get("checkpoint_id"),
        "parent_id": None if parent is None else parent["checkpoint_id"],
        "step": metadata.get("step"),
        "source": metadata.get("source"),
    }
    return {name: value for name, value in shown.items() if value is not None}


def _task(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task; in place of the state of a subgraph, it has the address of the subgraph's checkpoint."""
    state = task.get("state")
    if not isinstance(state, Mapping) or "configurable" not in state:
        return dict(task)
    shown = {key: value for key, value in task.items() if key != "state"}
    return {**shown, "checkpoint": cast("Mapping[str, Any]", state)["configurable"]}


def _public(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if config is None:
        return None
    configurable = cast("Mapping[str, Any]", config.get("configurable", {}))
    return {"configurable": {key: value for key, value in configurable.items() if not key.startswith("__")}}


def _address(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if config is None else {key: config["configurable"].get(key) for key in _ADDRESS}
