"""Agents and orchestrations of Runlane as assistants, with the unmodified LangGraph client."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import Any

import pytest
from langgraph_sdk.errors import ConflictError, NotFoundError, UnprocessableEntityError

from runlane.api.agent_server import native_state
from runlane.app import App
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.settings import Settings
from tests.acceptance.api.agent_client import langgraph_client, stranger_key
from tests.acceptance.api.openai_clients import CAREFUL, HELPER, Typist, bring
from tests.acceptance.api.serving import Api, process, serving
from tests.harness import eventually

HELLO = "Hello there, nice to meet you."
REVIEW: dict[str, Any] = {
    "id": "review",
    "steps": [
        {
            "id": "ask",
            "type": "human",
            "name": "Review",
            "human_prompt": "Publish {state.user_input}?",
            "human_fields": [{"name": "decision", "type": "select", "options": "publish,drop", "required": True}],
            "output_key": "review",
            "next_step_id": "say",
        },
        {"id": "say", "type": "print", "print_content": "{state.review.decision}: {state.user_input}"},
    ],
}


def user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def texts(values: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message["type"], message["content"]) for message in values["messages"]]


@pytest.fixture
async def client(api: Api) -> AsyncGenerator[Any]:
    await bring(api, HELPER, CAREFUL)
    async with langgraph_client(api) as sdk:
        yield sdk


async def _events(stream: Any) -> list[tuple[str, Any]]:
    return [(part.event, part.data) async for part in stream]


async def test_agents_are_assistants(client: Any) -> None:
    found = {item["graph_id"]: item for item in await client.assistants.search(limit=100)}
    assert {"agent:helper", "agent:careful"} <= found.keys()
    helper = await client.assistants.get("helper")
    assert helper == found["agent:helper"]
    assert await client.assistants.get("agent:helper") == helper
    schemas = await client.assistants.get_schemas("helper")
    assert schemas["input_schema"]["required"] == ["messages"]
    assert [node["id"] for node in (await client.assistants.get_graph("helper"))["nodes"]][1] == "agent"
    assert await client.assistants.get_subgraphs("helper") == {}
    own = await client.assistants.create("agent:helper", name="mine", context={"city": "Graz"})
    thread = (await client.threads.create())["thread_id"]
    assert texts(await client.runs.wait(thread, own["assistant_id"], input=user("hi")))[-1] == ("ai", HELLO)


async def test_a_conversation_of_several_turns(api: Api, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    typist = Typist("All", " good")
    api.parts.app.models.register("typist", typist)
    await bring(api, HELPER, {"id": "writer", "model": "typist"})
    thread = (await client.threads.create())["thread_id"]
    typist.release(4)
    first = await client.runs.wait(thread, "writer", input=user("one"))
    assert texts(first) == [("human", "one"), ("ai", "All good")]
    created: list[Any] = []
    modes = ["values", "messages-tuple", "updates"]
    events = await _events(
        client.runs.stream(thread, "writer", input=user("two"), stream_mode=modes, on_run_created=created.append)
    )
    assert [(message.role, message.text) for message in typist.requests[-1].messages] == [
        ("user", "one"),
        ("assistant", "All good"),
        ("user", "two"),
    ]
    run_id = created[0]["run_id"]
    assert events[0] == ("metadata", {"run_id": run_id, "attempt": 1})
    assert events[-1] == ("end", {"run_id": run_id, "status": "success"})
    chunks = [data[0] for name, data in events if name == "messages"]
    assert "".join(chunk["content"] for chunk in chunks) == "All good"
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    final = [data for name, data in events if name == "values"][-1]
    assert texts(final) == [("human", "one"), ("ai", "All good"), ("human", "two"), ("ai", "All good")]
    assert final["messages"][-1]["id"] == chunks[0]["id"]
    (update,) = [data for name, data in events if name == "updates"]
    assert update["agent"]["messages"][0]["content"] == "All good"
    state = await client.threads.get_state(thread)
    assert (state["values"], state["next"]) == (final, [])
    history = await client.threads.get_history(thread)
    assert [len(item["values"]["messages"]) for item in history] == [4, 2]
    monkeypatch.setattr(native_state, "MAX_HISTORY_BYTES", 1)
    assert await client.threads.get_history(thread) == history[:1]
    assert await client.threads.get_history(thread, before=history[0]["checkpoint"]) == history[1:]
    assert await client.threads.get_state(thread, checkpoint_id=history[1]["checkpoint_id"]) == history[1]
    assert (await client.threads.get(thread))["values"] == final
    assert await client.threads.search(status="idle", values={"messages": [{"content": "two"}]})
    assert [run["status"] for run in await client.runs.list(thread)] == ["success", "success"]
    again = await _events(client.runs.join_stream(thread, run_id, stream_mode="values", last_event_id="-1"))
    assert [data for name, data in again if name == "values"][-1] == final
    # The conversation is a chat session, which continues in its thread alone.
    (session,) = (await api.get("/chat")).json()["sessions"]
    refused = await api.post("/chat", {"agent": "writer", "session_id": session["session_id"], "message": "three"})
    assert refused.status_code == 409, refused.text
    await client.threads.delete(thread)
    assert (await api.get("/chat")).json()["sessions"] == []


async def test_an_approval_is_an_interrupt(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    events = await _events(client.runs.stream(thread, "careful", input=user("pay"), stream_mode=["values", "updates"]))
    asked = events[-2][1]["__interrupt__"]
    assert asked[0]["value"]["action_requests"][0]["name"] == "pay"
    assert ("updates", {"__interrupt__": asked}) in events
    waiting = await client.threads.get(thread)
    assert (waiting["status"], list(waiting["interrupts"].values())) == ("interrupted", [asked])
    assert [item["thread_id"] for item in await client.threads.search(status="interrupted")] == [thread]
    state = await client.threads.get_state(thread)
    assert (state["next"], state["tasks"][0]["interrupts"]) == (["agent"], asked)
    assert state["values"]["messages"][-1]["tool_calls"][0]["name"] == "pay"
    (run,) = await client.runs.list(thread)
    assert run["status"] == "success"
    with pytest.raises(UnprocessableEntityError, match="no interrupt"):
        await client.runs.create(thread, "careful", command={"resume": {"0" * 32: "approve"}})
    with pytest.raises(UnprocessableEntityError, match="not a decision"):
        await client.runs.create(thread, "careful", command={"resume": "perhaps"})
    answer = {"resume": {asked[0]["id"]: {"decisions": [{"type": "approve"}]}}}
    values = await client.runs.wait(thread, "careful", command=answer)
    assert texts(values) == [("human", "pay"), ("ai", "Let me pay."), ("tool", "paid"), ("ai", "All done.")]
    assert (await client.threads.get(thread))["status"] == "idle"
    with pytest.raises(ConflictError, match="does not wait"):
        await client.runs.create(thread, "careful", command={"resume": "approve"})


async def test_new_input_withdraws_a_question(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    first = await client.runs.wait(thread, "careful", input=user("pay"))
    assert first["__interrupt__"]
    second = await client.runs.wait(thread, "careful", input=user("pay now"), multitask_strategy="reject")
    assert second["__interrupt__"][0]["id"] != first["__interrupt__"][0]["id"]
    assert [run["status"] for run in await client.runs.list(thread)] == ["success", "interrupted"]


async def test_the_thread_protocol_holds_a_conversation(client: Any) -> None:
    async with client.threads.stream(assistant_id="careful") as thread:
        await thread.run.start(input=user("pay"))
        await eventually(lambda: thread.interrupted, "the question")
        (question,) = thread.interrupts
        assert question["value"]["action_requests"][0]["name"] == "pay"
        await thread.run.respond("approve")
        await thread.output
    state = await client.threads.get_state(thread.thread_id)
    assert texts(state["values"])[-1] == ("ai", "All done.")


async def test_an_orchestration_with_a_person(api: Api, client: Any) -> None:
    loaded = parse_bodies({"orchestrations": [REVIEW]})
    await sync_definitions(api.parts.database, "default", loaded, actor="test")
    thread = (await client.threads.create())["thread_id"]
    asked = await client.runs.wait(thread, "review", input=user("the news"))
    assert asked["__interrupt__"][0]["value"]["prompt"] == "Publish the news?"
    values = await client.runs.wait(thread, "review", command={"resume": "publish"})
    assert (texts(values)[-1], values["output"]) == (("ai", "publish: the news"), "publish: the news")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"input": {"messages": []}}, "input.messages"),
        ({"input": {"messages": [{"role": "robot", "content": "x"}]}}, "robot"),
        ({"input": {"messages": [{"role": "user", "content": [{"type": "image"}]}]}}, "text"),
        ({"input": user("hi"), "interrupt_before": ["agent"]}, "interrupt_before"),
        ({"input": user("hi"), "checkpoint_id": "x"}, "checkpoint"),
        ({"command": {"goto": "agent"}}, "command"),
    ],
)
async def test_what_agents_cannot_do_is_refused(api: Api, client: Any, body: dict[str, Any], problem: str) -> None:
    thread = (await client.threads.create())["thread_id"]
    answer = await api.client.post(f"/threads/{thread}/runs", json={"assistant_id": "helper", **body})
    assert answer.status_code in (404, 422), answer.text
    assert problem in answer.json()["message"]
    assert await client.runs.list(thread) == []


async def test_threads_keep_their_agent_and_their_tenant(api: Api, client: Any) -> None:
    other = await stranger_key(api)
    thread = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread, "helper", input=user("hi"))
    with pytest.raises(ConflictError, match="agent:helper"):
        await client.runs.create(thread, "careful", input=user("hi"))
    with pytest.raises(UnprocessableEntityError):
        await client.threads.update_state(thread, {"messages": []})
    with pytest.raises(UnprocessableEntityError):
        await client.threads.copy(thread)
    async with langgraph_client(api, other) as stranger:
        with pytest.raises(NotFoundError):
            await stranger.assistants.get("helper")
        with pytest.raises(NotFoundError):
            await stranger.threads.get_state(thread)


async def test_a_failed_answer_is_an_error(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    events = await _events(client.runs.stream(thread, "helper", input=user("fail")))
    assert events[-2][0] == "error"
    assert "The model is away." in events[-2][1]["message"]
    assert (await client.threads.get(thread))["status"] == "error"
    values = await client.runs.wait(thread, "helper", input=user("hi"))
    assert texts(values)[-1] == ("ai", HELLO)


async def test_a_killed_worker_does_not_end_the_answer(own_app: App, settings: Settings) -> None:
    words = " ".join(f"word{number}" for number in range(30))
    slow = {"id": "slow", "model": "scripted", "answers": [{"say": words, "piece_delay_seconds": 0.1}]}
    async with serving(own_app) as api, langgraph_client(api) as client:
        await bring(api, slow)
        thread = (await client.threads.create())["thread_id"]
        # Live text of another process arrives over Redis alone; without it, the answer has begun with the attempt.
        begun = "metadata" if settings.redis_url is None else "messages"
        events: list[tuple[str, Any]] = []
        with ExitStack() as workers:
            first = workers.enter_context(process("worker", settings=settings))
            stream = client.runs.stream(thread, "slow", input=user("hi"), stream_mode=["messages-tuple", "values"])
            killed = False
            async for part in stream:
                events.append((part.event, part.data))
                if part.event == begun and not killed:
                    killed = True
                    first.signal(signal.SIGKILL)
                    workers.enter_context(process("worker", settings=settings))
        assert [data["attempt"] for name, data in events if name == "metadata"] == [1, 2]
        chunks = [data[0] for name, data in events if name == "messages"]
        assert "".join(chunk["content"] for chunk in chunks) == words
        assert texts([data for name, data in events if name == "values"][-1]) == [("human", "hi"), ("ai", words)]
        assert events[-1][1]["status"] == "success"
