"""Operations that need a graph: a worker performs each as a run in the order of the thread, and the server waits.

Clients do not see such a run among the runs of the thread. If no worker has performed an operation in time, it is
cancelled, so that it does not change the thread after its request has failed.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import Request

from runlane.api.agent_server.deletion import wait_ended
from runlane.api.agent_server.starting import accept_starts
from runlane.api.services import Services, parts_of
from runlane.domain.access import Principal
from runlane.domain.events import Notice
from runlane.domain.graph import GraphRequest, Operation
from runlane.domain.run import Status
from runlane.domain.thread import Thread
from runlane.errors import Conflict, InvalidRequest, Unavailable, WrongState
from runlane.store.threads.thread_runs import RunResult, read_result
from runlane.submit.graphs import GraphRunRequest

_OPERATION_SECONDS: Final = 60.0


async def perform(
    request: Request, principal: Principal, thread: Thread, operation: Operation, given: GraphRequest
) -> dict[str, Any]:
    """Perform an operation on a thread and return the config of the new checkpoint."""
    parts = parts_of(request)
    if thread.native is not None:
        raise InvalidRequest("Only runs change the state of an agent or orchestration. Start a run instead.")
    wanted = GraphRunRequest(
        assistant_id=_assistant_of(thread), request=given, thread_id=thread.id, operation=operation
    )
    run_id = (await accept_starts(request, principal, [wanted]))[0].accepted.run_id
    found = await _result(parts, principal, run_id)
    if found.status is Status.COMPLETED:
        # Readers of the thread look for the new state.
        parts.connection.bus.publish([Notice(thread.key, 1)])
        return found.result["configurable"]
    if found.error is not None:
        raise InvalidRequest(f"The graph refused the update: {found.error.get('message', '')}")
    raise Conflict("The update was cancelled. Send it again.")


async def _result(parts: Services, principal: Principal, run_id: str) -> RunResult:
    try:
        async with asyncio.timeout(_OPERATION_SECONDS):
            await wait_ended(parts, principal, run_id)
    except TimeoutError:
        try:
            await parts.app.cancel(run_id, actor=principal.actor)
        except WrongState:
            return await read_result(parts.database, run_id)  # the run has ended just before its cancellation
        raise Unavailable(
            f"No worker has performed the update within {_OPERATION_SECONDS:g} s. Check that one hosts the graph."
        ) from None
    return await read_result(parts.database, run_id)


def _assistant_of(thread: Thread) -> str:
    for name in ("assistant_id", "graph_id"):
        known = thread.metadata.get(name)
        if isinstance(known, str) and known:
            return known
    raise Conflict(
        f'The thread "{thread.id}" has no graph yet. Start a run in it, or create it with "graph_id" in its metadata.'
    )
