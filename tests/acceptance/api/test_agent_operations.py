"""Runs of hosted graphs are runs like others: lanes, webhooks, traces, bulk cancellation, streams of joined readers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

import orjson
import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import MessagesState
from langgraph.prebuilt import ToolNode
from langgraph_sdk.errors import NotFoundError
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from runlane.api.services import WorkerOptions
from runlane.app import App
from runlane.observability import tracing
from runlane.settings import Settings
from tests.acceptance.api.agent_client import langgraph_client
from tests.acceptance.api.agent_graphs import State, add_graphs, ask, chain
from tests.acceptance.api.serving import Api, copy_of, serving
from tests.acceptance.api.shop import app as shop
from tests.harness import eventually
from tests.webhook_receiver import WebhookReceiver

INPUT: dict[str, Any] = {"value": 1, "items": []}
FINAL: dict[str, Any] = {"value": 4, "items": ["a", "b", "c"]}
ORIGIN = "https://chat.example.com"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@tool
def add(one: int, other: int) -> int:
    """Add two numbers."""
    return one + other


async def _call(state: MessagesState) -> dict[str, Any]:
    call = {"name": "add", "args": {"one": 1, "other": 2}, "id": "c1"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


def _count(state: State) -> dict[str, Any]:
    return {"value": state["value"] + 1, "items": ["x"]}


@pytest.fixture
def spans() -> Generator[InMemorySpanExporter]:
    """Tracing is on, and what is exported ends here. A server that is built before is not traced."""
    exporter = InMemorySpanExporter()
    tracing._provider = TracerProvider()
    tracing._provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield exporter
    tracing.stop_tracing()


@pytest.fixture
async def served(settings: Settings) -> AsyncGenerator[Api]:
    # Webhooks may go to loopback, and pages of one origin may call the server.
    app = add_graphs(
        copy_of(shop, settings.model_copy(update={"outbound_allow": "127.0.0.0/8", "api_cors_origins": ORIGIN}))
    )
    app.graph("tooled", chain(MessagesState, call=_call, tools=ToolNode([add])))
    app.graph("outer", chain(State, first=_count, inner=chain(State, x=_count).compile()))
    app.graph("asking", chain(State, first=_count, inner=chain(State, x=_count, ask=ask).compile()))
    async with serving(app, worker=WorkerOptions()) as api:
        yield api


@pytest.fixture
async def client(served: Api) -> AsyncGenerator[Any]:
    async with langgraph_client(served) as sdk:
        yield sdk


async def _names(stream: Any) -> list[str]:
    return [part.event.partition(":")[0] async for part in stream]


async def test_a_graph_has_the_lane_that_operators_assign(served: Api, client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    assigned = await served.client.put("/api/v2/lanes/slow/kinds", json={"kinds": ["graph:three"]})
    assert assigned.is_success, assigned.text
    await served.client.patch("/api/v2/lanes/slow", json={"max_slots": 0})
    run = await client.runs.create(thread, "three", input=INPUT)
    shown = (await served.get(f"/runs/{run['run_id']}")).json()
    assert (shown["lane"], shown["status"]) == ("slow", "queued")
    # Other graphs are not held up by the lane.
    assert await client.runs.wait(None, "outer", input=INPUT) == {"value": 3, "items": ["x"] * 3}
    assert (await client.runs.get(thread, run["run_id"]))["status"] == "pending"
    await served.client.patch("/api/v2/lanes/slow", json={"max_slots": 1})
    assert await client.runs.join(thread, run["run_id"]) == FINAL


async def test_the_end_of_a_run_is_posted_to_its_webhook(client: Any) -> None:
    async with WebhookReceiver() as receiver:
        thread = (await client.threads.create())["thread_id"]
        run = await client.runs.create(thread, "three", input=INPUT, webhook=receiver.url())
        failed = await client.runs.create(thread, "failing", input=INPUT, webhook=receiver.url("/failed"))
        await eventually(lambda: receiver.of() and receiver.of("/failed"), "both webhooks")
        (ended,), (error,) = receiver.of(), receiver.of("/failed")
        assert (ended.json["type"], ended.json["data"]["run_id"]) == ("run.completed", run["run_id"])
        assert (error.json["type"], error.json["data"]["run_id"]) == ("run.failed", failed["run_id"])


async def test_runs_of_a_cron_have_its_webhook_and_its_metadata(served: Api, client: Any) -> None:
    async with WebhookReceiver() as receiver:
        cron = await client.crons.create(
            "three",
            schedule="0 3 1 1 *",
            input=INPUT,
            metadata={"k": 1},
            webhook=receiver.url(),
            on_run_completed="keep",
        )
        triggered = await served.post(f"/schedules/{cron['cron_id']}/trigger", {})
        assert triggered.is_success, triggered.text
        await eventually(receiver.of, "the webhook of the run")
        (thread,) = await client.threads.search()
        (run,) = await client.runs.list(thread["thread_id"])
        (ended,) = receiver.of()
        assert (ended.json["type"], ended.json["data"]["run_id"]) == ("run.completed", run["run_id"])
        assert (run["metadata"]["k"], run["metadata"]["cron_id"]) == (1, cron["cron_id"])


async def test_one_trace_goes_from_the_request_to_the_graph(spans: InMemorySpanExporter, own_app: App) -> None:
    def named(name: str) -> Any:
        return next((span for span in spans.get_finished_spans() if span.name == name), None)

    async with serving(add_graphs(own_app), worker=WorkerOptions()) as api, langgraph_client(api) as client:
        headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        await client.runs.wait(None, "three", input=INPUT, headers=headers)
        attempt = await eventually(lambda: named("run graph:three"), "the span of the attempt")
        accept = named("accept graph")
    assert {f"{span.context.trace_id:032x}" for span in (accept, attempt)} == {TRACE}
    assert attempt.parent.span_id == accept.context.span_id


async def test_many_runs_are_rolled_back_at_once(client: Any) -> None:
    runs = [
        await client.runs.create(None, "sleepy", input=INPUT, after_seconds=3600, on_completion="keep")
        for _ in range(3)
    ]
    await client.runs.cancel_many(status="pending", action="rollback")
    for run in runs:
        with pytest.raises(NotFoundError):
            await client.runs.get(run["thread_id"], run["run_id"])
        assert (await client.threads.get(run["thread_id"]))["status"] == "idle"


async def test_who_waits_may_refuse_a_busy_thread_and_end_its_run(served: Api, client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    run = (await client.runs.create(thread, "sleepy", input=INPUT))["run_id"]
    for path in ("wait", "stream"):
        body = {"assistant_id": "three", "input": INPUT, "multitask_strategy": "reject"}
        refused = await served.client.post(f"/threads/{thread}/runs/{path}", json=body)
        assert refused.status_code == 409, refused.text
    path = f"/threads/{thread}/runs/{run}/join"
    for asked, status in (("false", ("pending", "running")), ("true", ("interrupted",))):
        async with served.client.stream("GET", path, params={"cancel_on_disconnect": asked}) as answer:
            assert answer.status_code == 200

        async def reached(wanted: tuple[str, ...] = status) -> bool:
            return (await client.runs.get(thread, run))["status"] in wanted

        await eventually(reached, f"the run to be {status}")


async def test_a_joined_stream_of_some_modes_has_the_events_of_subgraphs(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    created: list[Any] = []
    whole = await _names(
        client.runs.stream(
            thread,
            "outer",
            input=INPUT,
            stream_mode=["updates", "tasks"],
            stream_subgraphs=True,
            on_run_created=created.append,
        )
    )
    assert whole.count("tasks|inner") == 2
    joined = await _names(client.runs.join_stream(thread, created[0]["run_id"], stream_mode="updates"))
    assert joined == ["metadata", "updates", "updates|inner", "updates", "end"]


async def test_the_result_is_that_of_the_graph_if_a_subgraph_asks(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    created: list[Any] = []
    names = await _names(
        client.runs.stream(
            thread,
            "asking",
            input=INPUT,
            stream_mode=["values"],
            stream_subgraphs=True,
            on_run_created=created.append,
        )
    )
    assert "values|inner" in names
    values = await client.runs.join(thread, created[0]["run_id"])
    (question,) = values.pop("__interrupt__")
    assert (values, question["value"]["question"]) == ({"value": 2, "items": ["x"]}, "ok?")
    assert (await client.threads.get(thread))["values"] == values


async def test_tool_calls_have_a_mode(client: Any) -> None:
    stream = client.runs.stream(None, "tooled", input={"messages": []}, stream_mode="tools")
    calls = [part.data async for part in stream if part.event == "tools"]
    assert [call["event"] for call in calls] == ["tool-started", "tool-finished"]
    assert (calls[0]["tool_name"], calls[0]["input"]) == ("add", {"one": 1, "other": 2})
    assert calls[1]["output"]["content"] == "3"


async def test_threads_are_found_by_their_values_and_sorted_by_their_state(client: Any) -> None:
    first, second, third = [(await client.threads.create())["thread_id"] for _ in range(3)]
    await client.runs.wait(second, "three", input=INPUT)
    await client.runs.wait(first, "outer", input=INPUT)
    found = await client.threads.search(values={"value": 4})
    assert [(item["thread_id"], item["values"]) for item in found] == [(second, FINAL)]
    assert await client.threads.count(values={"value": 4}) == 1
    for order, wanted in (("desc", [first, second]), ("asc", [second, first])):
        listed = await client.threads.search(sort_by="state_updated_at", sort_order=order)
        assert [item["thread_id"] for item in listed if item["thread_id"] != third] == wanted


async def test_the_deletion_of_a_run_shifts_no_number_of_its_thread(served: Api, client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    runs: list[str] = []
    for _ in range(2):
        created: list[Any] = []
        await client.runs.wait(thread, "three", input=INPUT, on_run_created=created.append)
        runs.append(created[0]["run_id"])
    whole = await _lifecycle(served, thread, 4)
    await client.runs.delete(thread, runs[0])
    assert await _lifecycle(served, thread, 2) == whole[2:]


async def _lifecycle(api: Api, thread: str, count: int) -> list[dict[str, Any]]:
    """Return the first lifecycle events of a thread."""
    body = {"channels": ["lifecycle"], "since": 0}
    found: list[dict[str, Any]] = []
    async with api.client.stream("POST", f"/threads/{thread}/stream/events", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                found.append(orjson.loads(line.removeprefix("data: ")))
            if len(found) == count:
                return found
    raise AssertionError(f"the stream ended after {len(found)} events")


async def test_pages_of_an_allowed_origin_read_where_a_run_is(served: Api) -> None:
    body = {"assistant_id": "three", "input": INPUT}
    answer = await served.client.post("/runs/wait", json=body, headers={"Origin": ORIGIN})
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    exposed = {name.strip().lower() for name in answer.headers["access-control-expose-headers"].split(",")}
    assert {"location", "content-location", "x-pagination-next"} <= exposed
    other = await served.client.get("/ok", headers={"Origin": "https://other.example.com"})
    assert "access-control-allow-origin" not in other.headers
