"""Deletion and cancellation over HTTP: the store performs them, then workers and readers are notified."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Final

from runlane.api.services import Services
from runlane.domain.access import Principal
from runlane.domain.access_rule import AccessRule
from runlane.domain.run import Status
from runlane.errors import RunNotFound, UnknownThread
from runlane.store.queue.run_changes import RunChange
from runlane.store.threads.assistants import delete_assistant_in, find_deletable_assistant
from runlane.store.threads.cancelling import delete_thread
from runlane.store.threads.threads import threads_of_assistant
from runlane.store.threads.visibility import thread_visibility

# The longest time that a request waits for cancelled runs to stop. They stop even if the request has returned.
_STOP_SECONDS: Final = 10.0


async def remove_thread(parts: Services, principal: Principal, thread_id: str) -> None:
    """Delete a thread and cancel its open runs. Return when the runs have stopped or the wait has timed out."""
    changes = await delete_thread(parts.database, principal.tenant, thread_id, actor=principal.actor)
    publish_changes(parts, changes)
    await wait_stopped(parts, principal, changes)


async def remove_assistant(
    parts: Services,
    principal: Principal,
    assistant_id: str,
    *,
    delete_threads: bool,
    rule: AccessRule | None = None,
) -> None:
    """Delete an assistant and, if requested, those of its threads that the rule allows."""
    if delete_threads:
        # The assistant is deleted last: a request that breaks off can be sent again.
        assistant = await find_deletable_assistant(parts.database, principal.tenant, assistant_id)
        for thread_id in await _threads_of(parts, principal.tenant, assistant.id, rule):
            with contextlib.suppress(UnknownThread):  # another request has deleted it
                await remove_thread(parts, principal, thread_id)
    await parts.database.transact(lambda session: delete_assistant_in(session, principal.tenant, assistant_id))


async def _threads_of(parts: Services, tenant: str, assistant_id: str, rule: AccessRule | None) -> list[str]:
    """Return the threads of an assistant that the rule allows."""
    found = await parts.database.transact(lambda session: threads_of_assistant(session, tenant, assistant_id))
    if rule is None:
        return found
    visible = await thread_visibility(parts.database, tenant, found, rule)
    return [thread_id for thread_id in found if visible.get(thread_id)]


def publish_changes(parts: Services, changes: Iterable[RunChange]) -> None:
    """Notify workers and readers of cancelled runs."""
    for change in changes:
        parts.connection.bus.signal_cancel(change.run_id)
        parts.connection.publish_change(change)


async def wait_stopped(parts: Services, principal: Principal, changes: Sequence[RunChange]) -> None:
    """Wait until running runs have stopped, at most `_STOP_SECONDS`."""
    running = [change.run_id for change in changes if change.status is Status.RUNNING]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_STOP_SECONDS):
            for run_id in running:
                await wait_ended(parts, principal, run_id)


async def wait_ended(parts: Services, principal: Principal, run_id: str) -> None:
    """Wait until a run has ended or this process stops."""
    with contextlib.suppress(RunNotFound):
        follower = await parts.follow(principal, run_id, 0)
        try:
            while not follower.ended:
                await follower.next(_STOP_SECONDS)
        finally:
            follower.close()
        if follower.refusal is not None:
            raise follower.refusal
