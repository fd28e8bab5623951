"""Messages from their chunks. The mode `messages` sends each message as it is so far; the log stores only chunks.

The reader assembles them, so that the stored bytes grow with the length of a message, not with its square.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final, cast

_CHUNK: Final = "Chunk"
_MESSAGE_TYPES: Final = {
    "AIMessageChunk": "ai",
    "HumanMessageChunk": "human",
    "SystemMessageChunk": "system",
    "ToolMessageChunk": "tool",
    "FunctionMessageChunk": "function",
    "ChatMessageChunk": "chat",
}
_OF_CHUNKS: Final = ("tool_call_chunks", "chunk_position")
_LAST: Final = "last"


@dataclass(slots=True)
class MessageAssembly:
    """The incomplete messages of an attempt by id, and the ids that were announced."""

    _open: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    _announced: set[str] = field(default_factory=set[str])

    def add(self, chunk: dict[str, Any], metadata: Any) -> list[tuple[str, Any]]:
        """Return the events for a chunk or a whole message: its metadata, then the message so far."""
        message_id: str = chunk.get("id") or ""
        events: list[tuple[str, Any]] = []
        if message_id not in self._announced:
            self._announced.add(message_id)
            events.append(("messages/metadata", {message_id: {"metadata": metadata}}))
        if not str(chunk.get("type", "")).endswith(_CHUNK):
            self._open.pop(message_id, None)
            return [*events, ("messages/complete", [chunk])]
        known = self._open.get(message_id)
        merged = dict(chunk) if known is None else _merged(known, chunk)
        self._open[message_id] = merged
        if chunk.get("chunk_position") == _LAST:
            del self._open[message_id]
        return [*events, ("messages/partial", [_message(merged)])]


def _message(merged: dict[str, Any]) -> dict[str, Any]:
    """Return assembled chunks as a message."""
    shown = {name: value for name, value in merged.items() if name not in _OF_CHUNKS}
    shown["type"] = _MESSAGE_TYPES.get(merged["type"], merged["type"])
    chunks = cast("list[dict[str, Any]]", merged.get("tool_call_chunks") or [])
    if chunks:
        shown["tool_calls"] = [
            {"name": item.get("name") or "", "args": _arguments(item), "id": item.get("id"), "type": "tool_call"}
            for item in chunks
        ]
    return shown


def _arguments(item: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a tool call; an empty object while the call is incomplete."""
    try:
        parsed = json.loads(item.get("args") or "{}")
    except ValueError:
        return {}
    return cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}


def _merged(known: dict[str, Any], chunk: dict[str, Any]) -> dict[str, Any]:
    merged = {**known, **{name: value for name, value in chunk.items() if value is not None}}
    merged["content"] = _content(known.get("content"), chunk.get("content"))
    for name in ("additional_kwargs", "response_metadata"):
        merged[name] = {**(known.get(name) or {}), **(chunk.get(name) or {})}
    merged["tool_call_chunks"] = _tool_calls(known.get("tool_call_chunks") or [], chunk.get("tool_call_chunks") or [])
    merged["usage_metadata"] = _usage(known.get("usage_metadata"), chunk.get("usage_metadata"))
    return merged


def _content(known: Any, more: Any) -> Any:
    if isinstance(known, str) and isinstance(more, str):
        return known + more
    blocks = [*_blocks(known)]
    for block in _blocks(more):
        index = block.get("index")
        place = next((i for i, one in enumerate(blocks) if index is not None and one.get("index") == index), None)
        if place is None:
            blocks.append(block)
        else:
            blocks[place] = _block(blocks[place], block)
    return blocks


def _blocks(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    items = cast("list[Any]", content) if isinstance(content, list) else []
    return [
        cast("dict[str, Any]", item) if isinstance(item, dict) else {"type": "text", "text": item} for item in items
    ]


def _block(known: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    merged = {**known, **more}
    for name, value in more.items():
        before = known.get(name)
        if name not in ("type", "index", "id") and isinstance(before, str) and isinstance(value, str):
            merged[name] = before + value
    return merged


def _tool_calls(known: list[dict[str, Any]], more: list[dict[str, Any]]) -> list[dict[str, Any]]:
    merged = list(known)
    for chunk in more:
        index = chunk.get("index")
        place = next((i for i, one in enumerate(merged) if index is not None and one.get("index") == index), None)
        if place is None:
            merged.append(dict(chunk))
            continue
        before = merged[place]
        merged[place] = {
            **before,
            "name": (before.get("name") or "") + (chunk.get("name") or ""),
            "args": (before.get("args") or "") + (chunk.get("args") or ""),
            "id": before.get("id") or chunk.get("id"),
        }
    return merged


def _usage(known: Any, more: Any) -> Any:
    if not isinstance(known, dict) or not isinstance(more, dict):
        return cast("Any", known if more is None else more)
    merged = dict(cast("dict[str, Any]", known))
    for name, value in cast("dict[str, Any]", more).items():
        before = merged.get(name)
        if isinstance(before, int) and isinstance(value, int):
            merged[name] = before + value
        else:
            merged[name] = _usage(before, value)
    return merged
