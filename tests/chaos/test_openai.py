"""OpenAI's own client while processes die: the answer is complete, and nothing of it is sent twice."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
from openai import AsyncOpenAI

from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.store.access.keys import create_key
from runlane.testing import RedisServer
from tests.acceptance.api.openai_clients import openai_client
from tests.chaos.cluster import Cluster, MakeCluster
from tests.chaos.flows import MODEL, Flows

TEXT = "".join(f"line {number:02} of the answer\n" for number in range(12))
# Slow enough that a process which is killed in the middle of an answer does not come to its end before.
ANSWER: dict[str, Any] = {"say": TEXT, "piece_delay_seconds": 0.1, "tokens": 60}
WRITER: dict[str, Any] = {"id": "writer", "model": MODEL}


async def cluster_of(make_cluster: MakeCluster, redis: RedisServer) -> tuple[Cluster, str]:
    """Return a cluster with the agent, and a key."""
    cluster = await make_cluster("postgres", RUNLANE_REDIS_URL=redis.url)
    Flows(cluster).script(answers=[ANSWER])
    database = await cluster.app.database()
    await sync_definitions(database, "default", parse_bodies({"agents": [WRITER]}), actor="test")
    return cluster, (await create_key(database, "test", "operator", actor="test"))[1]


def delta_of(event: Any) -> str:
    return event.delta if event.type == "response.output_text.delta" else ""


async def test_a_worker_killed_in_mid_stream_leaves_a_complete_answer(
    make_cluster: MakeCluster, chaos_redis: RedisServer
) -> None:
    cluster, key = await cluster_of(make_cluster, chaos_redis)
    [first] = await cluster.start_workers(1)
    [url] = await cluster.start_servers(1)
    halfway = [asyncio.Event(), asyncio.Event()]

    async def chat(client: AsyncOpenAI) -> tuple[str, Any]:
        text, usage = "", None
        stream = await client.chat.completions.create(
            model="writer",
            messages=[
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "hello"},
                {"role": "user", "content": "write"},
            ],
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            usage = chunk.usage or usage
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            if len(text) > 40:
                halfway[0].set()
        return text, usage

    async def respond(client: AsyncOpenAI) -> tuple[str, Any]:
        text, last = "", None
        async for event in await client.responses.create(model="writer", input="write", stream=True):
            text += delta_of(event)
            last = event
            if len(text) > 40:
                halfway[1].set()
        return text, last

    async with openai_client(url, key) as client, asyncio.TaskGroup() as group:
        chatting, responding = group.create_task(chat(client)), group.create_task(respond(client))
        for event in halfway:
            await event.wait()
        first.kill()
        await cluster.start_workers(1)
    text, usage = chatting.result()
    assert text == TEXT
    assert usage.completion_tokens == 60
    text, last = responding.result()
    assert (text, last.type) == (TEXT, "response.completed")
    assert last.response.output_text == TEXT
    rows = await cluster.rows("select attempt, status from runs")
    assert [(row["attempt"], row["status"]) for row in rows] == [(2, "completed")] * 2
    # The second attempt sends the model the same conversation as the first one.
    calls = (cluster.folder / "calls.jsonl").read_text().splitlines()
    assert sorted(json.loads(call)["messages"] for call in calls) == [1, 1, 3, 3]
    await cluster.check_story()


async def test_a_server_killed_in_mid_stream_is_replaced_by_another_one(
    make_cluster: MakeCluster, chaos_redis: RedisServer
) -> None:
    cluster, key = await cluster_of(make_cluster, chaos_redis)
    await cluster.start_workers(1)
    victim, other = cluster.start_server(), cluster.start_server()
    urls = [await cluster.url_of(victim), await cluster.url_of(other)]
    seen: list[Any] = []
    async with openai_client(urls[0], key) as client:
        try:
            async for event in await client.responses.create(model="writer", input="write", stream=True):
                seen.append(event)
                if len("".join(map(delta_of, seen))) > 40:
                    victim.kill()
        except openai.APIConnectionError:
            pass
    assert seen[-1].type == "response.output_text.delta"
    async with openai_client(urls[1], key) as client:
        stream = await client.responses.retrieve(
            seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number
        )
        seen += [event async for event in stream]
    assert "".join(map(delta_of, seen)) == TEXT
    assert seen[-1].type == "response.completed"
    numbers = [event.sequence_number for event in seen]
    assert numbers == sorted(set(numbers))
    assert len(await cluster.rows("select id from runs")) == 1
    await cluster.check_story()
