"""Every call of the unmodified Python SDK: two replicas behind a balancer without stickiness, and two workers."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.chaos.balancer import Balancer
from tests.chaos.cluster import MakeCluster
from tests.chaos.test_agent_replicas import client_of
from tests.forking import GRAPHS
from tests.harness import eventually

RESOURCES = ("assistants", "threads", "runs", "crons", "store")
INPUT: dict[str, Any] = {"value": 1, "items": []}
FINAL: dict[str, Any] = {"value": 4, "items": ["a", "b", "c"]}


class Recorded:
    """A resource of the SDK's client that notes which of its methods were called."""

    def __init__(self, name: str, resource: Any, called: set[str]) -> None:
        self._name = name
        self._resource = resource
        self._called = called

    def __getattr__(self, name: str) -> Any:
        self._called.add(f"{self._name}.{name}")
        return getattr(self._resource, name)


class Sdk:
    """The SDK's client, and the calls of it that are left."""

    def __init__(self, client: Any) -> None:
        self.called: set[str] = set()
        self.methods = {
            f"{resource}.{name}"
            for resource in RESOURCES
            for name, _ in inspect.getmembers(getattr(client, resource), inspect.isroutine)
            if not name.startswith("_")
        }
        self.assistants: Any
        self.threads: Any
        self.runs: Any
        self.crons: Any
        self.store: Any
        for resource in RESOURCES:
            setattr(self, resource, Recorded(resource, getattr(client, resource), self.called))

    async def thread(self) -> str:
        return (await self.threads.create())["thread_id"]


async def _assistants(sdk: Sdk) -> None:
    made = await sdk.assistants.create("three", name="mine", metadata={"team": "x"}, context={"k": "v"})
    mine = made["assistant_id"]
    assert (await sdk.assistants.get(mine))["config"]["configurable"] == {"k": "v"}
    assert (await sdk.assistants.update(mine, name="renamed"))["version"] == 2
    assert [item["version"] for item in await sdk.assistants.get_versions(mine)] == [2, 1]
    assert (await sdk.assistants.set_latest(mine, 1))["name"] == "mine"
    assert await sdk.assistants.count(metadata={"team": "x"}) == 1
    found = await sdk.assistants.search(metadata={"team": "x"}, response_format="object")
    assert [item["assistant_id"] for item in found["assistants"]] == [mine]
    assert len((await sdk.assistants.get_graph(mine, xray=True))["nodes"]) == 5
    assert (await sdk.assistants.get_schemas(mine))["graph_id"] == "three"
    assert await sdk.assistants.get_subgraphs(mine, recurse=True) == {}
    assert await sdk.runs.wait(None, mine, input=INPUT) == FINAL
    await sdk.assistants.delete(mine)
    assert await sdk.assistants.count(metadata={"team": "x"}) == 0


async def _threads(sdk: Sdk) -> None:
    topic = str(uuid.uuid4())
    updates = [{"values": INPUT, "as_node": "__start__"}]
    thread = await sdk.threads.create(
        graph_id="three", metadata={"topic": topic}, supersteps=[{"updates": updates}], ttl=60
    )
    name = thread["thread_id"]
    assert (await sdk.threads.get(name, include=["ttl"]))["ttl"]["ttl_minutes"] == 60
    assert await sdk.runs.wait(name, "three", input=None) == FINAL
    history = await sdk.threads.get_history(name, limit=20)
    assert [state["next"] for state in history] == [[], ["c"], ["b"], ["a"]]
    earlier = await sdk.threads.get_state(name, checkpoint_id=history[1]["checkpoint_id"])
    assert earlier["values"]["items"] == ["a", "b"]
    await sdk.threads.update_state(name, {"items": ["patched"]}, as_node="b")
    assert (await sdk.threads.get_state(name))["next"] == ["c"]
    assert (await sdk.threads.update(name, metadata={"more": 1}))["metadata"]["topic"] == topic
    assert [item["thread_id"] for item in await sdk.threads.search(metadata={"topic": topic})] == [name]
    copied = (await sdk.threads.copy(name))["thread_id"]
    assert await sdk.threads.count(metadata={"topic": topic}) == 2
    await sdk.threads.prune([copied], strategy="keep_latest")
    assert len(await sdk.threads.get_history(copied)) == 1
    for one in (name, copied):
        await sdk.threads.delete(one)
    assert await sdk.threads.count(metadata={"topic": topic}) == 0


async def _runs(sdk: Sdk) -> None:
    thread = await sdk.thread()
    parts = [part async for part in sdk.runs.stream(thread, "three", input=INPUT, stream_mode=["values", "custom"])]
    assert [part.event for part in parts] == ["metadata", "values", "values", "custom", "values", "values", "end"]
    run = (await sdk.runs.list(thread))[0]["run_id"]
    again = [part async for part in sdk.runs.join_stream(thread, run, last_event_id=parts[2].id)]
    assert [(part.event, part.data) for part in again] == [(part.event, part.data) for part in parts[3:]]
    assert await sdk.runs.join(thread, run) == FINAL
    await sdk.runs.delete(thread, run)
    assert await sdk.runs.list(thread) == []
    batch = await sdk.runs.create_batch([{"assistant_id": "three", "input": INPUT}] * 2)
    assert len({item["run_id"] for item in batch}) == 2
    first = await sdk.runs.create(thread, "sleepy", input=INPUT)
    await _status(sdk, thread, first["run_id"], "running")
    await sdk.runs.cancel(thread, first["run_id"], wait=True)
    await _status(sdk, thread, first["run_id"], "interrupted")
    others = [await sdk.runs.create(thread, "sleepy", input=INPUT) for _ in range(2)]
    await sdk.runs.cancel_many(thread_id=thread, run_ids=[run["run_id"] for run in others])
    for run in others:
        await _status(sdk, thread, run["run_id"], "interrupted")


async def _status(sdk: Sdk, thread: str, run_id: str, status: str) -> None:
    async def reached() -> bool:
        return (await sdk.runs.get(thread, run_id))["status"] == status

    await eventually(reached, f"{run_id} {status}")


async def _people(sdk: Sdk) -> None:
    """Answer a question by a run, and in a stream of the thread over both transports."""
    thread = await sdk.thread()
    asked = await sdk.runs.wait(thread, "human", input=INPUT)
    question = asked["__interrupt__"][0]["id"]
    answered = await sdk.runs.wait(thread, "human", command={"resume": {question: "yes"}})
    assert answered["items"] == ["a", "ask:yes", "c"]
    for transport in ("sse", "websocket"):
        async with sdk.threads.stream(assistant_id="three", transport=transport) as stream:
            await stream.run.start(input=INPUT)
            assert [values async for values in stream.values][-1] == FINAL, transport
    thread = await sdk.thread()
    async with sdk.threads.stream(thread, assistant_id="human") as stream:
        await stream.run.start(input=INPUT)
        # The client ends an iteration when an interrupt arrives, and does not end one that begins afterwards.
        if not stream.interrupted:
            async for _ in stream.values:
                pass
        await eventually(lambda: stream.interrupted, "the interrupt")
        await stream.run.respond("yes")
        await stream.output
    assert (await sdk.threads.get_state(thread))["values"]["items"] == ["a", "ask:yes", "c"]


async def _thread_stream(sdk: Sdk) -> None:
    thread = await sdk.thread()
    for _ in range(2):
        await sdk.runs.wait(thread, "three", input=INPUT)
    names: list[str] = []
    async for part in await sdk.threads.join_stream(thread, last_event_id="-", stream_mode="lifecycle"):
        names.append(part.event)
        if names.count("end") == 2:
            break
    assert names == ["metadata", "end"] * 2


async def _crons(sdk: Sdk) -> None:
    thread = await sdk.thread()
    made = await sdk.crons.create("three", schedule="0 0 1 1 *", input=INPUT, metadata={"of": thread})
    other = await sdk.crons.create_for_thread(thread, "three", schedule="0 0 1 1 *", input=INPUT)
    assert (await sdk.crons.update(made["cron_id"], enabled=False))["enabled"] is False
    assert [item["cron_id"] for item in await sdk.crons.search(thread_id=thread)] == [other["cron_id"]]
    assert await sdk.crons.count(thread_id=thread) == 1
    for cron in (made, other):
        await sdk.crons.delete(cron["cron_id"])
    assert await sdk.crons.count(thread_id=thread) == 0


async def _items(sdk: Sdk) -> None:
    space = ("every", "call")
    await sdk.store.put_item(space, "k", {"x": 1})
    assert (await sdk.store.get_item(space, "k"))["value"] == {"x": 1}
    assert [item["key"] for item in (await sdk.store.search_items(("every",), filter={"x": 1}))["items"]] == ["k"]
    assert (await sdk.store.list_namespaces(prefix=["every"]))["namespaces"] == [list(space)]
    await sdk.store.delete_item(space, "k")
    assert await sdk.store.get_item(space, "k") is None


CHECKS: list[Callable[[Sdk], Awaitable[None]]] = [
    _assistants, _threads, _runs, _people, _thread_stream, _crons, _items,
]  # fmt: skip


@pytest.mark.parametrize(("kind", "with_redis"), [("postgres", True), ("postgres", False), ("sqlite", False)])
async def test_every_call_of_the_python_sdk(
    make_cluster: MakeCluster, request: pytest.FixtureRequest, kind: str, with_redis: bool
) -> None:
    environment = {"RUNLANE_REDIS_URL": request.getfixturevalue("chaos_redis").url} if with_redis else {}
    cluster = await make_cluster(kind, **environment, **GRAPHS)
    cluster.tasks = "tests.chaos.sdk_graphs"
    await cluster.start_workers(2)
    async with Balancer(await cluster.start_servers(2)) as balancer, client_of(balancer.url) as client:
        sdk = Sdk(client)
        for check in CHECKS:
            await check(sdk)
        assert min(balancer.used[0], balancer.used[1]) > 20
    assert sdk.methods == sdk.called
    await cluster.check_story()
