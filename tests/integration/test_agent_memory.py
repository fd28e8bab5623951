"""Agents and memory: what one conversation stores, another one recalls."""

from __future__ import annotations

import re
from typing import Any

import pytest

from runlane import Status
from runlane.agents.compaction import estimate_tokens
from runlane.definitions.schema.definition import Agent
from runlane.domain.memory import Memory
from runlane.errors import InvalidDefinitions
from runlane.llm.models import Delta, ModelContext, ModelReply, ModelRequest, ToolCall
from tests.integration.process import Process
from tests.integration.test_orchestrations import sync

WINDOW = 4_000
FILLER = "and the talk continues without an end. " * 12


class Assistant:
    """Remembers what it is asked to, recalls before it answers questions, and keeps a context document."""

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []

    def __call__(self, name: str, scene: ModelContext, /) -> Assistant:
        return self

    async def credential(self) -> str:
        return ""

    async def answer(self, request: ModelRequest, delta: Delta | None = None) -> ModelReply:
        assert estimate_tokens(request.messages, request.instructions, request.offers) <= WINDOW
        self.requests.append(request)
        prompt, last = request.prompt, request.messages[-1]
        if prompt.startswith("Summarize this conversation"):
            return ModelReply("They talked about many things.")
        if prompt.startswith("# Context document"):
            known = re.findall(r"name is (\w+)", prompt)
            return ModelReply(f"The user's name is {known[-1]}." if known else "Nothing is known.")
        if last.role == "tool":
            return ModelReply(last.text)
        if prompt.startswith("Remember: "):
            return self._call("remember", text=prompt.removeprefix("Remember: "))
        if prompt.startswith("What "):
            return self._call("recall", query=prompt)
        if found := re.match(r"Correct (\S+): (.*)", prompt):
            return self._call("correct", entry_id=found[1], text=found[2], reason="changed")
        if found := re.match(r"Forget (\S+)", prompt):
            return self._call("forget", entry_id=found[1])
        return ModelReply(f"I see. {FILLER}")

    def _call(self, name: str, **arguments: Any) -> ModelReply:
        return ModelReply(calls=(ToolCall(name, arguments, "c1"),))


@pytest.fixture
def assistant(process: Process) -> Assistant:
    model = Assistant()
    process.app.models.register("assistant", model)
    return model


def agent(title: str = "shared", **more: Any) -> Agent:
    memory = {"title": title, **more.pop("memory", {})}
    return Agent.model_validate({"id": "friend", "model": "assistant", "memory": memory, **more})


async def say(process: Process, message: str, session_id: str | None = None, **values: Any) -> tuple[Any, str]:
    """Send a message; return the result of the turn and the session."""
    posted = await process.app.chat("friend", message, session_id, values or None)
    run = await process.app.wait(posted.run_id)
    assert run.status is Status.COMPLETED, run.error
    return run.result, posted.session_id


async def memories(process: Process) -> dict[str, Memory]:
    service = await process.app.memory()
    return {memory.title: memory for memory in await service.list_memories("default")}


async def test_a_fact_of_the_third_turn_is_recalled_after_many(process: Process, assistant: Assistant) -> None:
    compaction = {"window_tokens": WINDOW, "summary_tokens": 100}
    await sync(process, agent("{{session_id}}", compaction=compaction, memory={"context": "none"}))
    await process.start()
    session_id: str | None = None
    for number in range(1, 31):
        message = "Remember: The access code is mango-4711." if number == 3 else f"Message {number}. {FILLER}"
        _, session_id = await say(process, message, session_id)
    assert all("mango" not in message.text for message in assistant.requests[-1].messages)
    answer, _ = await say(process, "What was the access code?", session_id)
    assert "mango-4711" in answer
    assert [memory.vault_id for memory in (await memories(process)).values()] != []


async def test_entries_are_corrected_and_forgotten(process: Process, assistant: Assistant) -> None:
    await sync(process, agent(memory={"context": "none"}))
    await process.start()
    stored, session_id = await say(process, "Remember: The meeting is on Monday.")
    entry = re.search(r"entry_[0-9a-f]{8,}", stored)
    assert entry is not None
    corrected, _ = await say(process, f"Correct {entry[0]}: The meeting is on Friday.", session_id)
    found, _ = await say(process, "What day is the meeting?", session_id)
    assert "Friday" in found
    assert "Monday" not in found
    newer = re.search(r"entry_[0-9a-f]{8,}", corrected)
    assert newer is not None
    await say(process, f"Forget {newer[0]}", session_id)
    gone, _ = await say(process, "What day is the meeting?", session_id)
    assert "Friday" not in gone
    failed, _ = await say(process, "Forget entry_none", session_id)
    assert "does not exist" in failed or "No entry" in failed


async def test_another_conversation_reads_the_context(process: Process, assistant: Assistant) -> None:
    await sync(process, agent("user-{{user_id}}"))
    await process.start()
    await say(process, "Hello, my name is Ada", user_id="7")
    await say(process, "Hi, my name is Bob", user_id="8")
    assert {"user-7", "user-8"} <= set(await memories(process))
    assistant.requests.clear()
    _, _ = await say(process, "Good morning", user_id="7")
    first = assistant.requests[0].instructions
    assert "The user's name is Ada." in first
    assert "Bob" not in first


async def test_titles_that_are_not_valid_stay_apart(process: Process, assistant: Assistant) -> None:
    await sync(process, agent("{{user_id}}", memory={"context": "none"}))
    await process.start()
    for user in ("ada@example.com", "ada.example.com", "ada example com"):
        await say(process, f"Remember: I am {user}", user_id=user)
    titles = set(await memories(process))
    assert len(titles) == 3
    assert all(title.startswith("ada-example-com-") for title in titles)
    # A caller computes the title of the memory of another one, and gives it as its own name.
    for title in titles:
        answer, _ = await say(process, "What is known?", user_id=title)
        assert "I am" not in answer
    assert len(await memories(process)) == 6


@pytest.mark.parametrize(
    ("memory", "problem"),
    [
        ({}, "title"),
        ({"title": "x", "vault": "a b"}, "vault"),
        ({"title": "x", "tools": ["remember", "delete"]}, "tools"),
        ({"title": "x", "update_every_turns": 0}, "update_every_turns"),
    ],
)
async def test_rules_of_a_memory_are_checked(process: Process, memory: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidDefinitions, match=problem):
        await process.app.sync({"agents": [{"id": "friend", "model": "scripted", "answers": ["x"], "memory": memory}]})
