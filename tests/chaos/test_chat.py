"""Conversations while processes die: each message is one turn, each turn one answer, and no message is lost."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from runlane import Client, Status
from runlane.catalog.sync import sync_definitions
from runlane.client import RetryPolicy
from runlane.definitions.loader import parse_bodies
from runlane.store.access.keys import create_key
from runlane.store.chat.turns import read_turns
from runlane.testing.crash_points import CrashPoint
from tests.chaos.cluster import Cluster, eventually
from tests.chaos.flows import MODEL, Flows, slowly, worker_of

HELPER: dict[str, Any] = {"id": "helper", "model": MODEL, "tools": ["add"]}
ADD: dict[str, Any] = {"name": "add", "tool_type": "python", "code": "result = 3"}
PATIENT = RetryPolicy(first_seconds=0.05, longest_seconds=0.5, give_up_seconds=60)


async def flows_of(cluster: Cluster, answers: list[Any] | None = None, **delays: float) -> Flows:
    flows = Flows(cluster)
    flows.script(delays, answers or ["said"])
    loaded = parse_bodies({"agents": [HELPER], "tools": [ADD]})
    await sync_definitions(await cluster.app.database(), "default", loaded, actor="test")
    return flows


def received_messages(cluster: Cluster) -> list[tuple[str, int]]:
    """Return the prompt of each model call, and how many messages came with it."""
    lines = (cluster.folder / "calls.jsonl").read_text().splitlines()
    return [(call["prompt"], call["messages"]) for call in map(json.loads, lines)]


async def test_a_worker_killed_in_a_turn_leaves_one_answer_and_the_whole_history(cluster: Cluster) -> None:
    flows = await flows_of(cluster, two=1.5)
    await cluster.start_workers(2)
    first = await cluster.app.chat("helper", "<one>")
    posts = [first] + [await cluster.app.chat("helper", text, first.session_id) for text in ("<two>", "<three>")]
    call = await flows.called("two")
    worker_of(cluster, call["pid"]).kill()
    again = await flows.called("two", 2)
    assert again["pid"] != call["pid"]
    assert again["key"] == call["key"]
    for post in posts:
        assert (await cluster.app.wait(post.run_id, 60)).status is Status.COMPLETED
    # One message for itself, and two for every turn before it.
    assert received_messages(cluster) == [("<one>", 1), ("<two>", 3), ("<two>", 3), ("<three>", 5)]
    turns = await read_turns(await cluster.app.database(), first.session_id)
    assert [(turn.message, turn.answer) for turn in turns] == [
        ("<one>", "said"),
        ("<two>", "said two"),
        ("<three>", "said"),
    ]
    for post in posts:
        await flows.check_once(post.run_id)
    await cluster.check_story()


async def test_answers_that_a_turn_had_before_its_worker_died_are_not_requested_again(cluster: Cluster) -> None:
    answers: list[Any] = [{"tool": "add", "arguments": {}}, slowly("three", 1.5)]
    await flows_of(cluster, answers)
    [first] = await cluster.start_workers(1)
    posted = await cluster.app.chat("helper", "sum")

    async def second_call() -> bool:
        path = cluster.folder / "calls.jsonl"
        return path.exists() and len(path.read_text().splitlines()) == 2

    await eventually(second_call, "the second call of the model", every=0.005)
    first.kill()
    await cluster.start_workers(1)
    ended = await cluster.app.wait(posted.run_id, 60)
    assert ended.result == "three"
    assert [count for _, count in received_messages(cluster)] == [1, 3, 3]
    assert len(await cluster.events("tool_result")) == 1
    await cluster.check_story()


@pytest.mark.parametrize("point", ["accept.before_commit", "accept.committed"])
async def test_a_server_killed_while_it_takes_a_message_leaves_one_turn_or_none(cluster: Cluster, point: str) -> None:
    await flows_of(cluster)
    await cluster.start_workers(1)
    victim = cluster.start_server(crash=CrashPoint(point))
    other = cluster.start_server()
    urls = [await cluster.url_of(victim), await cluster.url_of(other)]
    key = await server_key(cluster)
    async with Client(urls[0], key, retry_policy=RetryPolicy(give_up_seconds=0.2)) as client:
        with pytest.raises(Exception, match="did not respond"):
            await client.chat("helper", "<one>", idempotency_key="first")
    await victim.ended()
    rows = await cluster.rows("select t.run_id, r.id from runs r full join chat_turns t on t.run_id = r.id")
    stored = point == "accept.committed"
    assert len(rows) == (1 if stored else 0)
    assert all(row["run_id"] == row["id"] for row in rows)
    async with Client(urls[1], key, retry_policy=PATIENT) as client:
        posted = await client.chat("helper", "<one>", idempotency_key="first")
        assert posted.replayed is stored
        assert posted.turn == 1
        second = await client.chat("helper", "<two>", posted.session_id)
        assert (await client.wait(second.run_id, 60)).result == "said"
        state = await client.chat_state(posted.session_id)
        assert [(message.turn, message.role) for message in state.messages] == [
            (1, "user"),
            (1, "assistant"),
            (2, "user"),
            (2, "assistant"),
        ]
    await cluster.check_story()


async def test_messages_to_two_servers_at_once_run_in_order_and_one_stream_has_all(cluster: Cluster) -> None:
    await flows_of(cluster, answers=[{"when": "<bad>", "fail": {"retryable": False}}, "said"])
    await cluster.start_workers(2)
    urls = await cluster.start_servers(2)
    key = await server_key(cluster)
    async with Client(urls[0], key, retry_policy=PATIENT) as one, Client(urls[1], key, retry_policy=PATIENT) as two:
        session_id = (await one.chat("helper", "<first>")).session_id
        texts = [f"<m{number}>" if number % 5 else "<bad>" for number in range(20)]
        posts = await asyncio.gather(
            *((one if number % 2 else two).chat("helper", text, session_id) for number, text in enumerate(texts))
        )
        assert sorted(post.turn for post in posts) == list(range(2, 22))
        seen = [
            (event.data["chat_turn"], event.seq) async for event in two.chat_stream(session_id) if event.seq is not None
        ]
        assert seen == sorted(seen)
        assert len(set(seen)) == len(seen)
        assert {turn for turn, _ in seen} == set(range(1, 22))
        messages = [message async for message in one.chat_messages(session_id, page=3)]
    by_turn = {post.turn: text for post, text in zip(posts, texts, strict=True)}
    assert [message.content for message in messages if message.role == "user"] == [
        "<first>",
        *(by_turn[turn] for turn in range(2, 22)),
    ]
    failed = {message.turn for message in messages if message.status is Status.FAILED}
    assert failed == {turn for turn, text in by_turn.items() if text == "<bad>"}
    # Each is sent once, in the order of the turns, together with the last ten turns.
    calls = received_messages(cluster)
    assert [prompt for prompt, _ in calls] == ["<first>", *(by_turn[turn] for turn in range(2, 22))]
    for turn, (_, count) in enumerate(calls, 1):
        before = range(max(1, turn - 10), turn)
        assert count == 1 + sum(1 if earlier in failed else 2 for earlier in before), turn
    begun = await cluster.rows(
        "select t.turn from chat_turns t join run_events e on e.run_id = t.run_id and e.type = 'worker_picked_up' "
        "order by e.at, t.turn"
    )
    assert [row["turn"] for row in begun] == list(range(1, 22))
    await cluster.check_story()


async def server_key(cluster: Cluster) -> str:
    return (await create_key(await cluster.app.database(), "test", "platform_admin", actor="test"))[1]
