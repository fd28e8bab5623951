"""Compaction: long conversations stay inside the model's window, and what was summarized is kept and shown."""

from __future__ import annotations

import re
from typing import Any

import pytest

from runlane import Status
from runlane.agents.compaction import estimate_tokens, is_summary
from runlane.definitions.schema.definition import Agent, Tool
from runlane.errors import InvalidDefinitions
from runlane.llm.models import Delta, ModelContext, ModelReply, ModelRequest, ToolCall
from runlane.store.chat.turns import read_turns
from tests.integration.process import Process
from tests.integration.test_orchestrations import sync
from tests.scale import scaled

WINDOW = 16_000
TURNS = scaled(300, 300)
# The conversation passes the window several times.
FILLER = "and the talk continues without an end. " * 20
FACT = "The access code is mango-4711."


class Listener:
    """Answers every message, and writes summaries that keep every code that it reads."""

    def __init__(self, count: float = 1.0) -> None:
        self.requests: list[ModelRequest] = []
        self.summaries: list[ModelRequest] = []
        self._count = count

    def __call__(self, name: str, scene: ModelContext, /) -> Listener:
        return self

    async def credential(self) -> str:
        return ""

    async def answer(self, request: ModelRequest, delta: Delta | None = None) -> ModelReply:
        text = "\n".join(message.text for message in request.messages)
        tokens = int(estimate_tokens(request.messages, request.instructions, request.offers) * self._count)
        assert tokens <= WINDOW, f"a request of {tokens} tokens"
        if request.prompt.startswith("Summarize this conversation"):
            self.summaries.append(request)
            found = ", ".join(dict.fromkeys(re.findall(r"mango-\d+", text)))
            return ModelReply(f"Codes: {found}.", tokens_in=tokens, tokens_out=5, model="listener")
        self.requests.append(request)
        if "code?" in request.prompt:
            found = re.search(r"mango-\d+", text)
            return ModelReply(found[0] if found else "unknown", tokens_in=tokens, model="listener")
        return ModelReply(f"I see. {FILLER}", tokens_in=tokens, tokens_out=9, model="listener")


def agent(**more: Any) -> Agent:
    compaction = {"window_tokens": WINDOW, "summary_tokens": 500, **more}
    return Agent.model_validate({"id": "friend", "model": "listener", "compaction": compaction})


@pytest.mark.parametrize("count", [1.0, 1.6])
async def test_a_conversation_of_hundreds_of_turns_stays_in_the_window(process: Process, count: float) -> None:
    listener = Listener(count)
    process.app.models.register("listener", listener)
    await sync(process, agent())
    await process.start()
    # The whole length once; the databases differ only in how a summary is found.
    turns = TURNS if count == 1.0 and process.app.settings.sqlite_path is not None else 60
    session_id: str | None = None
    for number in range(1, turns + 1):
        message = FACT if number == 3 else f"Message {number}. {FILLER}"
        posted = await process.app.chat("friend", message, session_id)
        session_id = posted.session_id
        run = await process.app.wait(posted.run_id)
        assert run.status is Status.COMPLETED, run.error
    posted = await process.app.chat("friend", "What was the code?", session_id)
    assert (await process.app.wait(posted.run_id)).result == "mango-4711"
    last = listener.requests[-1]
    assert is_summary(last.messages[0])
    assert "mango-4711" in last.messages[0].text
    # A summary is written once per many turns, and the next turns use it.
    assert turns // 60 <= len(listener.summaries) <= turns // 10
    assert session_id is not None
    stored = await read_turns(await process.app.database(), session_id, limit=1000)
    assert [turn.message for turn in stored][2] == FACT
    assert len(stored) == turns + 1


async def test_what_was_summarized_is_shown(process: Process) -> None:
    listener = Listener()
    process.app.models.register("listener", listener)
    await sync(process, agent(window_tokens=2_000, trigger=0.6, keep=0.3, summary_tokens=100))
    await process.start()
    session_id: str | None = None
    compacted: list[Any] = []
    for _ in range(12):
        posted = await process.app.chat("friend", FACT + FILLER, session_id)
        session_id = posted.session_id
        run = await process.app.wait(posted.run_id)
        events = await process.app.events(run.id)
        compacted += [event.data for event in events if event.type == "conversation_compacted"]
    assert len(compacted) >= 2
    assert compacted[0]["summary"] == "Codes: mango-4711."
    assert compacted[0]["tokens_after"] < compacted[0]["tokens_before"]
    assert [item["up_to_turn"] for item in compacted] == sorted({item["up_to_turn"] for item in compacted})


async def test_results_of_tools_are_summarized_within_one_task(process: Process) -> None:
    listener = Searcher()
    process.app.models.register("listener", listener)
    tool = Tool.model_validate(
        {
            "name": "search",
            "tool_type": "python",
            "code": "result = 'hit ' * 2000 + str(args['n'])",
            "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}},
        }
    )
    definition = agent(window_tokens=16_000).model_copy(update={"tools": ["search"], "max_turns": 60})
    await sync(process, definition, tool)
    await process.start()
    accepted = await process.app.ask("friend", "Search for everything")
    run = await process.app.wait(accepted.run_id)
    assert (run.status, run.result) == (Status.COMPLETED, "found after 40"), run.error
    assert listener.summaries
    for request in listener.requests:
        # The task is never summarized, and no result is without its call.
        assert any(message.text == "Search for everything" for message in request.messages)
        calls = {call.id for message in request.messages for call in message.calls}
        assert {message.call_id for message in request.messages if message.role == "tool"} <= calls


class Searcher(Listener):
    """Calls its tool forty times before it answers."""

    async def answer(self, request: ModelRequest, delta: Delta | None = None) -> ModelReply:
        tokens = estimate_tokens(request.messages, request.instructions, request.offers)
        assert tokens <= WINDOW, f"a request of {tokens} tokens"
        if request.prompt.startswith("Summarize this conversation"):
            return await super().answer(request, delta)
        self.requests.append(request)
        number = len(self.requests)
        if number > 40:
            return ModelReply(f"found after {number - 1}", model="listener")
        return ModelReply(calls=(ToolCall("search", {"n": number}, f"c{number}"),), model="listener")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"compaction": {"window_tokens": 500}}, "greater than or equal to 1000"),
        ({"compaction": {"window_tokens": 4000, "trigger": 0.5, "keep": 0.5}}, "so that a summary makes room"),
        ({"compaction": {"window_tokens": 4000}, "history_turns": 5}, "history_turns has no effect with compaction"),
        ({"compaction": {"window_tokens": 4000}, "system_prompt": "x" * 12_000}, "leaves no room"),
        ({"compaction": {"window": 4000}}, "Unknown field"),
    ],
)
async def test_rules_that_cannot_work_are_refused(process: Process, fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidDefinitions, match=problem):
        await process.app.sync({"agents": [{"id": "friend", "model": "scripted", "answers": ["hi"], **fields}]})
