"""The wire formats of a fake provider: chat completions and responses of OpenAI, messages of Anthropic.

Each format parses a request into the values that a script needs, and serializes an answer as a stream of events and as
a whole. Ids and signatures depend only on the answer and its position, so they are the same each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

import orjson

from runlane.testing.fake_script import FakeAnswer, FakeCall, FakeFault

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FakeRequest:
    """A parsed request: the number of model answers so far, and the last message."""

    model: str
    turn: int
    last: str
    stream: bool
    size: int


class Wire(Protocol):
    """A wire format."""

    def parse_request(self, body: Body) -> FakeRequest: ...

    def stream(self, answer: FakeAnswer, request: FakeRequest) -> Iterator[bytes]: ...

    def whole(self, answer: FakeAnswer, request: FakeRequest) -> Body: ...

    def error(self, fault: FakeFault) -> Body: ...

    def late_error(self, fault: FakeFault) -> bytes: ...


def signature_of(thinking: str) -> str:
    """Return the signature of a reasoning block."""
    return f"signed-{hashlib.sha256(thinking.encode()).hexdigest()[:16]}"


def text_of(content: Any) -> str:
    """Return the text of a message content of any form."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text_of(part) for part in cast("list[Any]", content))
    if isinstance(content, dict):
        part = cast("Body", content)
        return next((text_of(part[name]) for name in ("text", "content", "output") if part.get(name)), "")
    return ""


class _MessagesWire:
    """Base class of formats whose requests have a list of messages."""

    def parse_request(self, body: Body) -> FakeRequest:
        messages: list[Body] = body.get("messages") or []
        turn = sum(1 for message in messages if message.get("role") == "assistant")
        last = text_of(messages[-1].get("content")) if messages else ""
        return FakeRequest(str(body.get("model")), turn, last, bool(body.get("stream")), len(orjson.dumps(messages)))


class ChatWire(_MessagesWire):
    """POST /v1/chat/completions."""

    def stream(self, answer: FakeAnswer, request: FakeRequest) -> Iterator[bytes]:
        yield self._chunk(request, {"role": "assistant", "content": ""})
        for piece in _pieces(answer.thinking, answer):
            yield self._chunk(request, {"reasoning_content": piece})
        for piece in _pieces(answer.text, answer):
            yield self._chunk(request, {"content": piece})
        for index, call in enumerate(answer.calls):
            begun = {"id": _call_id(call, request, index), "type": "function", "index": index}
            yield self._chunk(request, {"tool_calls": [begun | {"function": {"name": call.name, "arguments": ""}}]})
            for piece in _pieces(_arguments(call), answer):
                yield self._chunk(request, {"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield self._chunk(request, {}, self._finish(answer))
        usage = self._usage(answer, request)
        yield _data(self._head(request) | {"object": "chat.completion.chunk", "choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    def whole(self, answer: FakeAnswer, request: FakeRequest) -> Body:
        calls = [
            {
                "id": _call_id(call, request, index),
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call)},
            }
            for index, call in enumerate(answer.calls)
        ]
        message: Body = {"role": "assistant", "content": answer.text or None}
        if answer.thinking:
            message["reasoning_content"] = answer.thinking
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": self._finish(answer)}
        return self._head(request) | {
            "object": "chat.completion",
            "choices": [choice],
            "usage": self._usage(answer, request),
        }

    def error(self, fault: FakeFault) -> Body:
        return openai_error(fault)

    def late_error(self, fault: FakeFault) -> bytes:
        return _data(openai_error(fault))

    def _head(self, request: FakeRequest) -> Body:
        return {"id": f"chatcmpl-{request.turn}", "created": 1_700_000_000, "model": request.model}

    def _chunk(self, request: FakeRequest, delta: Body, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _data(self._head(request) | {"object": "chat.completion.chunk", "choices": [choice]})

    def _finish(self, answer: FakeAnswer) -> str:
        if answer.finish == "stop":
            return "tool_calls" if answer.calls else "stop"
        return "length" if answer.finish == "length" else "content_filter"

    def _usage(self, answer: FakeAnswer, request: FakeRequest) -> Body:
        tokens_in, tokens_out = _tokens(answer, request)
        return {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": tokens_in + tokens_out}


class ResponsesWire:
    """POST /v1/responses."""

    def parse_request(self, body: Body) -> FakeRequest:
        given: Any = body.get("input")
        items: list[Body] = [{"role": "user", "content": given}] if isinstance(given, str) else given or []
        turn, speaking = 0, False
        for item in items:
            spoke = item.get("role") == "assistant" or item.get("type") in {"function_call", "reasoning"}
            turn += spoke and not speaking
            speaking = spoke
        last = text_of(items[-1]) if items else ""
        return FakeRequest(str(body.get("model")), turn, last, bool(body.get("stream")), len(orjson.dumps(items)))

    def stream(self, answer: FakeAnswer, request: FakeRequest) -> Iterator[bytes]:
        for number, event in enumerate(self._events(answer, request)):
            yield _named(event["type"], event | {"sequence_number": number})

    def whole(self, answer: FakeAnswer, request: FakeRequest) -> Body:
        status = "incomplete" if answer.finish != "stop" else "completed"
        tokens_in, tokens_out = _tokens(answer, request)
        reason = {"length": "max_output_tokens", "refusal": "content_filter"}.get(answer.finish)
        return self._head(request, status) | {
            "output": self._items(answer, request),
            "incomplete_details": {"reason": reason} if reason else None,
            "usage": {
                "input_tokens": tokens_in,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": tokens_out,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": tokens_in + tokens_out,
            },
        }

    def error(self, fault: FakeFault) -> Body:
        return openai_error(fault)

    def late_error(self, fault: FakeFault) -> bytes:
        error = openai_error(fault)["error"]
        code = error["code"] or error["type"]
        return _named("error", {"type": "error", "code": code, "message": error["message"], "sequence_number": 9999})

    def _events(self, answer: FakeAnswer, request: FakeRequest) -> Iterator[Body]:
        yield {"type": "response.created", "response": self._head(request, "in_progress")}
        for index, item in enumerate(self._items(answer, request)):
            where = {"output_index": index, "item_id": item["id"]}
            match item["type"]:
                case "reasoning":
                    yield from self._thought(answer, item, where)
                case "message":
                    yield from self._message_events(answer, item, where)
                case _:
                    yield _added(index, item | {"arguments": "", "status": "in_progress"})
                    for piece in _pieces(item["arguments"], answer):
                        yield {"type": "response.function_call_arguments.delta", "delta": piece} | where
                    done = {"name": item["name"], "arguments": item["arguments"]}
                    yield {"type": "response.function_call_arguments.done"} | done | where
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        whole = self.whole(answer, request)
        yield {"type": f"response.{whole['status']}", "response": whole}

    def _thought(self, answer: FakeAnswer, item: Body, where: Body) -> Iterator[Body]:
        yield _added(where["output_index"], item | {"summary": [], "encrypted_content": None})
        part = where | {"summary_index": 0}
        yield {"type": "response.reasoning_summary_part.added", "part": {"type": "summary_text", "text": ""}} | part
        for piece in _pieces(answer.thinking, answer):
            yield {"type": "response.reasoning_summary_text.delta", "delta": piece} | part
        yield {"type": "response.reasoning_summary_text.done", "text": answer.thinking} | part
        yield {"type": "response.reasoning_summary_part.done", "part": item["summary"][0]} | part

    def _message_events(self, answer: FakeAnswer, item: Body, where: Body) -> Iterator[Body]:
        yield _added(where["output_index"], item | {"content": [], "status": "in_progress"})
        part = where | {"content_index": 0}
        empty: Body = {"type": "output_text", "text": "", "annotations": []}
        yield {"type": "response.content_part.added", "part": empty} | part
        for piece in _pieces(answer.text, answer):
            yield {"type": "response.output_text.delta", "delta": piece, "logprobs": []} | part
        yield {"type": "response.output_text.done", "text": answer.text, "logprobs": []} | part
        yield {"type": "response.content_part.done", "part": item["content"][0]} | part

    def _items(self, answer: FakeAnswer, request: FakeRequest) -> list[Body]:
        items: list[Body] = []
        if answer.thinking:
            items.append(
                {
                    "type": "reasoning",
                    "id": f"rs_{request.turn}",
                    "summary": [{"type": "summary_text", "text": answer.thinking}],
                    "encrypted_content": signature_of(answer.thinking),
                }
            )
        if answer.text:
            content: Body = {"type": "output_text", "text": answer.text, "annotations": []}
            items.append(
                {
                    "type": "message",
                    "id": f"msg_{request.turn}",
                    "role": "assistant",
                    "status": "completed",
                    "content": [content],
                }
            )
        items += [
            {
                "type": "function_call",
                "id": f"fc_{request.turn}_{index}",
                "call_id": _call_id(call, request, index),
                "name": call.name,
                "arguments": _arguments(call),
                "status": "completed",
            }
            for index, call in enumerate(answer.calls)
        ]
        return items

    def _head(self, request: FakeRequest, status: str) -> Body:
        return {
            "id": f"resp_{request.turn}",
            "object": "response",
            "created_at": 1_700_000_000,
            "model": request.model,
            "status": status,
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }


class AnthropicWire(_MessagesWire):
    """POST /v1/messages."""

    def stream(self, answer: FakeAnswer, request: FakeRequest) -> Iterator[bytes]:
        message: Body = self.whole(answer, request) | {"content": [], "stop_reason": None}
        message["usage"] = message["usage"] | {"output_tokens": 1}
        yield _named("message_start", {"type": "message_start", "message": message})
        for index, block in enumerate(self._blocks(answer, request)):
            yield from self._block(index, block, answer)
        whole = self.whole(answer, request)
        delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        usage = {"output_tokens": whole["usage"]["output_tokens"]}
        yield _named("message_delta", {"type": "message_delta", "delta": delta, "usage": usage})
        yield _named("message_stop", {"type": "message_stop"})

    def whole(self, answer: FakeAnswer, request: FakeRequest) -> Body:
        tokens_in, tokens_out = _tokens(answer, request)
        stop = {"length": "max_tokens", "refusal": "refusal"}.get(answer.finish)
        blocks = self._blocks(answer, request)
        for block in blocks:
            if block["type"] == "tool_use" and isinstance(block["input"], str):
                block["input"] = {}
        return {
            "id": f"msg_{request.turn}",
            "type": "message",
            "role": "assistant",
            "model": request.model,
            "content": blocks,
            "stop_reason": stop or ("tool_use" if answer.calls else "end_turn"),
            "stop_sequence": None,
            "usage": {"input_tokens": tokens_in, "output_tokens": tokens_out},
        }

    def error(self, fault: FakeFault) -> Body:
        types = {
            400: "invalid_request_error",
            401: "authentication_error",
            403: "permission_error",
            404: "not_found_error",
            413: "request_too_large",
            429: "rate_limit_error",
            529: "overloaded_error",
        }
        return {
            "type": "error",
            "error": {"type": fault.type or types.get(fault.status, "api_error"), "message": fault.message},
        }

    def late_error(self, fault: FakeFault) -> bytes:
        return _named("error", self.error(fault))

    def _blocks(self, answer: FakeAnswer, request: FakeRequest) -> list[Body]:
        blocks: list[Body] = []
        if answer.thinking:
            signature = signature_of(answer.thinking)
            blocks.append({"type": "thinking", "thinking": answer.thinking, "signature": signature})
        if answer.text:
            blocks.append({"type": "text", "text": answer.text})
        blocks += [
            {"type": "tool_use", "id": _call_id(call, request, index), "name": call.name, "input": call.arguments}
            for index, call in enumerate(answer.calls)
        ]
        return blocks

    def _block(self, index: int, block: Body, answer: FakeAnswer) -> Iterator[bytes]:
        begun: Body
        deltas: list[Body]
        match block["type"]:
            case "thinking":
                begun = {"type": "thinking", "thinking": "", "signature": ""}
                deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(answer.thinking, answer)]
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            case "text":
                begun = {"type": "text", "text": ""}
                deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(answer.text, answer)]
            case _:
                begun = block | {"input": {}}
                written = block["input"] if isinstance(block["input"], str) else orjson.dumps(block["input"]).decode()
                deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(written, answer)]
        yield _named("content_block_start", {"type": "content_block_start", "index": index, "content_block": begun})
        for delta in deltas:
            yield _named("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta})
        yield _named("content_block_stop", {"type": "content_block_stop", "index": index})


WIRES: dict[str, Wire] = {
    "/v1/chat/completions": ChatWire(),
    "/v1/responses": ResponsesWire(),
    "/v1/messages": AnthropicWire(),
}


def _pieces(text: str, answer: FakeAnswer) -> Iterator[str]:
    size = answer.piece_chars
    return (text[start : start + size] for start in range(0, len(text), size))


def _arguments(call: FakeCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else orjson.dumps(call.arguments).decode()


def _call_id(call: FakeCall, request: FakeRequest, index: int) -> str:
    return call.id if call.id is not None else f"call_{request.turn}_{index}"


def _tokens(answer: FakeAnswer, request: FakeRequest) -> tuple[int, int]:
    characters = len(answer.text) + len(answer.thinking) + sum(len(_arguments(call)) for call in answer.calls)
    tokens_in = request.size // 4 if answer.tokens_in is None else answer.tokens_in
    return tokens_in, characters // 4 if answer.tokens_out is None else answer.tokens_out


def openai_error(fault: FakeFault) -> Body:
    types = {401: "authentication_error", 429: "rate_limit_error"}
    default = "server_error" if fault.status >= 500 else "invalid_request_error"
    code = fault.code or {401: "invalid_api_key", 404: "model_not_found"}.get(fault.status)
    shown = fault.type or types.get(fault.status, default)
    return {"error": {"message": fault.message, "type": shown, "param": None, "code": code}}


def _added(index: int, item: Body) -> Body:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def _data(body: Body) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def _named(name: str, body: Body) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(body) + b"\n\n"
