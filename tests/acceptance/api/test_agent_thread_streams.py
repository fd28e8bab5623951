"""Streams of threads with the unmodified LangGraph client: commands, channels, pauses and reconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import httpx2
import orjson
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError

from runlane.access.policy import LOCAL
from runlane.api.agent_server import event_stream
from runlane.api.agent_server.event_channels import EventSelection
from runlane.api.agent_server.thread_events import sse_frame
from runlane.api.services import WorkerOptions
from runlane.app import App
from runlane.domain.graph import ThreadStatus
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.store.threads.threads import find_thread
from tests.acceptance.api.agent_client import langgraph_client
from tests.acceptance.api.agent_graphs import add_graphs
from tests.acceptance.api.serving import Api, serving
from tests.harness import eventually

INPUT: dict[str, Any] = {"value": 1, "items": []}
FINAL: dict[str, Any] = {"value": 4, "items": ["a", "b", "c"]}
ALL = ["values", "updates", "messages", "tools", "lifecycle", "input", "checkpoints", "tasks", "custom"]


@pytest.fixture
async def served(own_app: App) -> AsyncGenerator[Api]:
    async with serving(add_graphs(own_app), worker=WorkerOptions()) as api:
        yield api


async def _events(
    api: Api, thread: str, last: str, opened: asyncio.Event | None = None, **body: Any
) -> list[dict[str, Any]]:
    """Read events of a thread until a lifecycle event of this name. Set `opened` once the stream is open."""
    found: list[dict[str, Any]] = []
    async with api.client.stream("POST", f"/threads/{thread}/stream/events", json={"channels": ALL, **body}) as answer:
        assert answer.status_code == 200
        if opened is not None:
            opened.set()
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                found.append(orjson.loads(line.removeprefix("data: ")))
                if found[-1]["params"]["data"] == {"event": last} or _phase(found[-1]) == last:
                    return found
    raise AssertionError(f"The stream ended before {last}: {found}")


def _phase(event: dict[str, Any]) -> str | None:
    return event["params"]["data"]["event"] if event["method"] == "lifecycle" else None


async def _command(api: Api, thread: str, method: str, **params: Any) -> dict[str, Any]:
    answer = await api.client.post(f"/threads/{thread}/commands", json={"id": 7, "method": method, "params": params})
    assert answer.status_code == 200, answer.text
    assert answer.json()["id"] == 7
    return answer.json()


@pytest.mark.parametrize("transport", ["sse", "websocket"])
async def test_a_run_of_a_new_thread(served: Api, transport: str) -> None:
    key = await served.key()
    async with langgraph_client(served, key) as client:
        opened = client.threads.stream(assistant_id="three", transport=transport, headers={"x-api-key": key})
        async with opened as thread:
            started = await thread.run.start(input=INPUT)
            snapshots = [values async for values in thread.values]
            assert snapshots[-1] == FINAL
            state = await thread.output
            assert state["values"] == FINAL if "values" in state else state == FINAL
        assert (await client.runs.get(thread.thread_id, started["run_id"]))["status"] == "success"


async def test_a_person_answers_in_the_same_stream(served: Api) -> None:
    async with langgraph_client(served) as client:
        created = (await client.threads.create())["thread_id"]
        async with client.threads.stream(created, assistant_id="human") as thread:
            await thread.run.start(input=INPUT)
            # The client ends an iteration when an interrupt arrives, and does not end one that begins afterwards.
            if not thread.interrupted:
                async for _ in thread.values:
                    pass
            await eventually(lambda: thread.interrupted, "the interrupt")
            (question,) = thread.interrupts
            assert question["value"] == {"question": "ok?", "value": 2}
            # While a person thinks, the thread has no open run.
            assert (await client.threads.get(created))["status"] == "interrupted"
            await thread.run.respond("yes")
            await thread.output
        state = await client.threads.get_state(created)
        assert state["values"]["items"] == ["a", "ask:yes", "c"]


async def test_a_run_that_ends_while_its_reader_subscribes_is_shown(served: Api) -> None:
    async with langgraph_client(served) as client:
        created = (await client.threads.create())["thread_id"]
        await client.runs.wait(created, "human", input=INPUT)
    parts = served.parts
    # The subscription has read the thread before its run ended.
    thread = replace(await find_thread(parts.database, DEFAULT_TENANT, created), status=ThreadStatus.BUSY)
    watched = EventSelection(frozenset({"lifecycle", "input"}))
    follower = await event_stream.follow_events(parts, LOCAL, thread, watched, None, sse_frame)
    try:
        found = b""
        while b"input.requested" not in found:
            found += await follower.next(60)
    finally:
        follower.close()


@pytest.mark.parametrize("query", ["newest_run_at", "run_at_ordinal"])
async def test_a_run_that_is_accepted_while_its_reader_subscribes_is_shown(
    served: Api, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    async with langgraph_client(served) as client:
        created = (await client.threads.create())["thread_id"]
        thread = await find_thread(served.parts.database, DEFAULT_TENANT, created)
        read = getattr(event_stream, query)

        async def read_after_a_start(*arguments: Any) -> Any:
            found = await read(*arguments)
            monkeypatch.undo()
            await client.runs.create(created, "human", input=INPUT)
            return found

        monkeypatch.setattr(event_stream, query, read_after_a_start)
        watched = EventSelection(frozenset({"lifecycle", "input"}))
        follower = await event_stream.follow_after(served.parts, LOCAL, thread, watched, 0, sse_frame)
        try:
            found = b""
            while b"input.requested" not in found:
                found += await follower.next(60)
        finally:
            follower.close()


async def test_messages_arrive_as_content_blocks(served: Api) -> None:
    async with langgraph_client(served) as client, client.threads.stream(assistant_id="chat") as thread:
        await thread.run.start(input={"messages": [{"role": "user", "content": "hi"}]})
        (message,) = [message async for message in thread.messages]
        assert await message.text == "hello there friend"
        events = await _events(served, thread.thread_id, "completed", since=0, channels=["messages", "lifecycle"])
    kinds = [event["params"]["data"]["event"] for event in events if event["method"] == "messages"]
    assert (kinds[0], kinds[1], kinds[-1]) == ("message-start", "content-block-start", "message-finish")
    assert kinds.count("content-block-delta") > 1


async def test_every_position_resumes_exactly(served: Api) -> None:
    async with langgraph_client(served) as client:
        thread = (await client.threads.create())["thread_id"]
        first = await _command(served, thread, "run.start", assistant_id="human", input=INPUT)
        before = await _events(served, thread, "interrupted", since=first["meta"]["applied_through_seq"])
        (asked,) = (event for event in before if event["method"] == "input.requested")
        interrupt_id = asked["params"]["data"]["interrupt_id"]
        assert asked["params"]["data"]["payload"] == {"question": "ok?", "value": 2}
        await _command(served, thread, "input.respond", interrupt_id=interrupt_id, namespace=[], response="yes")
        whole = await _events(served, thread, "completed", since=0)
    numbers = [event["seq"] for event in whole]
    assert whole[: len(before)] == before
    assert numbers == sorted(set(numbers))
    assert len({event["event_id"] for event in whole}) == len(whole)
    assert [_phase(event) for event in whole if _phase(event)] == ["running", "interrupted", "running", "completed"]
    assert {event["method"] for event in whole} >= {"values", "updates", "tasks", "checkpoints", "custom"} - {"custom"}
    for position in (0, 3, len(before), len(whole) - 2):
        rest = await _events(served, thread, "completed", since=whole[position]["seq"])
        assert rest == whole[position + 1 :]
    header = {"Last-Event-ID": str(whole[-2]["seq"])}
    async with served.client.stream(
        "POST", f"/threads/{thread}/stream/events", json={"channels": ALL}, headers=header
    ) as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == "event: lifecycle"
        assert orjson.loads((await anext(lines)).removeprefix("data: ")) == whole[-1]


async def test_channels_and_namespaces_select(served: Api) -> None:
    async with langgraph_client(served) as client:
        thread = (await client.threads.create())["thread_id"]
        await _command(served, thread, "run.start", assistant_id="three", input=INPUT)
        updates = await _events(served, thread, "completed", since=0, channels=["updates", "lifecycle"])
        nodes = [event["params"]["data"]["node"] for event in updates if event["method"] == "updates"]
        assert nodes == ["a", "b", "c"]
        custom = await _events(served, thread, "completed", since=0, channels=["custom", "lifecycle"])
        assert [event["params"]["data"] for event in custom if event["method"] == "custom"] == [
            {"payload": {"note": "from b"}}
        ]
        everything = await _events(served, thread, "completed", since=0)
        (root,) = {tuple(event["params"]["namespace"]) for event in everything}
        assert root == ()
        nested = await _events(served, thread, "completed", since=0, namespaces=[[]], depth=0)
        assert nested == everything


async def test_a_stream_stays_open_between_runs(served: Api) -> None:
    async with langgraph_client(served) as client:
        thread = (await client.threads.create())["thread_id"]
        opened = asyncio.Event()
        reading = asyncio.create_task(_events(served, thread, "failed", opened, channels=["lifecycle"]))
        await opened.wait()
        for graph, status in (("three", "success"), ("three", "success"), ("failing", "error")):
            answer = await _command(served, thread, "run.start", assistant_id=graph, input=INPUT)
            run_id = answer["result"]["run_id"]

            async def ended(wanted: str = status, run: str = run_id) -> bool:
                return (await client.runs.get(thread, run))["status"] == wanted

            await eventually(ended, f"the end of {run_id}")
        found = await reading
    assert [_phase(event) for event in found] == ["running", "completed", "running", "completed", "running", "failed"]
    assert "boom on purpose" in found[-1]["params"]["data"]["error"]


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("run.start", {"assistant_id": "nope"}, "invalid_argument"),
        ("run.start", {"assistant_id": "three", "bogus": 1}, "invalid_argument"),
        ("run.start", {}, "invalid_argument"),
        ("input.respond", {"interrupt_id": "0" * 32, "namespace": [], "response": 1}, "no_such_interrupt"),
        ("input.respond", {"response": 1}, "invalid_argument"),
        ("state.fork", {"checkpoint_id": "x"}, "not_supported"),
        ("bogus", {}, "unknown_command"),
    ],
)
async def test_refused_commands_change_nothing(served: Api, method: str, params: dict[str, Any], code: str) -> None:
    thread = "11111111-1111-4111-8111-111111111111"
    answer = await _command(served, thread, method, **params)
    assert (answer["type"], answer["error"]) == ("error", code)
    assert answer["message"]
    assert (await served.client.get(f"/threads/{thread}")).status_code == 404


async def test_bad_subscriptions_are_refused(served: Api) -> None:
    async with langgraph_client(served) as client:
        thread = (await client.threads.create())["thread_id"]
    refused: list[tuple[dict[str, Any], int]] = [
        ({"channels": []}, 422),
        ({"channels": ["bogus"]}, 422),
        ({"channels": ["values"], "depth": -1}, 422),
        ({"channels": ["values"], "since": -1}, 422),
        ({"channels": ["values"], "since": 2**40}, 400),
    ]
    for body, status in refused:
        answer = await served.client.post(f"/threads/{thread}/stream/events", json=body)
        assert answer.status_code == status, (body, answer.text)
    unknown = await served.client.post(
        "/threads/11111111-1111-4111-8111-111111111111/stream/events", json={"channels": ["values"]}
    )
    assert unknown.status_code == 404
    bad = await served.client.post(f"/threads/{thread}/commands", json={"method": "run.start"})
    assert bad.status_code == 422


async def test_a_second_answer_is_refused(served: Api) -> None:
    async with langgraph_client(served) as client:
        thread = (await client.threads.create())["thread_id"]
        await client.runs.wait(thread, "human", input=INPUT)
        ((item,),) = (await client.threads.get(thread))["interrupts"].values()
        answers = await asyncio.gather(
            *(
                _command(served, thread, "input.respond", interrupt_id=item["id"], namespace=[], response=f"r{number}")
                for number in range(5)
            )
        )
        assert sorted(answer["type"] for answer in answers) == ["error"] * 4 + ["success"]
        (accepted,) = (answer for answer in answers if answer["type"] == "success")
        await client.runs.join(thread, accepted["result"]["run_id"])
        assert len(await client.runs.list(thread)) == 2


async def test_a_stream_breaks_off_when_its_server_stops(own_app: App) -> None:
    # A client takes a clean end for the failure of the run, and reconnects after a break.
    async with serving(add_graphs(own_app)) as api, langgraph_client(api) as client:
        thread = (await client.threads.create())["thread_id"]
        async with api.client.stream(
            "POST", f"/threads/{thread}/stream/events", json={"channels": ["lifecycle"]}
        ) as answer:
            api.parts.end_streams()
            with pytest.raises(httpx2.RemoteProtocolError):
                await answer.aread()


async def test_sockets_without_a_key_are_refused(served: Api) -> None:
    address = served.url.replace("http:", "ws:") + "/threads/11111111-1111-4111-8111-111111111111/stream/events"
    async with connect(address) as socket:
        with pytest.raises(ConnectionClosedError):
            await socket.recv()
        assert socket.close_code == 4401
    headers = {"x-api-key": await served.key("viewer")}
    async with connect(address, additional_headers=headers) as socket:
        await socket.send("nonsense")
        assert orjson.loads(await socket.recv())["error"] == "invalid_argument"
        await socket.send('{"id": 1, "method": "subscription.subscribe", "params": {"channels": ["values"]}}')
        with pytest.raises(ConnectionClosedError):
            await socket.recv()
        assert socket.close_code == 4404
    async with connect(address, additional_headers=headers) as socket:
        await socket.send('{"id": 1, "method": "run.start", "params": {"assistant_id": "three"}}')
        with pytest.raises(ConnectionClosedError):
            await socket.recv()
        assert socket.close_code == 4403
