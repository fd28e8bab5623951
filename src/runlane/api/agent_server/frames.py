"""SSE frames for graphs: an event of a run's log becomes the frames that LangGraph's clients expect.

The id of a frame is the number of its event, so a reader can resume at the exact event through any server. Only the
last frame of an event has the id: a reader that loses its connection between two frames of an event receives both
again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import orjson

from runlane.api.agent_server.message_assembly import MessageAssembly
from runlane.domain.events import EventType, StoredEvent
from runlane.domain.graph import StreamMode
from runlane.domain.text import load_json

# The data of the event is valid JSON as stored, so it is copied without parsing.
_STORED: Final = re.compile(r'\{"event":("(?:[^"\\]|\\.)*"),"data":')
_METADATA: Final = "metadata"
_ALWAYS: Final = frozenset({_METADATA, "error"})
_MESSAGES: Final = "messages"


class GraphEncoding:
    """The frames for one reader. `after` is the number of the last event that the reader has received.

    A reader of the mode `messages` reads all events, because a message contains earlier chunks. It receives only the
    frames after its own number.
    """

    __slots__ = ("_after", "_assembles", "_assembly", "_names", "_passes_messages", "_prefix")

    def __init__(self, modes: Iterable[str], after: int = 0, prefix: str = "") -> None:
        wanted = frozenset(modes)
        self._assembles = StreamMode.MESSAGES.value in wanted
        self._passes_messages = StreamMode.MESSAGES_TUPLE.value in wanted
        self._names = _names(wanted)
        self._after = after
        self._prefix = prefix
        self._assembly: MessageAssembly | None = None

    @property
    def reads_after(self) -> int:
        """Return the number after which events must be read."""
        return 0 if self._assembles else self._after

    def event(self, run_id: str, line: StoredEvent) -> bytes:
        """Return the frames of an event."""
        found = wire_event(run_id, line)
        if found is None:
            return b""
        name, data = found
        mode = name.partition("|")[0]
        frames: list[tuple[str, str]] = []
        if mode == _MESSAGES:
            frames = self._messages(name, data)
        elif mode in self._names:
            if mode == _METADATA:
                # The new attempt produces the incomplete messages of the lost attempt again.
                self._assembly = None
            frames = [(name, data)]
        if line.seq <= self._after or not frames:
            return b""
        *first, (last_name, last_data) = frames
        head = "".join(f"event: {event}\ndata: {text}\n\n" for event, text in first)
        return f"{head}event: {last_name}\ndata: {last_data}\nid: {self._prefix}{line.seq}\n\n".encode()

    def frames(self, events: Iterable[tuple[str, Any]], number: str) -> bytes:
        """Return the frames for pairs of a mode and its data, which are not stored in this form."""
        found: list[tuple[str, str]] = []
        for mode, data in events:
            if mode == _MESSAGES:
                found += self._messages(mode, orjson.dumps(data).decode())
            elif mode in self._names:
                found.append((mode, orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS).decode()))
        if not found:
            return b""
        *first, (name, text) = found
        head = "".join(f"event: {event}\ndata: {body}\n\n" for event, body in first)
        return f"{head}event: {name}\ndata: {text}\nid: {self._prefix}{number}\n\n".encode()

    def gap(self, run_id: str, first_seq: int) -> bytes:
        """Return the frame which announces that earlier events are no longer stored."""
        if first_seq <= self._after + 1:
            return b""
        return control_frame("truncated", {"run_id": run_id, "first_seq": first_seq})

    def _messages(self, name: str, data: str) -> list[tuple[str, str]]:
        frames = [(name, data)] if self._passes_messages else []
        if self._assembles:
            chunk, metadata = load_json(data)
            namespace = name.removeprefix(_MESSAGES)
            if self._assembly is None:
                self._assembly = MessageAssembly()
            for event, value in self._assembly.add(chunk, metadata):
                frames.append((f"{event}{namespace}", orjson.dumps(value).decode()))
        return frames


@lru_cache(maxsize=256)
def _names(modes: frozenset[str]) -> frozenset[str]:
    """Return the names of the events that a reader of these modes receives unchanged. Readers share the set."""
    return (modes - {StreamMode.MESSAGES.value, StreamMode.MESSAGES_TUPLE.value}) | _ALWAYS


def wire_event(run_id: str, line: StoredEvent) -> tuple[str, str] | None:
    """Return the name and the JSON of the client's event for an entry of the log; None if it has none.

    The claim of an attempt becomes `metadata`, so a stream begins when the claim is stored.
    """
    if line.type == EventType.PICKED_UP:
        attempt = load_json(line.data).get("tries", line.attempt)
        return _METADATA, orjson.dumps({"run_id": run_id, "attempt": attempt}).decode()
    if line.type != EventType.GRAPH_STREAM:
        return None
    name, data = split_event(line.data)
    # Workers of earlier versions stored the metadata as a separate event.
    return None if name == _METADATA else (name, data)


def split_event(stored: str) -> tuple[str, str]:
    """Return the name of a stored event of a graph, and its data as JSON."""
    found = _STORED.match(stored)
    if found is not None:
        return load_json(found[1]), stored[found.end() : -1]
    event: dict[str, Any] = load_json(stored)
    return event["event"], orjson.dumps(event.get("data")).decode()


def control_frame(name: str, data: Any) -> bytes:
    """Return a frame without an id, because a reader must not resume after it."""
    return f"event: {name}\ndata: {orjson.dumps(data).decode()}\n\n".encode()
