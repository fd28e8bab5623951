"""Conversations that a request carries: earlier messages, further instructions and settings of model calls.

They are stored in the plan of the run, so every attempt reads the same ones. A turn of a chat also carries the messages
that requests for earlier turns had, because the session stores one message per turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

Role = Literal["system", "user", "assistant"]
# The field of a run's plan with the conversation of its request.
PLAN_KEY: Final = "conversation"


@dataclass(frozen=True, slots=True)
class EarlierMessage:
    """An earlier message. `turn` is the earlier chat turn whose request had it; None for the request of this run."""

    role: Role
    text: str
    turn: int | None = None


@dataclass(frozen=True, slots=True)
class RequestConversation:
    """The additions of a request to the run of an agent. `settings` replace fields of the agent's ModelSettings."""

    messages: Sequence[EarlierMessage] = ()
    instructions: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __bool__(self) -> bool:
        return bool(self.messages or self.instructions or self.settings)

    @property
    def all_instructions(self) -> str:
        """Return the system messages and the instructions of the request, in this order."""
        systems = [message.text for message in self.messages if message.role == "system"]
        return "\n\n".join(text for text in (*systems, self.instructions) if text)

    def of_turn(self, turn: int) -> tuple[EarlierMessage, ...]:
        """Return the messages for a request of a later turn, if this one was of this turn."""
        return tuple(replace(message, turn=message.turn or turn) for message in self.messages)

    def to_plan(self) -> dict[str, Any]:
        """Serialize it for the plan of a run."""
        plan: dict[str, Any] = {
            "messages": [[message.role, message.text, message.turn] for message in self.messages],
            "instructions": self.instructions,
            "settings": dict(self.settings),
        }
        return {name: value for name, value in plan.items() if value}

    @classmethod
    def from_plan(cls, plan: Mapping[str, Any]) -> RequestConversation:
        """Parse it from the plan of a run; empty if the request had none."""
        stored: Mapping[str, Any] = plan.get(PLAN_KEY) or {}
        messages = tuple(EarlierMessage(role, text, turn) for role, text, turn in stored.get("messages", ()))
        return cls(messages, stored.get("instructions", ""), stored.get("settings", {}))
