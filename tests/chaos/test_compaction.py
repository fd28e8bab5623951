"""Compaction of a chat whose workers die one after the other: no summary is paid for twice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runlane import Status
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.testing.crash_points import CrashPoint
from tests.chaos.cluster import Cluster, MakeCluster
from tests.chaos.flows import MODEL, Flows
from tests.chaos.test_orchestration_crash_points import ends_or_dies

TURNS = 4
FILLER = "so the talk was continued. " * 110
COMPACTION = {"window_tokens": 1_000, "trigger": 0.8, "keep": 0.2, "summary_tokens": 60}
ANSWERS = [{"when": "Summarize this conversation", "say": "They talked."}, {"say": "I see."}]


async def define(cluster: Cluster, **fields: Any) -> None:
    agent = {"id": "friend", "model": MODEL, **fields}
    await sync_definitions(await cluster.app.database(), "default", parse_bodies({"agents": [agent]}), actor="test")


@pytest.mark.parametrize("backend", ["postgres", "sqlite"])
async def test_workers_die_after_every_row_of_a_compaction(make_cluster: MakeCluster, backend: str) -> None:
    cluster = await make_cluster(backend)
    Flows(cluster).script(answers=ANSWERS)
    # The first turns are not compacted, so that the summary needs several calls.
    await define(cluster, history_turns=100)
    [worker] = await cluster.start_workers(1)
    session_id: str | None = None
    for number in range(TURNS):
        posted = await cluster.app.chat("friend", f"Part {number}: {FILLER}", session_id)
        session_id = posted.session_id
        assert (await cluster.app.wait(posted.run_id, 60)).status is Status.COMPLETED
    worker.kill()
    await define(cluster, compaction=COMPACTION)
    posted = await cluster.app.chat("friend", "And now?", session_id)
    deaths = 0
    while True:
        worker = cluster.start_worker(crash=CrashPoint("journal.kept"))
        if await ends_or_dies(cluster, worker):
            break
        deaths += 1
        assert deaths < 20, "the run makes no progress"
    run = await cluster.app.get(posted.run_id)
    assert (run.status, run.result) == (Status.COMPLETED, "I see."), run.error
    calls = [json.loads(line) for line in (cluster.folder / "calls.jsonl").read_text().splitlines()]
    prompts = [call["prompt"] for call in calls if call["prompt"].startswith("Summarize this conversation")]
    assert len(prompts) >= 3
    assert len(set(prompts)) == len(prompts), "a summary was paid for twice"
    # Each worker stored one row: the parts of the summary, what they replace, and the answer.
    assert deaths == len(prompts) + 2
    events = await cluster.app.events(posted.run_id)
    assert [event.data["summary"] for event in events if event.type == "conversation_compacted"] == ["They talked."]
    await cluster.check_story()
