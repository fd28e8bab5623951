"""Chatting: a message becomes the next turn of a conversation with an agent.

The runs of a session have an ordering key of their own, so its turns run one at a time and in order, however many are
posted at once and by whom. A conversation begins with a message that names no session; a name that is not known is an
error, since whoever sends one expects to be remembered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple, cast

from runlane.domain.ids import new_id
from runlane.domain.tenant import DEFAULT_TENANT, scoped_key
from runlane.domain.text import check_text
from runlane.errors import InvalidRequest
from runlane.store.chat.posting import ChatTurn, post_turn
from runlane.store.sql.database import Database
from runlane.submit.orchestrations import StartRequest, orchestration_run
from runlane.submit.tasks import MAX_KEY

KEY: Final = "chat:"


class ChatRequest(NamedTuple):
    """A message to an agent; without a session it begins one."""

    agent: str
    message: str
    session_id: str | None = None
    input: Mapping[str, Any] | None = None
    priority: int = 0
    idempotency_key: str | None = None
    delay_seconds: float = 0
    webhook_url: str | None = None


async def post(
    database: Database,
    say: ChatRequest,
    *,
    tasks: Collection[str],
    max_input_bytes: int,
    max_losses: int,
    tenant: str = DEFAULT_TENANT,
    trace: str | None = None,
) -> ChatTurn:
    """Accept a turn, pinned to the versions that are current now."""
    if not isinstance(cast("object", say.message), str) or not say.message.strip():
        raise InvalidRequest("A message to an agent must be a text that says something.")
    if say.session_id is not None:
        check_text(say.session_id, "The session id", MAX_KEY)
    start = StartRequest(
        say.agent,
        say.message,
        say.input,
        priority=say.priority,
        idempotency_key=say.idempotency_key,
        delay_seconds=say.delay_seconds,
        webhook_url=say.webhook_url,
        # A part of what tells requests with one idempotency key apart: a message for no session is another one.
        session_id=say.session_id,
        kind="agent",
    )
    wanted = await orchestration_run(
        database,
        start,
        tasks=tasks,
        max_input_bytes=max_input_bytes,
        max_losses=max_losses,
        tenant=tenant,
        trace=trace,
    )
    session_id = say.session_id or new_id("sess")
    # Only now: the key of a session that begins is not the same when the request is repeated.
    wanted = wanted._replace(ordering_key=scoped_key(tenant, f"{KEY}{session_id}"))
    return await post_turn(
        database,
        wanted,
        session_id=session_id,
        agent=say.agent,
        message=say.message,
        is_new=say.session_id is None,
    )
