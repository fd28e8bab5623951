"""A conversation in the words of the provider layer, and its answers in ours.

Nothing of it is imported before a provider is asked: the layer is large, and most workers and every API process do
without. An answer is assembled from its pieces, so the stored text is the text that was streamed.
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
    """The lines of a request; answers that `provider` gave itself are restored as it gave them."""
    from pydantic_ai import messages as wire

    found: list[wire.ModelMessage] = []
    asked: list[wire.ModelRequestPart] = []
    for line in request.messages:
        match line.role:
            case "user":
                asked.append(wire.UserPromptPart(line.text))
            case "tool":
                asked.append(
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
                if asked:
                    found.append(wire.ModelRequest(asked))
                    asked = []
                found.append(answer)
    if asked:
        found.append(wire.ModelRequest(asked))
    return found


def to_parameters(request: ModelRequest) -> ModelRequestParameters:
    """The tools and the instructions of a request."""
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
    """The settings of a request, without those that the model's adapter ignores with a warning."""
    told = request.settings
    must_call = request.must_call and bool(request.offers)
    found: dict[str, Any] = {
        "temperature": told.temperature,
        "max_tokens": told.max_tokens,
        "top_p": told.top_p,
        # Providers refuse a forced call while a model thinks, or let it answer without thinking anyway.
        "thinking": None if must_call else told.thinking,
        "parallel_tool_calls": told.parallel_tool_calls if request.offers else None,
        "tool_choice": "required" if must_call else None,
    }
    return cast(
        "WireSettings", {name: value for name, value in found.items() if value is not None and name not in ignored}
    )


class CallIds:
    """Ids for the calls of an answer that no other call of the conversation has.

    Some servers send none, or restart their numbers with each answer. A call that gets another one here keeps it, even
    towards the server that it came from.
    """

    def __init__(self, request: ModelRequest) -> None:
        self._used = {call.id for line in request.messages for call in line.calls}
        self._number = request.number
        self._place = 0

    def next(self, given: str) -> str:
        """Return the id of the next call; `given` is the provider's."""
        own = given if given and given not in self._used else f"{given or 'call'}-{self._number}-{self._place}"
        self._used.add(own)
        self._place += 1
        return own


class ResponseFold:
    """The pieces of an answer, published as they arrive, and the answer that they make."""

    def __init__(self, request: ModelRequest, delta: Delta | None) -> None:
        self._delta = delta
        self._ids = CallIds(request)
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: dict[int, tuple[str, str]] = {}
        self._last = ""

    @property
    def text(self) -> str:
        """All text."""
        return "".join(self._text)

    @property
    def thinking(self) -> str:
        """All that was thought aloud."""
        return "".join(self._thinking)

    def take(self, event: wire.ModelResponseStreamEvent) -> None:
        """Take one event of a stream. Starts and deltas carry content; the others repeat it."""
        from pydantic_ai import messages as wire

        match event:
            case wire.PartStartEvent(part=wire.TextPart(content=content)):
                self._begin("text", self._text)
                self._say("text", self._text, content)
            case wire.PartStartEvent(part=wire.ThinkingPart(content=content)):
                self._begin("thinking", self._thinking)
                self._say("thinking", self._thinking, content)
            case wire.PartStartEvent(index=index, part=wire.ToolCallPart() as part):
                if index not in self._calls:
                    self._calls[index] = (self._ids.next(part.tool_call_id), part.tool_name)
                self._last = "call"
                self._argue(index, part.args)
            case wire.PartDeltaEvent(delta=wire.TextPartDelta(content_delta=content)):
                self._say("text", self._text, content)
            case wire.PartDeltaEvent(delta=wire.ThinkingPartDelta(content_delta=str() as content)):
                self._say("thinking", self._thinking, content)
            case wire.PartDeltaEvent(index=index, delta=wire.ToolCallPartDelta(args_delta=args)):
                self._argue(index, args)
            case _:
                pass

    def _begin(self, kind: str, pieces: list[str]) -> None:
        # Two texts with something between them are two paragraphs.
        self._last, last = kind, self._last
        if pieces and last != kind:
            self._say(kind, pieces, _BREAK)

    def _say(self, kind: str, pieces: list[str], content: str) -> None:
        if not content:
            return
        pieces.append(content)
        if self._delta is not None:
            self._delta(ModelDelta("text" if kind == "text" else "thinking", content))

    def _argue(self, index: int, arguments: str | Mapping[str, Any] | None) -> None:
        if not arguments or self._delta is None or index not in self._calls:
            return
        call_id, tool = self._calls[index]
        text = arguments if isinstance(arguments, str) else orjson.dumps(dict(arguments)).decode()
        self._delta(ModelDelta("arguments", text, call_id, tool))


def with_own_ids(response: wire.ModelResponse, request: ModelRequest) -> wire.ModelResponse:
    """The answer with the ids that its calls have here."""
    from pydantic_ai.messages import ToolCallPart

    ids = CallIds(request)
    parts = [
        replace(part, tool_call_id=ids.next(part.tool_call_id)) if isinstance(part, ToolCallPart) else part
        for part in response.parts
    ]
    return replace(response, parts=parts)


def calls_of(response: wire.ModelResponse) -> tuple[ToolCall, ...]:
    """The tools that an answer asks for."""
    from pydantic_ai.messages import ToolCallPart

    return tuple(
        ToolCall(part.tool_name, _arguments(part.args), part.tool_call_id)
        for part in response.parts
        if isinstance(part, ToolCallPart)
    )


def to_raw(response: wire.ModelResponse) -> str:
    """The answer as the provider layer writes it, so that it can be given back as it was."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    return ModelMessagesTypeAdapter.dump_json([response]).decode()


def _restored(line: Message, provider: str) -> wire.ModelResponse | None:
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse

    if line.raw is None:
        return None
    try:
        [message] = ModelMessagesTypeAdapter.validate_json(line.raw)
    except ValueError:
        # Written by a version whose format this one cannot read: text and calls are equivalent, without signatures.
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
