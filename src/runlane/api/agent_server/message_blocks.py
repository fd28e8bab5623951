"""Messages as events of content blocks: start, deltas and finish of each block, then of the message.

The log contains chunks of messages and whole messages of nodes. Both become the same events, so that clients read them
in one way. Every event names its message, because several messages may be written at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

_ROLES: Final = {
    "AIMessageChunk": "ai",
    "HumanMessageChunk": "human",
    "SystemMessageChunk": "system",
    "ToolMessageChunk": "tool",
}
_CHUNK: Final = "Chunk"
_LAST: Final = "last"
_REASONING: Final = ("reasoning", "thinking")
_NAMED: Final = ("langgraph_node", "langgraph_step", "ls_provider", "ls_model_name", "run_id", "thread_id")


@dataclass(slots=True)
class _Block:
    """A block that is being written."""

    index: int
    content: dict[str, Any]


@dataclass(slots=True)
class _Message:
    """A message that is being written. The key of a block is the key that chunks use for it."""

    id: str
    blocks: dict[Any, _Block] = field(default_factory=dict[Any, _Block])
    usage: dict[str, Any] | None = None

    def add(self, block: dict[str, Any], key: Any) -> Iterator[dict[str, Any]]:
        """Yield the events for a piece of a block."""
        known = self.blocks.get(key)
        if known is None:
            known = self.blocks[key] = _Block(len(self.blocks), _skeleton(block))
            yield {"event": "content-block-start", "index": known.index, "content": dict(known.content)}
        delta = _delta(block)
        _merge(known.content, block)
        if delta is not None:
            yield {"event": "content-block-delta", "index": known.index, "delta": delta}

    def finish(self) -> Iterator[dict[str, Any]]:
        """Yield the events that end the message."""
        for block in self.blocks.values():
            yield {"event": "content-block-finish", "index": block.index, "content": _finalized(block.content)}
        yield {"event": "message-finish", **({} if self.usage is None else {"usage": self.usage})}


@dataclass(slots=True)
class MessageBlocks:
    """The incomplete messages of an attempt, by id."""

    _open: dict[str, _Message] = field(default_factory=dict[str, _Message])
    _complete: set[str] = field(default_factory=set[str])

    def add(self, chunk: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the events for a chunk or a whole message."""
        message_id = str(chunk.get("id") or "")
        if message_id in self._complete:
            return []
        events: list[dict[str, Any]] = []
        message = self._open.get(message_id)
        if message is None:
            message = self._open[message_id] = _Message(message_id)
            events.append(_start(chunk, metadata))
        for key, block in _blocks(chunk):
            events += message.add(block, key)
        usage = chunk.get("usage_metadata")
        if isinstance(usage, Mapping):
            message.usage = _sum(message.usage, cast("Mapping[str, Any]", usage))
        whole = not str(chunk.get("type", "")).endswith(_CHUNK)
        if whole or chunk.get("chunk_position") == _LAST:
            events += message.finish()
            del self._open[message_id]
            self._complete.add(message_id)
        return [_named(event, message_id) for event in events]

    def withdraw(self) -> list[dict[str, Any]]:
        """Return the events that end incomplete messages, which a later attempt writes again."""
        events = [_withdrawn(message_id) for message_id in self._open]
        self._open.clear()
        return events

    def finish(self) -> list[dict[str, Any]]:
        """Return the events that end messages whose run has ended before their last chunk."""
        events = [_named(event, one.id) for one in self._open.values() for event in one.finish()]
        self._open.clear()
        return events


def _named(event: dict[str, Any], message_id: str) -> dict[str, Any]:
    return event if event["event"] == "message-start" else {**event, "message_id": message_id}


def _withdrawn(message_id: str) -> dict[str, Any]:
    text = "The worker was lost while it wrote this message. Another one writes it again."
    return {"event": "error", "message_id": message_id, "code": "withdrawn", "message": text}


def _start(chunk: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(chunk.get("type", ""))
    shown = {name: metadata[name] for name in _NAMED if isinstance(metadata.get(name), str | int)}
    start: dict[str, Any] = {
        "event": "message-start",
        "role": _ROLES.get(kind, kind),
        "id": chunk.get("id") or "",
        "metadata": shown,
    }
    for name in ("name", "tool_call_id"):
        if chunk.get(name):
            start[name] = chunk[name]
    return start


def _blocks(chunk: Mapping[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the pieces of blocks that a chunk has, each with the key of its block."""
    content = chunk.get("content")
    if isinstance(content, str):
        if content:
            yield "text", {"type": "text", "text": content}
    elif isinstance(content, list):
        for place, item in enumerate(cast("list[Any]", content)):
            block = _block(item)
            yield (block["type"], block.get("index", place)), block
    calls = chunk.get("tool_call_chunks") or ()
    for place, call in enumerate(cast("Iterable[dict[str, Any]]", calls)):
        yield ("call", call.get("index", place)), {**call, "type": "tool_call_chunk"}
    if not calls and not str(chunk.get("type", "")).endswith(_CHUNK):
        for place, call in enumerate(cast("Iterable[dict[str, Any]]", chunk.get("tool_calls") or ())):
            yield ("call", place), {**call, "type": "tool_call"}


def _block(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        return {"type": "text", "text": str(item)}
    block = dict(cast("dict[str, Any]", item))
    if block.get("type") in _REASONING:
        text = block.get("reasoning") or block.get("thinking") or ""
        return {"type": "reasoning", "reasoning": text, **({"index": block["index"]} if "index" in block else {})}
    return {"type": "text", **block} if "text" in block else {"type": "non_standard", **block}


def _skeleton(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the beginning of a block, without the content of its deltas and its end."""
    shown = {name: value for name, value in block.items() if name not in ("index", "annotations")}
    match block["type"]:
        case "text":
            return {**shown, "text": ""}
        case "reasoning":
            return {**shown, "reasoning": ""}
        case "tool_call_chunk":
            return {"type": "tool_call_chunk", "id": block.get("id"), "name": block.get("name"), "args": ""}
        case "tool_call":
            return {**shown, "args": {}}
        case _:
            return {"type": block["type"]}


def _delta(block: Mapping[str, Any]) -> dict[str, Any] | None:
    match block["type"]:
        case "text" if block.get("text"):
            return {"type": "text-delta", "text": block["text"]}
        case "reasoning" if block.get("reasoning"):
            return {"type": "reasoning-delta", "reasoning": block["reasoning"]}
        case "tool_call_chunk" if block.get("args"):
            return {"type": "tool-call-delta", "args": block["args"]}
        case _:
            return None


def _merge(known: dict[str, Any], block: Mapping[str, Any]) -> None:
    kind = known["type"]
    joined = {"text": "text", "reasoning": "reasoning", "tool_call_chunk": "args"}.get(kind)
    for name, value in block.items():
        if name == "index" or value is None:
            continue
        known[name] = (known.get(name) or "") + value if name == joined else value


def _finalized(content: Mapping[str, Any]) -> dict[str, Any]:
    if content["type"] != "tool_call_chunk":
        return dict(content)
    named = {"id": content.get("id"), "name": content.get("name")}
    text = content.get("args") or "{}"
    try:
        parsed = json.loads(text)
    except ValueError:
        return {"type": "invalid_tool_call", **named, "args": text, "error": "The arguments are not valid JSON."}
    return {"type": "tool_call", "id": named["id"] or "", "name": named["name"] or "", "args": parsed}


def _sum(known: Mapping[str, Any] | None, more: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = dict(known or {})
    for name, value in more.items():
        before = merged.get(name)
        merged[name] = before + value if isinstance(before, int) and isinstance(value, int) else value
    return merged
