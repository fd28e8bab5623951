"""An agent with a memory whose workers die: what it remembers is stored once, and the conversation continues."""

from __future__ import annotations

from typing import Any

import pytest

from runlane import Status
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.testing.crash_points import CrashPoint
from tests.chaos.cluster import MakeCluster
from tests.chaos.flows import MODEL, Flows
from tests.chaos.test_orchestration_crash_points import ends_or_dies

ANSWERS: list[Any] = [
    {"when": "# Context document", "say": "The user has a code."},
    {"when": "Keep this", "tool": "remember", "arguments": {"text": "The code is mango-4711."}},
    {"when": "What is the code?", "tool": "recall", "arguments": {"query": "code"}},
    {"say": "Done."},
]
AGENT = {"id": "friend", "model": MODEL, "memory": {"title": "{{session_id}}"}}


@pytest.mark.parametrize("backend", ["postgres", "sqlite"])
@pytest.mark.parametrize("point", ["memory.committed", "tool.answered", "journal.kept"])
async def test_a_change_of_the_memory_is_made_once(make_cluster: MakeCluster, backend: str, point: str) -> None:
    cluster = await make_cluster(backend)
    Flows(cluster).script(answers=ANSWERS)
    database = await cluster.app.database()
    await sync_definitions(database, "default", parse_bodies({"agents": [AGENT]}), actor="test")
    posted = await cluster.app.chat("friend", "Keep this code for me.")
    deaths = 0
    while not await ends_or_dies(cluster, cluster.start_worker(crash=CrashPoint(point))):
        deaths += 1
        assert deaths < 20, "the run makes no progress"
    assert deaths >= 1
    run = await cluster.app.get(posted.run_id)
    assert (run.status, run.result) == (Status.COMPLETED, "Done."), run.error
    service = await cluster.app.memory()
    [memory] = await service.list_memories("default")
    page = await service.list_entries("default", memory.id)
    assert [entry.text for entry in page.entries] == ["The code is mango-4711."]
    assert (await service.get_fragment("default", memory.id, "context")).content == "The user has a code.\n"
    await cluster.start_workers(1)
    asked = await cluster.app.chat("friend", "What is the code?", posted.session_id)
    assert (await cluster.app.wait(asked.run_id, 60)).status is Status.COMPLETED
    events = await cluster.app.events(asked.run_id)
    [recalled] = [event.data["preview"] for event in events if event.type == "tool_result"]
    assert "mango-4711" in recalled
    await cluster.check_story()
