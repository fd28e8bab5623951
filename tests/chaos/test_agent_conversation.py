"""A long conversation of an agent with a memory: it stays within the window, and no call is paid for twice."""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import Any

import pytest

from runlane import Status
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.testing import FakeAnswer, FakeServer
from runlane.testing.crash_points import CrashPoint
from tests.chaos.cluster import Cluster, MakeCluster
from tests.chaos.test_orchestration_crash_points import ends_or_dies
from tests.scale import scaled

WINDOW = 16_000
TURNS = scaled(10, 300)
# A turn has about a fifth of the window.
FILLER = "and the talk was continued. " * 350
FACT = "The code is mango-4711."
SUMMARY = "Summarize this conversation"
AGENT = {
    "id": "friend",
    "model": "openai:small",
    "memory": {"title": "{{session_id}}", "context": "none"},
    "compaction": {"window_tokens": WINDOW, "summary_tokens": 200},
}
ANSWERS = [
    {"when": SUMMARY, "text": "They talked."},
    {"when": "Keep this", "calls": [{"name": "remember", "arguments": {"text": FACT}}]},
    {"when": "What is the code?", "calls": [{"name": "recall", "arguments": {"query": "code"}}]},
    {"text": "I see."},
]


class Conversation:
    """The turns of one session, and which of them were compacted."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._session_id: str | None = None
        self.turns = 0
        self.compacted: list[int] = []

    async def say(self, message: str) -> str:
        """Send a message and return its run."""
        self.turns += 1
        posted = await self._cluster.app.chat("friend", message, self._session_id)
        self._session_id = posted.session_id
        return posted.run_id

    async def talk(self) -> str:
        """Send the message of the next turn and return its run."""
        number = self.turns + 1
        return await self.say(f"Keep this: {FACT}" if number == 3 else f"Message {number}. {FILLER}")

    async def ended(self, run_id: str) -> list[Any]:
        """Return the events of a turn that has ended."""
        run = await self._cluster.app.wait(run_id, 120)
        assert (run.status, run.result) == (Status.COMPLETED, "I see."), run.error
        events = list(await self._cluster.app.events(run_id))
        if any(event.type == "conversation_compacted" for event in events):
            self.compacted.append(self.turns)
        return events


def last_text(body: dict[str, Any]) -> str:
    last = body["input"][-1]
    return str(last.get("content", last.get("output")))


def size(body: dict[str, Any]) -> int:
    """Return the tokens of a request, instructions and tools included, as the fake provider counts them."""
    return len(json.dumps(body, ensure_ascii=False)) // 4


@pytest.mark.timeout(scaled(600, 5400))
async def test_a_long_conversation_recalls_an_early_fact_and_survives_deaths_in_a_compaction(
    make_cluster: MakeCluster,
) -> None:
    async with FakeServer([FakeAnswer.model_validate(answer) for answer in ANSWERS]) as fake:
        cluster = await make_cluster("postgres", OPENAI_BASE_URL=f"{fake.url}/v1", OPENAI_API_KEY="sk-test")
        await sync_definitions(await cluster.app.database(), "default", parse_bodies({"agents": [AGENT]}), actor="test")
        talk, paid = Conversation(cluster), Counter[str]()

        def count() -> None:
            """Add up the calls since the last count: the fake provider keeps the latest ones alone."""
            assert {call.outcome for call in fake.meter.log} <= {"200"}
            assert all(size(call.body) <= WINDOW for call in fake.meter.log)
            paid.update(last_text(call.body) for call in fake.meter.log)
            fake.meter.log.clear()

        [worker] = await cluster.start_workers(1)
        while len(talk.compacted) < 2:
            await talk.ended(await talk.talk())
        before = talk.compacted[-1] + (talk.compacted[-1] - talk.compacted[-2]) - 1
        while talk.turns < before - 1:
            await talk.ended(await talk.talk())
        worker.kill()
        count()
        deaths = 0
        while len(talk.compacted) < 3:
            run_id, deaths = await talk.talk(), 0
            while not await ends_or_dies(cluster, worker := cluster.start_worker(crash=CrashPoint("journal.kept"))):
                assert await worker.ended() == -signal.SIGKILL, worker.log_text()
                deaths += 1
                assert deaths < 20, "the run makes no progress"
            worker.kill()
            await talk.ended(run_id)
        # Killed after each row: at least the summary, what it replaces, and the answer.
        assert deaths >= 3
        assert any(call for call in fake.meter.log if last_text(call.body).startswith(SUMMARY))
        count()
        await cluster.start_workers(1)
        while talk.turns < TURNS:
            await talk.ended(await talk.talk())
            count()
        events = await talk.ended(await talk.say("What is the code?"))
        [asked, told] = [call.body["input"] for call in fake.meter.log][-2:]
        count()
        assert "mango" not in str(asked)
        assert "mango-4711" in str(told[-1])
        assert any("mango-4711" in event.data["preview"] for event in events if event.type == "tool_result")
        assert paid.most_common(1)[0][1] == 1, "a call was paid for twice"
        assert len(paid) == talk.turns + 2 + len([text for text in paid if text.startswith(SUMMARY)])
        await cluster.check_story()
