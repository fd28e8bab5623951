"""The events of a run of an agent or orchestration as events of a graph: messages, updates and values.

Live text becomes chunks of a message. The stored event of the turn contains the whole text, so a chunk with the
remaining text closes the message. After a takeover the model may write different text: then the chunks continue under
another id, and `values` replaces the text that a client has displayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from runlane.domain.events import EventType, LiveType
from runlane.domain.native_thread import (
    AGENT_NODE,
    MESSAGES,
    TOOLS_NODE,
    RunMessages,
    ThreadMessage,
    ai_message,
    human_message,
    is_own_turn,
    turn_message_id,
)
from runlane.domain.run import AGENT, Status
from runlane.domain.text import dump_json
from runlane.templates.template import text_of

INTERRUPT: Final = "__interrupt__"
# A mode of LangGraph and its data.
GraphEvent = tuple[str, Any]


@dataclass(slots=True)
class _Live:
    """The text of the current turn as sent to the client. `number` is incremented when the text is replaced."""

    answer: str = ""
    known: str = ""
    sent: str = ""
    number: int = 1


@dataclass(slots=True)
class NativeFold:
    """The state of a thread while a run changes it.

    `skip` is the length of the open message's text that the reader has.
    """

    run_id: str
    target: str
    history: Sequence[ThreadMessage]
    message: str
    skip: int = 0
    _own: RunMessages = field(init=False)
    _live: _Live = field(default_factory=_Live)
    _attempt: int = 0
    _result: Any = None

    def __post_init__(self) -> None:
        first = [human_message(self.run_id, self.message)] if self.message else []
        self._own = RunMessages(self.run_id, first)

    @property
    def values(self) -> dict[str, Any]:
        """The state so far."""
        more = {} if self._result is None or self.target.startswith(AGENT) else {"output": self._result}
        return {**more, MESSAGES: [*self.history, *self._own.messages]}

    @property
    def open_characters(self) -> int:
        """The number of characters of the open message that were returned."""
        return len(self._live.sent)

    def live(self, event: Mapping[str, Any]) -> list[GraphEvent]:
        """Return the events for a live event."""
        if event["type"] != LiveType.TEXT or not is_own_turn(event) or event["attempt"] < self._attempt:
            return []
        live = self._live
        if event["offset"] == 0 and event["answer"] != live.answer:
            self._live = live = _Live(event["answer"])
        if event["answer"] != live.answer or event["offset"] > len(live.known):
            return []  # an earlier piece is missing; the stored event contains the whole text
        live.known = live.known[: event["offset"]] + event["text"]
        return self._extend(live.known)

    def stored(self, event: Mapping[str, Any]) -> list[GraphEvent]:
        """Return the events for a stored event."""
        kind = event["type"]
        self._attempt = max(self._attempt, event.get("attempt", 0))
        if kind == EventType.PICKED_UP:
            # The text of an open answer is published again. The text that the client has received is kept.
            self._live.known = ""
            started: list[GraphEvent] = [("metadata", {"run_id": self.run_id, "attempt": event["attempt"]})]
            return [*started, ("values", self.values)]
        if kind == EventType.FINAL and "path" not in event:
            self._result = event["response"]
            return []
        if kind == EventType.DONE:
            return self._end(event)
        if kind == EventType.STEP_COMPLETE and not self.target.startswith(AGENT):
            return [("updates", {event.get("orch_step_id") or event.get("path"): {"status": "completed"}})]
        message = self._own.add(kind, event)
        return [] if message is None else self._added(message, event)

    def asked(self, interrupts: Sequence[Mapping[str, Any]]) -> list[GraphEvent]:
        """Return the events for the questions of a paused run."""
        return [("updates", {INTERRUPT: interrupts}), ("values", {**self.values, INTERRUPT: interrupts})]

    def _added(self, message: ThreadMessage, event: Mapping[str, Any]) -> list[GraphEvent]:
        node = TOOLS_NODE if message["type"] == "tool" else AGENT_NODE
        events: list[GraphEvent] = []
        if message["type"] == "ai":
            if event.get("answer") != self._live.answer:
                self._live = _Live(event["answer"])
            events += self._extend(message["content"])
            events.append(("messages", [self._chunk("", message), self._metadata(AGENT_NODE)]))
            self._live = _Live()
        else:
            events.append(("messages", [message, self._metadata(node)]))
        return [*events, ("updates", {node: {MESSAGES: [message]}}), ("values", self.values)]

    def _end(self, event: Mapping[str, Any]) -> list[GraphEvent]:
        if event["status"] != Status.COMPLETED or self._result is None:
            return []
        message = self._own.add_result(text_of(self._result))
        if message is None:
            return [] if self.target.startswith(AGENT) else [("values", self.values)]
        return [
            ("messages", [message, self._metadata(AGENT_NODE)]),
            ("updates", {AGENT_NODE: {MESSAGES: [message]}}),
            ("values", self.values),
        ]

    def _extend(self, text: str) -> list[GraphEvent]:
        """Return the events for the text of the open message that the client does not have."""
        live = self._live
        if self.skip:
            if len(text) <= self.skip:
                return []
            live.sent, self.skip = text[: self.skip], 0
        if live.sent.startswith(text):
            return []
        if not text.startswith(live.sent):
            live.sent, live.number = "", live.number + 1
        new, live.sent = text[len(live.sent) :], text
        return [("messages", [self._chunk(new), self._metadata(AGENT_NODE)])]

    def _chunk(self, text: str, whole: ThreadMessage | None = None) -> ThreadMessage:
        """Return a piece of the open message or, with `whole`, its last piece."""
        suffix = "" if self._live.number == 1 else f"-{self._live.number}"
        chunk = ai_message(turn_message_id(self.run_id, self._live.answer) + suffix, text)
        chunk |= {"type": "AIMessageChunk", "tool_call_chunks": []}
        if whole is not None:
            chunk |= {name: whole[name] for name in ("tool_calls", "usage_metadata")}
            chunk["chunk_position"] = "last"
            chunk["tool_call_chunks"] = [
                {
                    "name": call["name"],
                    "args": dump_json(call["args"]),
                    "id": call["id"],
                    "index": index,
                    "type": "tool_call_chunk",
                }
                for index, call in enumerate(whole["tool_calls"])
            ]
        return chunk

    def _metadata(self, node: str) -> dict[str, Any]:
        return {"run_id": self.run_id, "langgraph_node": node, "graph_id": self.target}
