"""Requests for runs of agents and orchestrations in threads: the messages of the input become those of a run.

The run answers the last message of the user. The agent also receives the messages before it in the same request; those
of earlier runs are part of its conversation already. Other fields of the input, and the context, are the input of the
run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

from runlane.domain.assistant import Assistant
from runlane.domain.conversation import EarlierMessage, RequestConversation, Role
from runlane.domain.graph import GraphRequest
from runlane.domain.native_thread import MESSAGES, native_name
from runlane.domain.run import AGENT
from runlane.errors import InvalidRequest
from runlane.store.queue.accept import NewRun
from runlane.store.sql.database import Database
from runlane.store.threads.native_runs import NativeTurn
from runlane.submit.graphs import GraphRunRequest
from runlane.submit.orchestrations import StartRequest, orchestration_run

_ROLES: Final[Mapping[str, Role]] = {
    "human": "user",
    "user": "user",
    "ai": "assistant",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}
# Messages that clients keep of earlier runs, and that a model does not receive again.
_LEFT_OUT: Final = frozenset({"tool", "function", "remove"})


async def native_run(
    database: Database,
    given: GraphRunRequest,
    request: GraphRequest,
    assistant: Assistant,
    *,
    max_input_bytes: int,
    max_losses: int,
    tenant: str,
    trace: str | None,
) -> tuple[NewRun, NativeTurn]:
    """Return the run of a request for an agent or orchestration, and its turn of the conversation."""
    _refuse_unsupported(request)
    kind: Literal["agent", "orchestration"] = "agent" if assistant.graph_id.startswith(AGENT) else "orchestration"
    message, earlier, more = parse_input(request.input, required=kind == "agent")
    conversation = RequestConversation(earlier) if kind == "agent" else None
    context: Mapping[str, Any] = {}
    if isinstance(request.context, Mapping):
        context = cast("Mapping[str, Any]", request.context)
    start = StartRequest(
        native_name(assistant.graph_id),
        message,
        {**context, **more},
        given.options,
        kind=kind,
        conversation=conversation,
    )
    run = await orchestration_run(
        database,
        start,
        tasks=(),
        max_input_bytes=max_input_bytes,
        max_losses=max_losses,
        tenant=tenant,
        trace=trace,
    )
    if run.flow is not None:
        raise InvalidRequest(
            f'"{assistant.graph_id}" has flow control, which may start no run for a request. Remove it, or start runs '
            "with POST /api/v2."
        )
    return run, NativeTurn(message)


def parse_input(given: Any, *, required: bool) -> tuple[str, tuple[EarlierMessage, ...], dict[str, Any]]:
    """Return the message of an input, the messages before it, and its other fields."""
    if isinstance(given, str):
        given = {MESSAGES: [{"role": "user", "content": given}]}
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise InvalidRequest('input must be an object with "messages".')
    fields = dict(cast("Mapping[str, Any]", given))
    messages: list[EarlierMessage] = []
    for index, item in enumerate(_listed(fields.pop(MESSAGES, ()))):
        found = _message(item, index)
        if found is not None:
            messages.append(found)
    if not messages and not required:
        return "", (), fields
    if not messages or messages[-1].role != "user" or not messages[-1].text.strip():
        raise InvalidRequest(
            'input.messages must end with a message of the user that has text: {"role": "user", "content": "Hi"}.'
        )
    return messages[-1].text, tuple(messages[:-1]), fields


def _listed(value: Any) -> Sequence[Any]:
    if isinstance(value, (str, Mapping)):
        return (cast("Any", value),)
    if not isinstance(value, Sequence):
        raise InvalidRequest("input.messages must be a list of messages.")
    return cast("Sequence[Any]", value)


def _message(item: Any, index: int) -> EarlierMessage | None:
    if isinstance(item, str):
        return EarlierMessage("user", item)
    if isinstance(item, Sequence):
        pair = cast("Sequence[Any]", item)
        item = {"role": pair[0], "content": pair[1]} if len(pair) == 2 else None
    if not isinstance(item, Mapping):
        raise InvalidRequest(f"input.messages.{index} must be a message: an object with role and content.")
    message = cast("Mapping[str, Any]", item)
    role = str(message.get("role") or message.get("type") or "")
    if role in _LEFT_OUT:
        return None
    if role not in _ROLES:
        raise InvalidRequest(f'input.messages.{index}: "{role[:40]}" is not a role. Use user, assistant or system.')
    return EarlierMessage(_ROLES[role], _text(message.get("content"), index))


def _text(content: Any, index: int) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        blocks = [cast("Any", block) for block in cast("list[Any]", content) if isinstance(block, dict)]
        texts = [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]
        if len(texts) == len(cast("list[Any]", content)):
            return "".join(texts)
    raise InvalidRequest(f"input.messages.{index}: agents accept text. Send content as a string, or as blocks of text.")


def _refuse_unsupported(request: GraphRequest) -> None:
    given: dict[str, Any] = {
        "command": request.command,
        "checkpoint": request.checkpoint,
        "interrupt_before": request.interrupt_before,
        "interrupt_after": request.interrupt_after,
    }
    for name, value in given.items():
        if value:
            raise InvalidRequest(f"{name} is for graphs of LangGraph, not for agents and orchestrations. Leave it out.")
