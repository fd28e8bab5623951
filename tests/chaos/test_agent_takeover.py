"""An agent whose workers die one after the other: no answer is paid twice, and no effect happens twice.

The provider is a process of its own that counts its calls. The agent has six turns and calls six tools, two of which
must not be repeated; where the outcome of such a call is unknown, the run asks, and a person who can look it up
answers.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from runlane import Status, WrongState
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.failures.letter_retry import retry_letter
from runlane.failures.options import LetterRetry
from runlane.store.orchestration.calls import read_calls
from runlane.store.orchestration.waits import read_waits
from runlane.testing.crash_points import CrashPoint
from runlane.testing.fake_provider import FakeAnswer, FakeCall, FakeProvider
from tests import forking
from tests.chaos.cluster import Cluster, MakeCluster, eventually
from tests.chaos.test_orchestration_crash_points import ends_or_dies
from tests.scale import scaled

TEXT = 'All is done: Zürich 東京 🎉 \u2028 "quoted" back\\slash\n' * 20
TURNS = 6


def lookup(number: int) -> FakeCall:
    return FakeCall(name="lookup", arguments={"n": number})


def charge(order: str) -> FakeCall:
    return FakeCall(name="charge", arguments={"order": order})


ANSWERS = [
    FakeAnswer(text="First I look.", thinking="Hm.", calls=[lookup(1)]),
    FakeAnswer(calls=[charge("A")]),
    FakeAnswer(text="Two at once.", calls=[lookup(2), lookup(3)]),
    FakeAnswer(calls=[charge("B")]),
    FakeAnswer(calls=[lookup(4)]),
    FakeAnswer(text=TEXT, piece_chars=5),
]
TOOLS = [
    {
        "name": "lookup", "tool_type": "python", "code": "result = {'twice': args['n'] * 2}",
        "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
    {"name": "charge", "tool_type": "task", "task": "pay", "effect": "once"},
]  # fmt: skip
STEPS = [{"id": "work", "type": "agent", "agent_id": "helper", "output_key": "work"}]


pytestmark = pytest.mark.usefixtures("forked_providers")


@pytest.fixture(params=["openai:gpt-test", "anthropic:claude-test"])
def model(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider(ANSWERS) as provider:
        yield provider


async def begin(cluster: Cluster, model: str, steps: list[dict[str, Any]] | None = None, max_losses: int = 100) -> str:
    agent = {"id": "helper", "model": model, "tools": ["lookup", "charge"], "system_prompt": "Be the canary prompt."}
    bodies = {
        "orchestrations": [{"id": "flow", "steps": steps or STEPS, "max_losses": max_losses}],
        "agents": [agent],
        "tools": TOOLS,
    }
    await sync_definitions(await cluster.app.database(), "default", parse_bodies(bodies), actor="test")
    return (await cluster.app.orchestrate("flow", "go")).run_id


def where(provider: FakeProvider) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": provider.openai_url, "OPENAI_API_KEY": "sk-canary-of-openai",
        "ANTHROPIC_BASE_URL": provider.url, "ANTHROPIC_API_KEY": "sk-canary-of-anthropic",
        **forking.PROVIDERS,
    }  # fmt: skip


def paid(cluster: Cluster) -> list[str]:
    file = cluster.folder / "paid"
    return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []


async def person(cluster: Cluster, run_id: str) -> None:
    """Answer what only a person can find out: whether the payment went through."""
    while True:
        for wait in await read_waits(await cluster.app.database(), run_id):
            if wait.kind != "human" or wait.answered:
                continue
            order = wait.request["context"]["arguments"]["order"]
            done = order in paid(cluster)
            answer = {"decision": "done", "result": {"paid": order}} if done else {"decision": "call_again"}
            try:
                await cluster.app.resume(run_id, answer, step=wait.path)
            except WrongState:
                continue
        await asyncio.sleep(0.05)


async def announced(cluster: Cluster, run_id: str) -> bool:
    """Return whether a payment was announced and has no result."""
    keys = [row.key for row in await read_calls(await cluster.app.database(), run_id)]
    begun = {key.split("/", 2)[2].rpartition("/")[0] for key in keys if "/begun/" in key}
    return any(f"0/tool/{place}" not in keys for place in begun)


async def until_the_end(cluster: Cluster, run_id: str, point: str, reach: int = 1) -> int:
    """Workers that die when they reach a point for the nth time, until one comes to the end; how many died."""
    answering = asyncio.create_task(person(cluster, run_id))
    deaths = 0
    try:
        while True:
            # A payment that was announced has to be asked for: the answer, the next announcement and the result are
            # three rows, and a worker that always died before the third would never get there.
            unsure = await announced(cluster, run_id)
            worker = cluster.start_worker(crash=CrashPoint(point, max(3, reach) if unsure else reach))
            if await ends_or_dies(cluster, worker):
                return deaths
            assert await worker.ended() == -signal.SIGKILL, worker.log_text()
            deaths += 1
            assert deaths < 40, worker.log_text()
    finally:
        answering.cancel()


async def check(cluster: Cluster, run_id: str) -> None:
    """Check what must hold whichever process died when."""
    run = await cluster.app.get(run_id)
    assert run.status is Status.COMPLETED, run.error
    assert run.result == TEXT
    assert Counter(paid(cluster)) == {"A": 1, "B": 1}
    records = await read_calls(await cluster.app.database(), run_id)
    answers = {row.key: json.loads(row.payload) for row in records if row.kind.value == "model"}
    assert sorted(answers) == [f"0/model/{turn}" for turn in range(TURNS)]
    responses = [event.data for event in await cluster.app.events(run_id) if event.type == "model_response"]
    assert [data["answer"] for data in responses] == sorted(answers)
    assert [data["text"] for data in responses] == [answers[key]["text"] for key in sorted(answers)]
    assert sum(row.kind.value == "tool" for row in records) == 6
    for table in ("run_events", "run_calls", "run_steps", "run_results", "run_waits"):
        stored = json.dumps(await cluster.rows(f"select * from {table}"), default=str)
        assert "canary" not in stored, table
    await cluster.check_story()


async def test_a_worker_dies_after_every_recorded_row(
    make_cluster: MakeCluster, provider: FakeProvider, model: str
) -> None:
    cluster = await make_cluster(**where(provider))
    run_id = await begin(cluster, model)
    # The journal does not depend on the provider.
    reach = scaled(1 if model.startswith("openai") else 3, 1)
    deaths = await until_the_end(cluster, run_id, "journal.kept", reach)
    assert deaths >= (TURNS + 6) // reach
    assert provider.stats()["calls"] == TURNS
    await check(cluster, run_id)


@pytest.mark.parametrize("point", ["call.answered", "tool.answered"])
async def test_a_worker_dies_at(make_cluster: MakeCluster, provider: FakeProvider, point: str) -> None:
    """Before the record the one call in flight is made again; nothing else is."""
    cluster = await make_cluster(**where(provider))
    run_id = await begin(cluster, "openai-chat:gpt-test")
    answering = asyncio.create_task(person(cluster, run_id))
    deaths = 0
    try:
        while True:
            # Each worker lives for one reach more than the one before, so that it gets further.
            worker = cluster.start_worker(crash=CrashPoint(point, deaths + 1))
            if await ends_or_dies(cluster, worker):
                break
            assert await worker.ended() == -signal.SIGKILL, worker.log_text()
            deaths += 1
            assert deaths < 20, worker.log_text()
    finally:
        answering.cancel()
    assert deaths >= 2
    assert provider.stats()["calls"] <= TURNS + deaths
    await check(cluster, run_id)


async def test_a_payment_without_a_record_is_not_made_again(cluster: Cluster, provider: FakeProvider) -> None:
    cluster.environment |= where(provider)
    run_id = await begin(cluster, "openai-chat:gpt-test")
    worker = cluster.start_worker(crash=CrashPoint("tool.answered", 2))
    assert await worker.ended() == -signal.SIGKILL, worker.log_text()
    assert paid(cluster) == ["A"]
    cluster.start_worker()

    async def has_question() -> bool:
        return (await cluster.app.get(run_id)).status is Status.PAUSED

    await eventually(has_question, "the run to ask")
    assert paid(cluster) == ["A"]
    (wait,) = await read_waits(await cluster.app.database(), run_id)
    assert wait.request["context"]["tool_name"] == "charge"
    await cluster.app.resume(run_id, {"decision": "done", "result": {"paid": "A"}})
    assert (await cluster.app.wait(run_id, 60)).result == TEXT
    await check(cluster, run_id)


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_a_replayed_dead_letter_asks_about_the_call_that_a_lost_worker_left(
    make_cluster: MakeCluster, provider: FakeProvider, kind: str
) -> None:
    cluster = await make_cluster(kind, **where(provider))
    run_id = await begin(cluster, "openai:gpt-test", max_losses=1)
    # The second worker has paid, and dies before it can store that.
    for crash in (CrashPoint("call.answered"), CrashPoint("tool.answered", 2)):
        worker = cluster.start_worker(crash=crash)
        assert await worker.ended() == -signal.SIGKILL, worker.log_text()
    assert paid(cluster) == ["A"]
    cluster.start_worker()
    ended = await cluster.app.wait(run_id, timeout=120)
    assert (ended.status, ended.failures) == (Status.FAILED, 0)

    change = await retry_letter(await cluster.app.database(), run_id, LetterRetry(), actor="ann")
    (await cluster.app.connect()).publish_change(change)
    answering = asyncio.create_task(person(cluster, run_id))
    try:
        await cluster.app.wait(run_id, timeout=120)
    finally:
        answering.cancel()
    await check(cluster, run_id)
    questions = [
        event.data["path"] for event in await cluster.app.events(run_id) if event.type == "human_input_required"
    ]
    assert questions == ["work!0/unknown/1/call_1_0/1"]
