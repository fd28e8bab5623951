"""One attempt at a run of a graph: determine where to start, execute the graph, store the state of its thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, cast

from langchain_core.runnables import RunnableConfig
from langgraph.errors import (
    EmptyInputError,
    GraphDrained,
    GraphRecursionError,
    InvalidUpdateError,
    UnknownInterruptError,
)
from langgraph.types import StateSnapshot

from runlane.domain.graph import GraphOutcome, GraphRequest, ThreadPlan, ThreadStatus
from runlane.domain.run import Status
from runlane.domain.text import dump_json, utf8_size
from runlane.errors import Fail, RunlaneError
from runlane.graphs.exports import Graph
from runlane.graphs.outbox import GraphOutbox
from runlane.graphs.plain import to_json
from runlane.graphs.recovery import StartPoint, start_point
from runlane.graphs.result import interrupts_of, with_interrupts, with_result
from runlane.graphs.run_saver import ended_state
from runlane.graphs.stream import GraphStream, HandoverControl
from runlane.store.queue.claim import Claimed
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.threads.graph_writes import ThreadResult
from runlane.worker.context import Context
from runlane.worker.execution import AttemptEnd, error_text
from runlane.worker.run_host import RunHost

# Errors that every later attempt would repeat.
PERMANENT: Final = (EmptyInputError, GraphRecursionError, InvalidUpdateError, UnknownInterruptError)
_HANDED_BACK: Final = Finish(AttemptOutcome.HANDED_BACK, Status.QUEUED)
_CLOSING_SECONDS: Final = 2.0


class GraphAttempt:
    """One attempt at a run of a graph."""

    def __init__(
        self,
        claimed: Claimed,
        thread: ThreadPlan,
        request: GraphRequest,
        graph: Graph,
        config: RunnableConfig,
        outbox: GraphOutbox,
        context: Context,
        host: RunHost,
    ) -> None:
        self._claimed = claimed
        self._thread = thread
        self._request = request
        self._graph = graph
        self._config = config
        self._outbox = outbox
        self._context = context
        self._host = host
        self._stream = GraphStream(graph, request, outbox, HandoverControl(host))

    async def run(self, on_start: Callable[[StartPoint], None]) -> AttemptEnd:
        """Execute the graph until it ends, is interrupted, or has to be handed over."""
        claimed = self._claimed
        try:
            start = await start_point(self._graph, self._config, claimed, self._request)
            on_start(start)
            return await self._execute(start)
        except GraphDrained:
            return AttemptEnd(_HANDED_BACK, await self._outbox.rest())
        except asyncio.CancelledError:
            if not self._context.cancelled:
                # The graph cancelled itself, or a library inside it did.
                await self._keep_written()
                raise
            return await self._stopped()
        except Exception as error:
            if not isinstance(error, (*PERMANENT, Fail)) and claimed.failures + 1 < claimed.max_attempts:
                await self._keep_written()
                raise
            return await self._failed(error)

    async def _execute(self, start: StartPoint) -> AttemptEnd:
        state = start.stopped
        if state is None:
            await self._stream.run(start)
            # This run has stored the newest checkpoint of the thread.
            state = ended_state(self._graph, self._config) or await self._graph.aget_state(self._config)
        return await self._finished(state)

    async def _finished(self, state: StateSnapshot) -> AttemptEnd:
        waits = bool(state.next)
        left = to_json(state.values)
        values = to_json(with_interrupts(state.values, state.interrupts)) if state.interrupts else left
        size = utf8_size(values)
        if size > self._host.max_result_bytes:
            raise Fail(
                f"The state has {size} bytes as JSON; at most {self._host.max_result_bytes} are allowed "
                "(RUNLANE_MAX_RESULT_BYTES). Store the data elsewhere and keep a reference."
            )
        result = ThreadResult(
            self._thread.key,
            ThreadStatus.INTERRUPTED.value if waits else ThreadStatus.IDLE.value,
            left,
            dump_json(interrupts_of(state)),
            GraphOutcome.INTERRUPTED.value if waits else GraphOutcome.SUCCESS.value,
            self._thread.is_temporary,
        )
        finish = Finish(AttemptOutcome.COMPLETED, Status.COMPLETED, result=values)
        return AttemptEnd(finish, with_result(await self._outbox.rest(), result))

    async def _failed(self, error: Exception) -> AttemptEnd:
        """End the run as failed. Its thread keeps the state of the last superstep; its status is set with the end."""
        finish = Finish(AttemptOutcome.FAILED, Status.FAILED, error=error_text(error))
        return AttemptEnd(finish, with_result(await self._outbox.rest(), self._left()))

    async def _keep_written(self) -> None:
        """Store what the attempt has written, for the next one."""
        # If storing fails, the next attempt repeats more of the graph, and this attempt raises its original error.
        with suppress(RunlaneError, TimeoutError):
            async with asyncio.timeout(_CLOSING_SECONDS):
                await self._outbox.drain()

    async def _stopped(self) -> AttemptEnd:
        """Return the entry to store with the end of an attempt that its worker has stopped."""
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        async with asyncio.timeout(_CLOSING_SECONDS):
            return AttemptEnd(_HANDED_BACK, with_result(await self._outbox.rest(), self._left()))

    def _left(self) -> ThreadResult | None:
        """Return the state in which an attempt without a result left its thread, if it is known.

        A thread whose graph has nodes left is interrupted, as it is after a breakpoint.
        """
        values: Any = self._stream.values
        if values is None:
            return None
        if isinstance(values, Mapping):
            table = cast("Mapping[str, Any]", values)
            values = {key: value for key, value in table.items() if key != "__interrupt__"}
        ended = ended_state(self._graph, self._config) is not None
        status = ThreadStatus.IDLE if ended else ThreadStatus.INTERRUPTED
        return ThreadResult(self._thread.key, status.value, to_json(values), "{}")
