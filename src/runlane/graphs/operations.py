"""Operations on a thread that need its graph and execute no node: state updates, and the supersteps of a new thread.

Each superstep is stored in one transaction, with its number. An attempt that takes over continues after the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.errors import InvalidUpdateError
from langgraph.types import StateUpdate

from runlane.domain.graph import GraphRequest, Operation, ThreadPlan, ThreadStatus
from runlane.domain.run import Status
from runlane.domain.text import dump_json, load_json
from runlane.graphs.exports import Graph
from runlane.graphs.outbox import GraphOutbox
from runlane.graphs.plain import to_json
from runlane.graphs.result import interrupts_of, with_result
from runlane.graphs.run_config import at_checkpoint, command_of
from runlane.store.queue.claim import Claimed
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.threads.graph_writes import GraphWrites, ThreadResult
from runlane.worker.execution import AttemptEnd, error_text


class WriteBuffer:
    """Keeps the writes of one superstep until all of them are stored together."""

    def __init__(self) -> None:
        self._writes = GraphWrites()

    async def write(self, written: GraphWrites) -> None:
        """Keep writes of the graph."""
        self._writes = self._writes.merged(written)

    def take(self) -> GraphWrites:
        """Return the writes since the last call."""
        writes, self._writes = self._writes, GraphWrites()
        return writes


class GraphOperation:
    """One attempt at an operation. The graph writes to `buffer`."""

    def __init__(
        self,
        claimed: Claimed,
        thread: ThreadPlan,
        request: GraphRequest,
        graph: Graph,
        config: RunnableConfig,
        outbox: GraphOutbox,
        buffer: WriteBuffer,
    ) -> None:
        self._claimed = claimed
        self._thread = thread
        self._request = request
        self._graph = graph
        self._config = config
        self._outbox = outbox
        self._buffer = buffer

    async def run(self) -> AttemptEnd:
        """Apply the updates that are not stored yet."""
        try:
            config = await self._apply()
        except (InvalidUpdateError, ValueError, TypeError, KeyError) as error:
            finish = Finish(AttemptOutcome.FAILED, Status.FAILED, error=error_text(error))
            return AttemptEnd(finish, await self._outbox.rest())
        state = await self._graph.aget_state(self._config)
        result = ThreadResult(
            self._thread.key,
            ThreadStatus.INTERRUPTED.value if state.next else ThreadStatus.IDLE.value,
            to_json(state.values),
            dump_json(interrupts_of(state)),
        )
        finish = Finish(AttemptOutcome.COMPLETED, Status.COMPLETED, result=dump_json(config))
        return AttemptEnd(finish, with_result(await self._outbox.rest(), result))

    async def _apply(self) -> dict[str, Any]:
        """Return the address of the last checkpoint."""
        done: dict[str, Any] = {"steps": 0, "config": None}
        if self._claimed.saved is not None:
            done = load_json(self._claimed.saved)
        for number, updates in enumerate(self._supersteps()):
            if number < done["steps"]:
                continue
            known = cast("Mapping[str, Any] | None", done["config"])
            config = at_checkpoint(self._config, known["configurable"] if known else self._request.checkpoint)
            address = _public(await self._graph.abulk_update_state(config, [updates]))
            done = {"steps": number + 1, "config": address}
            await self._outbox.write(self._buffer.take(), saved=dump_json(done))
        return cast("dict[str, Any]", done["config"])

    def _supersteps(self) -> Sequence[Sequence[StateUpdate]]:
        if self._thread.operation is Operation.UPDATE_STATE:
            return [[StateUpdate(self._request.values, self._request.as_node)]]
        return [[_update(update) for update in step["updates"]] for step in self._request.supersteps or ()]


def _update(given: Mapping[str, Any]) -> StateUpdate:
    command = given.get("command")
    values: Any = given.get("values") if command is None else command_of(command)
    return StateUpdate(values, given.get("as_node"))


def _public(config: RunnableConfig) -> dict[str, Any]:
    """Return the address of a checkpoint without objects of LangGraph."""
    names = ("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map")
    configurable = config.get("configurable", {})
    return {"configurable": {name: configurable[name] for name in names if name in configurable}}
