"""Agents and orchestrations as graphs: their names, and the messages of their runs in the shapes of LangGraph.

The id of such a graph is the target of its runs, such as `agent:helper`. The ids of messages follow from the run and
the turn of the model, so that live text, the stream after a takeover and the stored state name a message alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from runlane.domain.events import EventType
from runlane.domain.run import AGENT, ORCHESTRATION

MESSAGES: Final = "messages"
AGENT_NODE: Final = "agent"
TOOLS_NODE: Final = "tools"
# The path of an agent's step, and the keys of its own model turns. Turns of agents that it calls have other keys.
_PATH: Final = "answer"
_TURN: Final = re.compile(r"[0-9]+/model/[0-9]+")
# The call of this name is the answer of an agent with a schema.
_FINAL_ANSWER: Final = "final_answer"

ThreadMessage = dict[str, Any]


def is_native(graph_id: str) -> bool:
    """Return whether a graph is an agent or an orchestration of Runlane."""
    return graph_id.startswith((AGENT, ORCHESTRATION))


def native_name(graph_id: str) -> str:
    """Return the id of the definition of a native graph."""
    return graph_id.partition(":")[2]


def native_candidates(name: str) -> tuple[str, str]:
    """Return the ids of the native graphs that clients may mean by the name of a definition."""
    return f"{AGENT}{name}", f"{ORCHESTRATION}{name}"


def is_own_turn(event: Mapping[str, Any]) -> bool:
    """Return whether an event belongs to a model turn of the agent itself."""
    return event.get("path") == _PATH and _TURN.fullmatch(event.get("answer", "")) is not None


def human_message(run_id: str, text: str) -> ThreadMessage:
    """Return the message that a run answers."""
    return {**_base(f"{run_id}-human", text), "type": "human", "example": False}


def ai_message(message_id: str, text: str, calls: Sequence[Mapping[str, Any]] = (), usage: Any = None) -> ThreadMessage:
    """Return a message of the model."""
    return {
        **_base(message_id, text),
        "type": "ai",
        "tool_calls": [dict(call) for call in calls],
        "invalid_tool_calls": [],
        "usage_metadata": usage,
    }


def turn_message_id(run_id: str, answer: str) -> str:
    """Return the id of the message of a turn of the model."""
    return f"{run_id}-{answer.replace('/', '-')}"


def _base(message_id: str, content: str) -> ThreadMessage:
    return {"content": content, "additional_kwargs": {}, "response_metadata": {}, "name": None, "id": message_id}


@dataclass(slots=True)
class RunMessages:
    """The messages of one run, from its stored events."""

    run_id: str
    messages: list[ThreadMessage] = field(default_factory=list[ThreadMessage])
    _calls: set[str] = field(default_factory=set[str])

    def add(self, kind: str, data: Mapping[str, Any]) -> ThreadMessage | None:
        """Add a stored event; return the message that it is, if any."""
        if kind == EventType.MODEL_RESPONSE and is_own_turn(data):
            return self._append(self._of_model(data))
        if kind == EventType.TOOL_RESULT and data.get("call_id") in self._calls:
            return self._append(self._of_tool(data))
        return None

    def add_result(self, text: str) -> ThreadMessage | None:
        """Add the result of a completed run, unless the last message of the model is the same text."""
        last = next((item for item in reversed(self.messages) if item["type"] == "ai"), None)
        if not text or (last is not None and last["content"] == text):
            return None
        return self._append(ai_message(f"{self.run_id}-result", text))

    def _append(self, message: ThreadMessage) -> ThreadMessage:
        self.messages.append(message)
        return message

    def _of_model(self, data: Mapping[str, Any]) -> ThreadMessage:
        given = cast("Sequence[Mapping[str, Any]]", data.get("tool_calls") or ())
        calls: list[dict[str, Any]] = [
            {"name": call["name"], "args": dict(call["arguments"]), "id": call["id"], "type": "tool_call"}
            for call in given
            if call["name"] != _FINAL_ANSWER
        ]
        self._calls |= {call["id"] for call in calls}
        tokens_in, tokens_out = int(data.get("tokens_in") or 0), int(data.get("tokens_out") or 0)
        usage = {"input_tokens": tokens_in, "output_tokens": tokens_out, "total_tokens": tokens_in + tokens_out}
        return ai_message(turn_message_id(self.run_id, data["answer"]), data.get("text") or "", calls, usage)

    def _of_tool(self, data: Mapping[str, Any]) -> ThreadMessage:
        return {
            **_base(f"{self.run_id}-{data['call_id']}", data.get("preview") or ""),
            "type": "tool",
            "name": data.get("tool_name"),
            "tool_call_id": data["call_id"],
            "artifact": None,
            "status": "error" if data.get("failed") else "success",
        }
