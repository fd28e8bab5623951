"""Runs of an agent: their single step, and the earlier turns of its chat.

An agent that is run directly uses the same machine as every orchestration, so its journal, its approvals and its limits
are the same. Earlier turns are bounded in size: a conversation may last for years, a prompt may not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from runlane.definitions.schema.definition import Agent, Orchestration
from runlane.domain.conversation import EarlierMessage
from runlane.domain.run import AGENT, ORCHESTRATION, Status
from runlane.llm.models import Message
from runlane.store.chat.turns import Turn
from runlane.templates.template import text_of

ANSWER: Final = "answer"
MAX_MESSAGE_CHARACTERS: Final = 20_000
MAX_HISTORY_CHARACTERS: Final = 200_000
# The bound for messages after the last summary of a chat; older messages beyond it are left out.
MAX_COMPACTED_CHARACTERS: Final = 2_000_000
MAX_COMPACTED_TURNS: Final = 1000
_TIMEOUT_MINUTES: Final = 30.0
_STEPS: Final = 10_000_000
_WHY: Final[Mapping[Status, str]] = {
    Status.CANCELLED: "it was cancelled before there was an answer",
    Status.FAILED: "the attempt to answer it failed",
}


class PinnedLookup(Protocol):
    """The definitions that a run is pinned to."""

    @property
    def orchestrations(self) -> Mapping[str, Orchestration]: ...

    @property
    def agents(self) -> Mapping[str, Agent]: ...


def root_of(target: str, request: Mapping[str, Any], pinned: PinnedLookup) -> Orchestration:
    """Return the orchestration that a run executes."""
    if not target.startswith(AGENT):
        return pinned.orchestrations[target.removeprefix(ORCHESTRATION)]
    agent = pinned.agents[target.removeprefix(AGENT)]
    return single_step(agent, pinned, request.get("input") or {})


def single_step(agent: Agent, pinned: PinnedLookup, given: Mapping[str, Any]) -> Orchestration:
    """Return an orchestration with one step that calls the agent. Its id is not a valid id of a definition."""
    inner = pinned.orchestrations.get(agent.orchestration_id or "")
    minutes = _TIMEOUT_MINUTES if inner is None else inner.timeout_minutes
    step = {
        "id": ANSWER,
        "type": "agent",
        "name": agent.name or agent.id,
        "agent_id": agent.id,
        "max_turns": agent.max_turns,
        "timeout_seconds": minutes * 60,
        "output_key": ANSWER,
    }
    body: dict[str, Any] = {
        "id": "agent",
        "name": agent.name or agent.id,
        "steps": [step],
        "timeout_minutes": minutes,
        "max_total_turns": _STEPS,
    }
    if inner is not None:
        body["max_state_bytes"] = inner.max_state_bytes
    alone = Orchestration.model_validate(body)
    # Copies are not validated, because the id and the keys of the input need not be valid in a definition.
    step_copy = alone.steps[0].model_copy(update={"input_keys": list(given)})
    return alone.model_copy(update={"id": f"{AGENT}{agent.id}", "steps": [step_copy]})


def conversation_messages(
    turns: Sequence[Turn], given: Sequence[EarlierMessage] = (), max_characters: int = MAX_HISTORY_CHARACTERS
) -> list[Message]:
    """Return the newest messages of earlier turns that are within the bound, oldest first.

    `given` are the messages in the requests for the run and for its earlier turns. Those of the run are all kept,
    because the request was checked against the bound of inputs.
    """
    kept: list[list[Message]] = []
    room = max_characters
    for turn in reversed(turns):
        messages = [*_given_messages(given, turn.turn), *_turn_messages(turn)]
        room -= sum(len(message.text) for message in messages)
        if room < 0:
            break
        kept.append(messages)
    return [message for messages in reversed(kept) for message in messages] + _given_messages(given, None)


def _given_messages(given: Sequence[EarlierMessage], turn: int | None) -> list[Message]:
    # System messages are instructions, which the model receives apart from the conversation.
    return [
        Message(message.role, message.text, turn=turn)
        for message in given
        if message.turn == turn and message.role != "system"
    ]


def _turn_messages(turn: Turn) -> list[Message]:
    message = _cut(turn.message)
    if turn.status is Status.COMPLETED:
        answer = _cut(text_of(turn.answer))
        return [Message("user", message, turn=turn.turn), Message("assistant", answer, turn=turn.turn)]
    # Not a message of the assistant, because the assistant did not write it.
    why = _WHY.get(turn.status, "there was no answer yet")
    return [Message("user", f"{message}\n\n[This message was not answered: {why}.]", turn=turn.turn)]


def _cut(text: str) -> str:
    if len(text) <= MAX_MESSAGE_CHARACTERS:
        return text
    return f"{text[:MAX_MESSAGE_CHARACTERS]}\n[abridged: {MAX_MESSAGE_CHARACTERS} of {len(text)} characters]"
