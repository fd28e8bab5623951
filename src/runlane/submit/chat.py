"""Requests for turns of conversations: a message becomes the next run of a session.

The runs of a session share an ordering key, so its turns run one at a time and in order, however many clients post.
A message without a session starts one; an unknown session is an error, because the caller expects its history.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, NamedTuple, cast

from runlane.domain.conversation import RequestConversation
from runlane.domain.ids import new_id
from runlane.domain.options import RunOptions
from runlane.domain.tenant import DEFAULT_TENANT, scoped_key
from runlane.domain.text import check_text
from runlane.errors import InvalidRequest
from runlane.store.chat.posting import ChatTurn, post_turn
from runlane.store.queue.accept import NewRun
from runlane.store.sql.database import Database
from runlane.submit.orchestrations import StartRequest, orchestration_run
from runlane.submit.tasks import MAX_KEY

KEY: Final = "chat:"


class ChatRequest(NamedTuple):
    """A message to an agent; without a session it starts one.

    `conversation` has the messages, instructions and settings that the agent also receives. With `after_turn` the
    message is refused if another turn was added after that one.
    """

    agent: str
    message: str
    session_id: str | None = None
    input: Mapping[str, Any] | None = None
    options: RunOptions = RunOptions()
    conversation: RequestConversation | None = None
    after_turn: int | None = None


async def post(
    database: Database,
    request: ChatRequest,
    seal: Callable[[NewRun], Awaitable[NewRun]],
    *,
    tasks: Collection[str],
    max_input_bytes: int,
    max_losses: int,
    tenant: str = DEFAULT_TENANT,
    trace: str | None = None,
) -> ChatTurn:
    """Accept a turn, pinned to the current versions. `seal` encrypts the secret of its webhook."""
    session_id = request.session_id or new_id("sess")
    run = await chat_run(
        database,
        request,
        session_id,
        tasks=tasks,
        max_input_bytes=max_input_bytes,
        max_losses=max_losses,
        tenant=tenant,
        trace=trace,
    )
    return await post_turn(
        database,
        await seal(run),
        session_id=session_id,
        agent=request.agent,
        message=request.message,
        is_new=request.session_id is None,
        after_turn=request.after_turn,
    )


async def chat_run(
    database: Database,
    request: ChatRequest,
    session_id: str,
    *,
    tasks: Collection[str],
    max_input_bytes: int,
    max_losses: int,
    tenant: str = DEFAULT_TENANT,
    trace: str | None = None,
) -> NewRun:
    """Return the run of a turn of this session, pinned to the current versions."""
    if not isinstance(cast("object", request.message), str) or not request.message.strip():
        raise InvalidRequest("A message to an agent must be a non-empty string.")
    # Its length is bounded with the input of the run.
    check_text(request.message, "The message", len(request.message))
    if request.session_id is not None:
        check_text(request.session_id, "The session id", MAX_KEY)
    # The session id is part of the request that an idempotency key identifies.
    options = request.options._replace(session_id=request.session_id)
    start = StartRequest(
        request.agent, request.message, request.input, options, kind="agent", conversation=request.conversation
    )
    run = await orchestration_run(
        database,
        start,
        tasks=tasks,
        max_input_bytes=max_input_bytes,
        max_losses=max_losses,
        tenant=tenant,
        trace=trace,
    )
    # Set after the fingerprint: a repeated request that starts a session has another session id.
    return run._replace(ordering_key=scoped_key(tenant, f"{KEY}{session_id}"))
