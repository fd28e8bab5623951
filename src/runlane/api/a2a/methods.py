"""The methods of A2A: send a message, read, list and cancel tasks, and configure push notifications."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from fastapi import Request

from runlane.access.policy import require
from runlane.api.a2a.errors import (
    INVALID_PARAMS,
    TASK_NOT_CANCELABLE,
    TASK_NOT_FOUND,
    UNSUPPORTED_OPERATION,
    ProtocolRefusal,
)
from runlane.api.a2a.params import ListParams, PushOfTask, PushParams, SendParams, TaskParams
from runlane.api.a2a.tasks import INPUT_REQUIRED, TaskSnapshot, read_task
from runlane.api.openai.starting import Asked, Continued, answer_in_turn, find_continued, post_turn
from runlane.api.services import Services, parts_of
from runlane.domain.a2a import A2A_STATES, A2A_TAG
from runlane.domain.access import Permission, Principal
from runlane.domain.conversation import RequestConversation
from runlane.domain.options import RunOptions
from runlane.domain.run import AGENT, Run, Status
from runlane.domain.webhook import check_url
from runlane.errors import RunNotFound, UnknownSession, WrongState
from runlane.store.chat.turns import find_session
from runlane.store.queue.runs import find_run
from runlane.store.queue.search import RunFilter, search_runs
from runlane.store.sql.page_bytes import MAX_PAGE_BYTES
from runlane.store.webhooks.run_address import read_address, set_address

_BY_STATE: Final[Mapping[str, tuple[Status, ...]]] = {
    "TASK_STATE_SUBMITTED": (Status.QUEUED, Status.SCHEDULED, Status.BLOCKED),
    "TASK_STATE_WORKING": (Status.RUNNING, Status.PAUSED),
    INPUT_REQUIRED: (Status.PAUSED,),
    **{A2A_STATES[status]: (status,) for status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)},
}


async def send_message(request: Request, principal: Principal, agent: str, params: SendParams) -> str:
    """Start a task, continue a conversation, or answer the question of a task. Return the id of the run."""
    require(principal, Permission.RUNS_WRITE)
    parts, message = parts_of(request), params.message
    if message.role != "ROLE_USER":
        raise ProtocolRefusal(INVALID_PARAMS, f'The role "{message.role[:40]}" cannot send messages. Use ROLE_USER.')
    push = params.configuration.task_push_notification_config
    url = None if push is None else push.checked_url()
    key = sha256("\x1f".join((agent, message.message_id)).encode()).hexdigest()
    options = RunOptions(idempotency_key=f"a2a:{key}", tags=(A2A_TAG,), webhook_url=url)
    asked = Asked(agent, message.content(), RequestConversation(), options, request.headers.get("traceparent"))
    if message.task_id:
        return await _answer(parts, principal, asked, message.task_id, message.context_id)
    last = await find_continued(parts, principal, agent, None, message.context_id or None)
    return (await post_turn(request, principal, asked, last)).id.run_id


async def get_task(parts: Services, principal: Principal, agent: str, task_id: str) -> TaskSnapshot:
    """Return a task of the agent. Raise ProtocolRefusal if the caller may not see it."""
    await require_task(parts, principal, agent, task_id)
    return await read_task(parts.database, task_id)


async def require_task(parts: Services, principal: Principal, agent: str, task_id: str) -> Run:
    """Return the run of a task. Raise ProtocolRefusal if the task belongs to another agent or another tenant."""
    require(principal, Permission.RUNS_READ)
    try:
        run = await find_run(parts.database, task_id)
    except RunNotFound:
        run = None
    if run is None or run.tenant != principal.tenant or run.target != f"{AGENT}{agent}":
        raise ProtocolRefusal(TASK_NOT_FOUND, f'The task "{task_id[:200]}" does not exist. Check its id and the agent.')
    return run


async def cancel_task(parts: Services, principal: Principal, agent: str, params: TaskParams) -> dict[str, Any]:
    """Cancel a task that has not ended, and return the task."""
    require(principal, Permission.RUNS_WRITE)
    await require_task(parts, principal, agent, params.id)
    try:
        await parts.app.cancel(params.id, actor=principal.actor)
    except WrongState as error:
        raise ProtocolRefusal(TASK_NOT_CANCELABLE, str(error)) from None
    return (await read_task(parts.database, params.id)).to_dict()


async def list_tasks(parts: Services, principal: Principal, agent: str, params: ListParams) -> dict[str, Any]:
    """Return a page of the tasks of the agent, newest first, with at most MAX_PAGE_BYTES of text."""
    require(principal, Permission.RUNS_READ)
    statuses: tuple[Status, ...] = ()
    if params.status and params.status != "TASK_STATE_UNSPECIFIED":
        if params.status not in _BY_STATE:
            raise ProtocolRefusal(INVALID_PARAMS, f'The state "{params.status[:60]}" does not exist.')
        statuses = _BY_STATE[params.status]
    if params.context_id:
        session = await find_session(parts.database, params.context_id)
        if session.tenant != principal.tenant:
            # The error is the same as for a context that does not exist.
            raise UnknownSession(params.context_id)
    wanted = RunFilter(statuses, f"{AGENT}{agent}", tenant=principal.tenant, tags=(A2A_TAG,))
    found = await search_runs(parts.database, wanted, below=params.page_token or None, limit=params.page_size)
    with_answers = params.include_artifacts
    tasks: list[TaskSnapshot] = []
    room, following = MAX_PAGE_BYTES, found.cursor
    for run in found.runs:
        task = await read_task(parts.database, run.id, answers=with_answers)
        room -= task.text_bytes
        if tasks and room < 0:
            following = tasks[-1].run.id
            break
        tasks.append(task)
    if params.context_id:
        tasks = [task for task in tasks if task.context_id == params.context_id]
    if params.status == INPUT_REQUIRED:
        tasks = [task for task in tasks if task.questions]
    return {
        "tasks": [task.to_dict(params.history_length, artifacts=with_answers) for task in tasks],
        "nextPageToken": following or "",
        "pageSize": params.page_size,
        "totalSize": len(tasks),
    }


async def set_push(parts: Services, principal: Principal, agent: str, params: PushParams) -> dict[str, Any]:
    """Set the URL that receives a notification when the task ends. Return the push notification config."""
    require(principal, Permission.RUNS_WRITE)
    await require_task(parts, principal, agent, params.task_id)
    await set_address(parts.database, principal.tenant, params.task_id, check_url(params.checked_url()))
    return await get_push(parts, principal, agent, PushOfTask(task_id=params.task_id))


async def get_push(parts: Services, principal: Principal, agent: str, params: PushOfTask) -> dict[str, Any]:
    """Return the push notification config of a task."""
    found = (await list_push(parts, principal, agent, params))["configs"]
    if not found:
        raise ProtocolRefusal(TASK_NOT_FOUND, f'The task "{params.task_id}" has no push notification config.')
    return found[0]


async def list_push(parts: Services, principal: Principal, agent: str, params: PushOfTask) -> dict[str, Any]:
    """Return the push notification configs of a task: one or none."""
    await require_task(parts, principal, agent, params.task_id)
    url = await read_address(parts.database, principal.tenant, params.task_id)
    return {"configs": [] if url is None else [{"id": params.task_id, "taskId": params.task_id, "url": url}]}


async def delete_push(parts: Services, principal: Principal, agent: str, params: PushOfTask) -> dict[str, Any]:
    """Delete the push notification config of a task."""
    require(principal, Permission.RUNS_WRITE)
    await require_task(parts, principal, agent, params.task_id)
    await set_address(parts.database, principal.tenant, params.task_id, None)
    return {}


async def _answer(parts: Services, principal: Principal, asked: Asked, task_id: str, context_id: str | None) -> str:
    """Answer the question that a task waits for. A repeated message has no further effect."""
    run = await require_task(parts, principal, asked.agent, task_id)
    chat: Mapping[str, Any] = (run.plan or {}).get("chat") or {}
    session_id = chat.get("session_id") or run.id
    if context_id and context_id != session_id:
        raise ProtocolRefusal(INVALID_PARAMS, f'The task "{task_id}" does not belong to the context "{context_id}".')
    last = Continued(session_id, int(chat.get("turn") or 0), run)
    if await answer_in_turn(parts, principal, last, asked) is None:
        raise ProtocolRefusal(
            UNSUPPORTED_OPERATION,
            f'The task "{task_id}" is {run.status.value} and does not wait for input. Send a message without taskId.',
        )
    return run.id
