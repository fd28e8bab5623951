"""Conversion between a conversation and the messages of the provider library.

The library is large, and most workers and all API processes do not need it, so it is imported at the first call. An
answer is assembled from its streamed pieces, so the stored text equals the streamed text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import orjson

from runlane.llm.models import INVALID_JSON, Delta, Message, ModelDelta, ModelRequest, ToolCall

if TYPE_CHECKING:
    from pydantic_ai import messages as wire
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings as WireSettings

_BREAK = "\n\n"


def to_messages(request: ModelRequest, provider: str) -> list[wire.ModelMessage]:
    """Return the messages of a request. Answers of the same `provider` are restored unchanged."""
    from pydantic_ai import messages as wire

    found: list[wire.ModelMessage] = []
    pending: list[wire.ModelRequestPart] = []
    for line in request.messages:
        match line.role:
            case "user":
                pending.append(wire.UserPromptPart(line.text))
            case "tool":
                pending.append(
                    wire.ToolReturnPart(
                        line.tool or "",
                        line.text,
                        line.call_id or "",
                        outcome="failed" if line.failed else "success",
                    )
                )
            case "assistant":
                answer = _restored(line, provider) or _rebuilt(line)
                if not answer.parts:
                    continue
                if pending:
                    found.append(wire.ModelRequest(pending))
                    pending = []
                found.append(answer)
    if pending:
        found.append(wire.ModelRequest(pending))
    return found


def to_parameters(request: ModelRequest) -> ModelRequestParameters:
    """Return the tools and the instructions of a request."""
    from pydantic_ai.messages import InstructionPart
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=offer.name,
                description=offer.description or None,
                parameters_json_schema=dict(offer.input_schema) or {"type": "object", "properties": {}},
            )
            for offer in request.offers
        ],
        instruction_parts=[InstructionPart(request.instructions)] if request.instructions else None,
    )


def to_settings(request: ModelRequest, ignored: frozenset[str]) -> WireSettings:
    """Return the settings of a request, without the settings that the library would ignore with a warning."""
    settings = request.settings
    must_call = request.must_call and bool(request.offers)
    found: dict[str, Any] = {
        "temperature": settings.temperature,
        "max_tokens": settings.max_tokens,
        "top_p": settings.top_p,
        # Providers reject a forced call of a thinking model, or the model answers without thinking.
        "thinking": None if must_call else settings.thinking,
        "parallel_tool_calls": settings.parallel_tool_calls if request.offers else None,
        "tool_choice": "required" if must_call else None,
    }
    return cast(
        "WireSettings", {name: value for name, value in found.items() if value is not None and name not in ignored}
    )


class CallIds:
    """Ids for the calls of an answer, unique in the conversation.

    Some servers send no ids, or start their numbers again with each answer. A call that gets another id keeps it, even
    in later requests to the same server.
    """

    def __init__(self, request: ModelRequest) -> None:
        self._used = {call.id for line in request.messages for call in line.calls}
        self._number = request.number
        self._position = 0

    def next(self, given: str) -> str:
        """Return the id of the next call. `given` is the provider's id."""
        own = given if given and given not in self._used else f"{given or 'call'}-{self._number}-{self._position}"
        self._used.add(own)
        self._position += 1
        return own


class ResponseFold:
    """Publishes the pieces of an answer as they arrive, and assembles the answer."""

    def __init__(self, request: ModelRequest, delta: Delta | None) -> None:
        self._delta = delta
        self._ids = CallIds(request)
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: dict[int, tuple[str, str]] = {}
        self._last = ""

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    @property
    def thinking(self) -> str:
        """The visible thinking so far."""
        return "".join(self._thinking)

    def take(self, event: wire.ModelResponseStreamEvent) -> None:
        """Process one event of a stream. Only starts and deltas have new content; other events repeat it."""
        from pydantic_ai import messages as wire

        match event:
            case wire.PartStartEvent(part=wire.TextPart(content=content)):
                self._begin("text", self._text)
                self._append("text", self._text, content)
            case wire.PartStartEvent(part=wire.ThinkingPart(content=content)):
                self._begin("thinking", self._thinking)
                self._append("thinking", self._thinking, content)
            case wire.PartStartEvent(index=index, part=wire.ToolCallPart() as part):
                if index not in self._calls:
                    self._calls[index] = (self._ids.next(part.tool_call_id), part.tool_name)
                self._last = "call"
                self._append_arguments(index, part.args)
            case wire.PartDeltaEvent(delta=wire.TextPartDelta(content_delta=content)):
                self._append("text", self._text, content)
            case wire.PartDeltaEvent(delta=wire.ThinkingPartDelta(content_delta=str() as content)):
                self._append("thinking", self._thinking, content)
            case wire.PartDeltaEvent(index=index, delta=wire.ToolCallPartDelta(args_delta=args)):
                self._append_arguments(index, args)
            case _:
                pass

    def _begin(self, kind: str, pieces: list[str]) -> None:
        # Two text parts with another part between them become two paragraphs.
        self._last, last = kind, self._last
        if pieces and last != kind:
            self._append(kind, pieces, _BREAK)

    def _append(self, kind: str, pieces: list[str], content: str) -> None:
        if not content:
            return
        pieces.append(content)
        if self._delta is not None:
            self._delta(ModelDelta("text" if kind == "text" else "thinking", content))

    def _append_arguments(self, index: int, arguments: str | Mapping[str, Any] | None) -> None:
        if not arguments or self._delta is None or index not in self._calls:
            return
        call_id, tool = self._calls[index]
        text = arguments if isinstance(arguments, str) else orjson.dumps(dict(arguments)).decode()
        self._delta(ModelDelta("arguments", text, call_id, tool))


def with_own_ids(response: wire.ModelResponse, request: ModelRequest) -> wire.ModelResponse:
    """Return the answer with call ids that are unique in the conversation."""
    from pydantic_ai.messages import ToolCallPart

    ids = CallIds(request)
    parts = [
        replace(part, tool_call_id=ids.next(part.tool_call_id)) if isinstance(part, ToolCallPart) else part
        for part in response.parts
    ]
    return replace(response, parts=parts)


def calls_of(response: wire.ModelResponse) -> tuple[ToolCall, ...]:
    """Return the tool calls of an answer."""
    from pydantic_ai.messages import ToolCallPart

    return tuple(
        ToolCall(part.tool_name, _arguments(part.args), part.tool_call_id)
        for part in response.parts
        if isinstance(part, ToolCallPart)
    )


def to_raw(response: wire.ModelResponse) -> str:
    """Serialize the answer in the library's format, so that it can be sent back unchanged."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    return ModelMessagesTypeAdapter.dump_json([response]).decode()


def _restored(line: Message, provider: str) -> wire.ModelResponse | None:
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse

    if line.raw is None:
        return None
    try:
        [message] = ModelMessagesTypeAdapter.validate_json(line.raw)
    except ValueError:
        # The answer has a format that this version cannot read. Its text and calls are equivalent, without signatures.
        return None
    return message if isinstance(message, ModelResponse) and message.provider_name == provider else None


def _rebuilt(line: Message) -> wire.ModelResponse:
    from pydantic_ai import messages as wire

    parts: list[wire.ModelResponsePart] = [wire.TextPart(line.text)] if line.text else []
    for call in line.calls:
        written = call.arguments.get(INVALID_JSON)
        arguments = written if isinstance(written, str) else dict(call.arguments)
        parts.append(wire.ToolCallPart(call.name, arguments, call.id))
    return wire.ModelResponse(parts)


def _arguments(written: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if not written:
        return {}
    if not isinstance(written, str):
        return written
    try:
        found: Any = orjson.loads(written)
    except ValueError:
        return {INVALID_JSON: written}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {INVALID_JSON: written}
