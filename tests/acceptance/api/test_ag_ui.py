"""AG-UI: a user interface runs agents and receives events that match the types of the protocol's own package."""

from __future__ import annotations

from typing import Any

from ag_ui.core import Event, ResumeEntry, RunAgentInput, UserMessage
from pydantic import TypeAdapter

from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.openai_clients import CAREFUL, HELPER, Typist, bring
from tests.acceptance.api.serving import Api, frames
from tests.acceptance.api.test_runs import problem_of

HELLO = "Hello there, nice to meet you."
EVENT: TypeAdapter[Any] = TypeAdapter(Event)
THINKER: dict[str, Any] = {"id": "thinker", "model": "scripted", "answers": [{"say": "Yes.", "thinking": "Is it so?"}]}


def given(text: str, run_id: str = "run-1", **more: Any) -> dict[str, Any]:
    """Return the request of a client for a message."""
    messages = [*more.pop("before", ()), UserMessage(id="m", content=text)]
    wanted = RunAgentInput(thread_id="thread-1", run_id=run_id, messages=messages, **more)
    return wanted.model_dump(mode="json", by_alias=True, exclude_none=True)


async def events_of(api: Api, agent: str, body: dict[str, Any], **options: Any) -> list[Any]:
    """Return the events of a stream, parsed by the protocol's own types."""
    answer = await api.client.post(f"/ag-ui/agents/{agent}", json=body, **options)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-runlane-run-id"].startswith("run_")
    return [EVENT.validate_python(frame) for frame in frames(answer.text)]


def kinds(events: list[Any]) -> list[str]:
    return [event.type.value for event in events]


def text_of(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type.value == "TEXT_MESSAGE_CONTENT")


async def test_a_message_is_answered_and_a_repeated_request_gets_the_same_run(api: Api) -> None:
    await bring(api)
    events = await events_of(api, "helper", given("hi", tools=[], state={}, forwarded_props={}))
    assert (kinds(events)[:2], kinds(events)[-2:]) == (
        ["RUN_STARTED", "TEXT_MESSAGE_START"],
        ["TEXT_MESSAGE_END", "RUN_FINISHED"],
    )
    assert text_of(events) == HELLO
    assert (events[0].thread_id, events[0].run_id) == ("thread-1", "run-1")
    assert (events[-1].result, events[-1].outcome.type) == (HELLO, "success")
    assert events[-1].usage[0].output_tokens == 7
    again = await events_of(api, "helper", given("hi", tools=[], state={}, forwarded_props={}))
    assert text_of(again) == HELLO
    assert len((await api.get("/runs")).json()["runs"]) == 1
    problem_of(await api.client.post("/ag-ui/agents/helper", json=given("other")), 409, "idempotency_conflict")


async def test_the_conversation_and_the_context_reach_the_model(api: Api) -> None:
    typist = Typist("ok")
    typist.release(2)
    api.parts.app.models.register("typist", typist)
    await bring(api, {"id": "writer", "model": "typist", "system_prompt": "Be kind."})
    body = given("two", context=[{"description": "The user's city", "value": "Graz"}])
    before: list[dict[str, Any]] = [
        {"id": "1", "role": "user", "content": "one"},
        {"id": "2", "role": "reasoning", "content": "hm"},
        {
            "id": "3",
            "role": "assistant",
            "toolCalls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"id": "4", "role": "tool", "toolCallId": "c", "content": "42"},
        {"id": "5", "role": "assistant", "content": "eins"},
    ]
    await events_of(api, "writer", {**body, "messages": [*before, *body["messages"]]})
    (request,) = typist.requests
    assert [(message.role, message.text) for message in request.messages] == [
        ("user", "one"),
        ("assistant", "eins"),
        ("user", "two"),
    ]
    assert request.instructions == "Be kind.\n\nThe user's city: Graz"


async def test_reasoning_and_failures_are_events(api: Api) -> None:
    await bring(api, HELPER, THINKER)
    events = await events_of(api, "thinker", given("really?"))
    thoughts = [event.delta for event in events if event.type.value == "REASONING_MESSAGE_CONTENT"]
    assert (thoughts, text_of(events)) == (["Is it so?"], "Yes.")
    # The names of threads and runs are the client's, for each agent.
    failed = await events_of(api, "helper", given("fail"))
    assert kinds(failed) == ["RUN_STARTED", "RUN_ERROR"]
    assert (failed[-1].code, "The model is away." in failed[-1].message) == ("broken", True)


async def test_an_approval_is_an_interrupt_that_the_next_run_answers(api: Api) -> None:
    await bring(api, CAREFUL)
    events = await events_of(api, "careful", given("pay the bill"))
    assert [kind for kind in kinds(events) if kind.startswith("TOOL")] == [
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
    ]
    call = next(event for event in events if event.type.value == "TOOL_CALL_START")
    assert text_of(events) == "Let me pay."
    (asked,) = events[-1].outcome.interrupts
    assert (asked.reason, asked.tool_call_id) == ("tool_approval", call.tool_call_id)
    assert asked.response_schema["properties"]["decision"]["enum"] == ["approve", "edit", "deny"]
    wrong = given(
        "", "run-2", resume=[ResumeEntry(interrupt_id=asked.id, status="resolved", payload={"decision": "x"})]
    )
    assert (await api.client.post("/ag-ui/agents/careful", json=wrong)).status_code == 422
    entry = ResumeEntry(interrupt_id=asked.id, status="resolved", payload={"decision": "approve"})
    answered = await events_of(api, "careful", given("", "run-2", resume=[entry]))
    assert (kinds(answered)[1], text_of(answered)) == ("TOOL_CALL_RESULT", "All done.")
    assert answered[-1].outcome.type == "success"
    # A repeated answer follows the run that has continued.
    assert text_of(await events_of(api, "careful", given("", "run-2", resume=[entry]))) == "All done."
    assert len((await api.get("/runs")).json()["runs"]) == 1


async def test_an_answer_does_not_reach_the_next_question(api: Api) -> None:
    """The client repeats its answer, such as after a lost response, and the run asks again meanwhile."""
    pay = CAREFUL["answers"][0]
    await bring(api, {**CAREFUL, "answers": [pay, pay, {"say": "All done."}]})
    (first,) = (await events_of(api, "careful", given("pay both bills")))[-1].outcome.interrupts
    entry = ResumeEntry(interrupt_id=first.id, status="resolved", payload={"decision": "approve"})
    second: Any = first
    for _ in range(2):
        answered = await events_of(api, "careful", given("", "run-2", resume=[entry]))
        (second,) = answered[-1].outcome.interrupts
        assert second.id != first.id
    entry = ResumeEntry(interrupt_id=second.id, status="resolved", payload={"decision": "approve"})
    assert text_of(await events_of(api, "careful", given("", "run-3", resume=[entry]))).endswith("All done.")


async def test_an_interrupt_of_another_tenant_does_not_exist(api: Api) -> None:
    await create_tenant(api.parts.database, "acme", actor="test")
    await bring(api, CAREFUL)
    await bring(api, CAREFUL, tenant="acme")
    (asked,) = (await events_of(api, "careful", given("pay the bill")))[-1].outcome.interrupts
    theirs = {"Authorization": f"Bearer {await api.key('operator', 'acme')}"}
    answers: list[dict[str, Any]] = [
        {"status": "resolved", "payload": {"decision": "approve"}},
        {"status": "cancelled"},
    ]
    for answer in answers:
        body = given("", "run-2", resume=[ResumeEntry(interrupt_id=asked.id, **answer)])
        problem_of(await api.client.post("/ag-ui/agents/careful", json=body, headers=theirs), 404, "not_found")
    (run,) = (await api.get("/runs")).json()["runs"]
    assert run["status"] == "paused"


async def test_an_abandoned_interrupt_cancels_the_run(api: Api) -> None:
    await bring(api, CAREFUL)
    (asked,) = (await events_of(api, "careful", given("pay the bill")))[-1].outcome.interrupts
    entry = ResumeEntry(interrupt_id=asked.id, status="cancelled")
    ended = await events_of(api, "careful", given("", "run-2", resume=[entry]))
    assert ended[-1].outcome.type == "cancelled"
    (run,) = (await api.get("/runs")).json()["runs"]
    assert run["status"] == "cancelled"


async def test_what_is_not_supported_or_not_theirs_is_refused(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    await bring(api)
    url = "/ag-ui/agents/helper"
    unsupported: dict[str, Any] = {"tools": [{"name": "f", "description": "", "parameters": {}}], "state": {"a": 1}}
    for name, value in unsupported.items():
        refused = await api.client.post(url, json={**given("hi"), name: value})
        assert f'"{name}"' in problem_of(refused, 422, "invalid_request")["message"]
    problem_of(await api.client.post(url, json={**given("hi"), "colour": 1}), 422, "invalid_request")
    problem_of(await api.client.post(url, json={**given("hi"), "messages": []}), 422, "invalid_request")
    problem_of(await api.client.post("/ag-ui/agents/none", json=given("hi")), 404, "unknown_definition")
    problem_of(
        await api.client.post(url, json=given("hi"), headers={"Authorization": "Bearer no"}), 401, "unauthorized"
    )
    entry = ResumeEntry(interrupt_id=f"{'0' * 32}_1_{'0' * 16}", status="resolved", payload="yes")
    problem_of(await api.client.post(url, json=given("hi", resume=[entry])), 404, "not_found")
    theirs = {"Authorization": f"Bearer {await api.key('operator', 'acme')}"}
    problem_of(await api.client.post(url, json=given("hi"), headers=theirs), 404, "unknown_definition")
    assert (await api.get("/runs")).json()["runs"] == []
