"""Runs of orchestrations over HTTP: start, watch, answer, fork, send events, and read what was done."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.domain.tenant_event import MAX_EVENT_BYTES
from runlane.store.access.tenants import create_tenant
from runlane.submit import repeats
from tests.acceptance.api.flows import ARTICLE, PAYMENT, TWO, bring
from tests.acceptance.api.serving import API, Api, frames
from tests.acceptance.api.test_runs import problem_of
from tests.harness import eventually

PREFIX = f"{API}/orchestrations/runs"


async def start(api: Api, orchestration: str, **body: Any) -> str:
    answer = await api.post(f"/orchestrations/{orchestration}/run", body)
    assert answer.status_code == 202, answer.text
    return answer.json()["run_id"]


async def paused(api: Api, orchestration: str, **body: Any) -> str:
    run_id = await start(api, orchestration, **body)

    async def waits() -> bool:
        return (await api.get(f"/runs/{run_id}")).json()["status"] == "paused"

    await eventually(waits, "a paused run")
    return run_id


async def ended(api: Api, run_id: str) -> dict[str, Any]:
    run = (await api.get(f"/runs/{run_id}/wait", params={"timeout_seconds": 60})).json()
    assert run["status"] in ("completed", "failed", "cancelled"), run
    return run


async def test_the_whole_course_of_a_run_with_a_question(api: Api) -> None:
    await bring(api.parts.database, ARTICLE)
    accepted = await api.post(
        "/orchestrations/article/run",
        {"message": "lanes", "webhook_url": "http://127.0.0.1:9/hook", "session_id": "sess_1"},
    )
    assert accepted.status_code == 202
    body = accepted.json()
    run_id = body["run_id"]
    assert body["status"] == "queued"
    assert (body["stream_url"], body["status_url"]) == (f"{PREFIX}/{run_id}/stream", f"{PREFIX}/{run_id}/status")
    stream = asyncio.create_task(api.client.get(body["stream_url"]))
    status: dict[str, Any] = {}

    async def has_question() -> bool:
        nonlocal status
        status = (await api.client.get(body["status_url"])).json()
        return status["waiting_for_human"] and status["status"] == "paused"

    await eventually(has_question, "a question")
    assert (status["orchestration_id"], status["current_step_id"]) == ("article", "ask")
    run = (await api.get(f"/runs/{run_id}")).json()
    assert (run["forked_from"], "plan" in run, "pins" in run) == (None, False, False)
    assert run["definition"]
    (question,) = run["waiting_for"]
    assert question["prompt"] == "Publish an article on lanes?"
    assert [field["name"] for field in question["fields"]] == ["decision", "notes"]
    assert (await api.get(f"/runs/{run_id}/waits")).json() == {"run_id": run_id, "waits": [question]}
    assert (await api.get("/inbox")).json() == {"questions": [question], "next_cursor": None}
    resumed = await api.post(
        f"/orchestrations/runs/{run_id}/resume", {"response": {"decision": "approve", "notes": "now"}}
    )
    assert resumed.status_code == 202
    assert resumed.json()["run_id"] == run_id
    run = await ended(api, run_id)
    assert (run["status"], run["result"]) == ("completed", "approve: an article on lanes")
    assert run["state"]["answer"] == {"decision": "approve", "notes": "now"}
    assert run["waiting_for"] == []
    events = frames((await asyncio.wait_for(stream, 60)).text)
    types = [event["type"] for event in events if "_id" in event]
    for name in ("human_input_required", "paused", "resumed", "orchestration_complete", "done"):
        assert types.count(name) == 1, (name, types)
    assert next(event for event in events if event["type"] == "resumed")["by"] == "test"
    assert (await api.get("/inbox")).json()["questions"] == []
    status = (await api.client.get(body["status_url"])).json()
    assert (status["status"], status["waiting_for_human"], status["current_step_id"]) == ("completed", False, None)
    assert (status["total_cost_usd"], status["total_tokens_used"]) == (0.0, 0)
    listed = (await api.get("/runs", params={"target": "orchestration:article"})).json()["runs"]
    assert [item["run_id"] for item in listed] == [run_id]


async def test_answers_that_do_not_fit_name_their_fields_and_one_of_two_wins(api: Api) -> None:
    await bring(api.parts.database, ARTICLE)
    run_id = await paused(api, "article")
    path = f"/runs/{run_id}/resume"
    wrong = await api.post(path, {"response": {"decision": "maybe", "nots": "x"}})
    problem = problem_of(wrong, 422, "invalid_input")
    assert {field["field"] for field in problem["fields"]} == {"body.response.decision", "body.response.nots"}
    problem_of(await api.post(path, {"response": {}}), 422, "invalid_input")
    problem_of(await api.post(path, {"response": {"decision": "approve"}, "step": "draft"}), 404, "not_found")
    problem_of(await api.post(path, {"response": 5}), 422, "invalid_request")
    assert (await api.get(f"/runs/{run_id}")).json()["status"] == "paused"
    answers = await asyncio.gather(
        *(api.post(path, {"response": {"decision": choice}, "step": "ask"}) for choice in ("approve", "reject"))
    )
    assert sorted(answer.status_code for answer in answers) == [202, 409]
    loser = next(answer for answer in answers if answer.status_code == 409)
    problem_of(loser, 409, "wrong_state")
    winner = ("approve", "reject")[[answer.status_code for answer in answers].index(202)]
    assert (await ended(api, run_id))["result"] == f"{winner}: an article on "
    problem_of(await api.post(path, {"response": {"decision": "approve"}}), 409, "wrong_state")
    steps = (await api.get(f"/runs/{run_id}/steps")).json()["steps"]
    assert [step["path"] for step in steps] == ["draft", "ask", "publish"]


async def test_several_questions_are_answered_by_their_step(api: Api) -> None:
    await bring(api.parts.database, TWO)
    run_id = await paused(api, "two")
    problem_of(await api.post(f"/runs/{run_id}/resume", {"response": "yes"}), 422, "invalid_request")
    found: list[str] = []
    cursor: str | None = None
    while True:
        params: dict[str, Any] = {"limit": 1} | ({} if cursor is None else {"cursor": cursor})
        page = (await api.get("/inbox", params=params)).json()
        found += [question["path"] for question in page["questions"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == ["split/0/left", "split/1/right"]
    problem_of(await api.get("/inbox", params={"cursor": "nonsense"}), 422, "invalid_request")
    assert (await api.post(f"/runs/{run_id}/resume", {"response": "l", "step": "left"})).status_code == 202
    assert (await api.post(f"/runs/{run_id}/resume", {"response": "r", "step": "split/1/right"})).status_code == 202
    assert (await ended(api, run_id))["result"] == "l and r"


async def test_an_answer_is_taken_once_per_idempotency_key(api: Api) -> None:
    await bring(api.parts.database, ARTICLE)
    key = {"Idempotency-Key": "once"}
    body = {"message": "m", "session_id": "s"}
    first, again = [await api.post("/orchestrations/article/run", body, headers=key) for _ in range(2)]
    assert first.json()["run_id"] == again.json()["run_id"]
    assert (again.json()["replayed"], again.json()["status"]) == (True, "queued")
    for other in ({"message": "n", "session_id": "s"}, {"message": "m"}):
        answer = await api.post("/orchestrations/article/run", other, headers=key)
        problem_of(answer, 409, "idempotency_conflict")
    run_id = first.json()["run_id"]

    async def waits() -> bool:
        return (await api.get(f"/runs/{run_id}")).json()["status"] == "paused"

    await eventually(waits, "a paused run")
    answer = {"response": {"decision": "approve"}}
    replies = [await api.post(f"/runs/{run_id}/resume", answer, headers={"Idempotency-Key": "yes"}) for _ in range(2)]
    assert [reply.status_code for reply in replies] == [202, 202]
    assert replies[0].json() == replies[1].json()
    await ended(api, run_id)


async def test_a_fork_takes_over_what_was_done_and_names_its_source(api: Api) -> None:
    await bring(api.parts.database, ARTICLE)
    run_id = await paused(api, "article", message="x")
    await api.post(f"/runs/{run_id}/resume", {"response": {"decision": "reject"}})
    await ended(api, run_id)
    body = {"from_step": "publish", "state": {"draft": "edited"}}
    key = {"Idempotency-Key": "fork"}
    forked, again = [await api.post(f"/runs/{run_id}/fork", body, headers=key) for _ in range(2)]
    assert forked.status_code == again.status_code == 202, forked.text
    fork_id = forked.json()["run_id"]
    assert fork_id != run_id
    assert again.json()["run_id"] == fork_id
    assert forked.json()["stream_url"] == f"{PREFIX}/{fork_id}/stream"
    other = await api.post(f"/runs/{run_id}/fork", {**body, "state": {}}, headers=key)
    problem_of(other, 409, "idempotency_conflict")
    run = await ended(api, fork_id)
    assert (run["result"], run["forked_from"]) == ("reject: edited", {"run_id": run_id, "from_step": "publish"})
    steps = (await api.get(f"/runs/{fork_id}/steps")).json()["steps"]
    assert [(step["path"], step["attempt"] > 0) for step in steps] == [
        ("draft", False), ("ask", False), ("publish", True),
    ]  # fmt: skip
    problem_of(await api.post(f"/runs/{run_id}/fork", {"from_step": "nowhere"}), 404, "not_found")
    task = await api.run("greet")
    problem_of(await api.post(f"/runs/{task['run_id']}/fork", {"from_step": "a"}), 404, "not_found")


async def test_a_fork_with_the_key_of_its_source_is_not_a_replay_of_it(api: Api) -> None:
    await bring(api.parts.database, PAYMENT)
    key = {"Idempotency-Key": "same"}
    first = (await api.post("/orchestrations/payment/run", {"input": {"item": "tea"}}, headers=key)).json()["run_id"]
    await api.post(f"/runs/{first}/events/payment", {"data": {"amount": 1}})
    await ended(api, first)
    answer = await api.post(f"/runs/{first}/fork", {"from_step": "end"}, headers=key)
    problem_of(answer, 409, "idempotency_conflict")


async def test_events_reach_the_step_that_waits_for_them(api: Api) -> None:
    await bring(api.parts.database, PAYMENT)
    run_id = await paused(api, "payment", input={"item": "tea"})
    (wait,) = (await api.get(f"/runs/{run_id}/waits")).json()["waits"]
    assert (wait["kind"], wait["name"]) == ("event", "payment")
    status = (await api.get(f"/runs/{run_id}/status")).json()
    assert (status["waiting_for_human"], status["current_step_id"]) == (False, "paid")
    assert (await api.get("/inbox")).json()["questions"] == []
    sent = await api.post(f"/runs/{run_id}/events/payment", {"data": {"amount": 7}})
    assert (sent.status_code, sent.json()["run_id"]) == (202, run_id)
    assert (await ended(api, run_id))["result"] == "got 7 for tea"
    problem_of(await api.post(f"/runs/{run_id}/events/payment", {"data": 1}), 409, "wrong_state")
    task = await api.run("wait", wait=False)
    problem_of(await api.post(f"/runs/{task['run_id']}/events/payment", {"data": 1}), 409, "wrong_state")


async def test_events_and_changes_of_forks_are_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker and each reader of the waits of a run have all of its events in memory, and a fork all changes."""
    await bring(api.parts.database, PAYMENT)
    run_id = await paused(api, "payment", input={"item": "tea"})
    for name in ("payment", "later"):
        answer = await api.post(f"/runs/{run_id}/events/{name}", {"data": "x" * MAX_EVENT_BYTES})
        problem_of(answer, 413, "input_too_large")
    await api.post(f"/runs/{run_id}/events/payment", {"data": {"amount": 7}})
    await ended(api, run_id)
    monkeypatch.setattr(repeats, "MAX_EDIT_BYTES", 1000)
    half = {"from_step": "end", "state": {"item": "x" * 600}}
    forked = (await api.post(f"/runs/{run_id}/fork", half)).json()["run_id"]
    await ended(api, forked)
    problem_of(await api.post(f"/runs/{forked}/fork", half), 413, "input_too_large")


async def test_steps_are_listed_whole_and_page_by_page(api: Api) -> None:
    flow = {
        "id": "counted",
        "answers": {"writer": ["first"]},
        "steps": [
            {"id": "loop", "type": "loop", "loop_count": 3, "collect": False, "loop_step_ids": ["n"],
             "next_step_id": "bad"},
            {"id": "n", "type": "transform", "transform_code": "result = 1", "output_key": "n"},
            {"id": "bad", "type": "transform", "transform_code": "result = 1 / 0", "on_error": "write"},
            {"id": "write", "type": "llm", "model": "scripted:writer", "prompt_template": "{state.n}",
             "input_keys": ["n"], "output_key": "text", "next_step_id": "if"},
            {"id": "if", "type": "if_else", "if_condition": "state.n == 1"},
        ],
    }  # fmt: skip
    await bring(api.parts.database, flow)
    run = await ended(api, await start(api, "counted"))
    assert run["status"] == "completed", run
    whole = (await api.get(f"/runs/{run['run_id']}/steps")).json()
    steps = {step["path"]: step for step in whole["steps"]}
    assert list(steps) == ["loop/1/n", "loop/2/n", "loop/3/n", "bad", "write", "if"]
    assert whole["next_cursor"] is None
    assert (steps["bad"]["outcome"], steps["bad"]["error"]["code"]) == ("handled", "expression_error")
    assert (steps["write"]["step_id"], steps["write"]["output"], steps["write"]["input"]) == (
        "write", "first", {"n": 1},
    )  # fmt: skip
    assert steps["write"]["duration_seconds"] >= 0
    tokens = sum(step["tokens"] for step in whole["steps"])
    assert (await api.get(f"/runs/{run['run_id']}/status")).json()["total_tokens_used"] == tokens
    found: list[str] = []
    cursor: str | None = None
    while True:
        params: dict[str, Any] = {"limit": 4} | ({} if cursor is None else {"cursor": cursor})
        page = (await api.get(f"/runs/{run['run_id']}/steps", params=params)).json()
        found += [step["path"] for step in page["steps"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == list(steps)
    problem_of(await api.get(f"/runs/{run['run_id']}/steps", params={"cursor": "x:y"}), 422, "invalid_request")


async def test_unknown_orchestrations_and_invalid_options_are_refused(api: Api) -> None:
    await bring(api.parts.database, ARTICLE)
    problem = problem_of(await api.post("/orchestrations/artcle/run", {}), 404, "unknown_definition")
    assert 'did you mean "article"' in problem["message"]
    bad: list[dict[str, Any]] = [{"message": 5}, {"unknown": 1}, {"priority": 1000}, {"input": []}, {"webhook_url": ""}]
    for body in bad:
        problem_of(await api.post("/orchestrations/article/run", body), 422, "invalid_request")


async def test_tenants_have_their_own_orchestrations_runs_and_inboxes(api: Api) -> None:
    database = api.parts.database
    await create_tenant(database, "acme", actor="test")
    await bring(database, ARTICLE)
    run_id = await paused(api, "article")
    theirs = {"Authorization": f"Bearer {await api.key('developer', tenant='acme')}"}
    problem_of(await api.post("/orchestrations/article/run", {}, headers=theirs), 404, "unknown_definition")
    assert (await api.get("/inbox", headers=theirs)).json()["questions"] == []
    problem_of(await api.get("/inbox", params={"tenant": "default"}, headers=theirs), 404, "not_found")
    body = {"response": {"decision": "approve"}}
    problem_of(await api.post(f"/runs/{run_id}/resume", body, headers=theirs), 404, "run_not_found")
    await bring(database, ARTICLE, tenant="acme")
    answer = await api.post("/orchestrations/article/run", {}, headers=theirs)
    assert answer.status_code == 202

    async def asked() -> bool:
        return len((await api.get("/inbox", headers=theirs)).json()["questions"]) == 1

    await eventually(asked, "their question")
    assert {question["tenant"] for question in (await api.get("/inbox")).json()["questions"]} == {"default", "acme"}


async def test_the_logs_of_a_failed_step_have_its_error_whatever_its_text(api: Api) -> None:
    code = "raise ValueError('see the traceback')\nresult = 1"
    await bring(api.parts.database, {"id": "bad", "steps": [{"id": "a", "type": "transform", "transform_code": code}]})
    run = await ended(api, await start(api, "bad"))
    page = await api.get(f"/runs/{run['run_id']}/logs")
    assert page.status_code == 200, page.text
    (line,) = [line for line in page.json()["logs"] if line["event"] == "step_error"]
    assert line["message"].startswith("step_error: a, ")
    assert "see the traceback" in line["message"]


async def test_the_state_is_readable_before_the_run_ends_and_after_it_was_cancelled(api: Api) -> None:
    await bring(api.parts.database, ARTICLE)
    run_id = await paused(api, "article", message="lanes", input={"tone": "dry"})
    begun = {"user_input": "lanes", "user_query": "lanes", "tone": "dry"}
    state = begun | {"draft": "an article on lanes"}
    assert (await api.get(f"/runs/{run_id}")).json()["state"] == state
    forked = (await api.post(f"/runs/{run_id}/fork", {"from_step": "draft", "state": {"tone": "wet"}})).json()
    await eventually(lambda: _has_question(api, forked["run_id"]), "a paused fork")
    assert (await api.get(f"/runs/{forked['run_id']}")).json()["state"] == state | {"tone": "wet"}
    await api.post(f"/runs/{run_id}/cancel", {})
    assert (await ended(api, run_id))["state"] == state
    held = await start(api, "article", message="lanes", input={"tone": "dry"}, hold=True)
    assert (await api.get(f"/runs/{held}")).json()["state"] == begun


async def test_a_record_has_the_input_of_its_step(api: Api) -> None:
    await bring(api.parts.database, ARTICLE)
    run_id = await paused(api, "article", message="lanes")
    await api.post(f"/runs/{run_id}/resume", {"response": {"decision": "approve"}})
    await ended(api, run_id)
    steps = (await api.get(f"/runs/{run_id}/steps")).json()["steps"]
    assert {step["path"]: step["input"] for step in steps} == {
        "draft": {"user_input": "lanes"},
        "ask": {"draft": "an article on lanes"},
        "publish": {"answer.decision": "approve", "draft": "an article on lanes"},
    }


async def _has_question(api: Api, run_id: str) -> bool:
    return (await api.get(f"/runs/{run_id}")).json()["status"] == "paused"


async def test_parent_and_children_refer_to_each_other(api: Api) -> None:
    step = {"id": "work", "type": "agent", "agent_id": "helper", "output_key": "work"}
    answers = [{"tool": "review", "arguments": {"message": "lanes"}}, "done"]
    bodies = {
        "orchestrations": [{"id": "outer", "steps": [step]}, ARTICLE],
        "agents": [{"id": "helper", "model": "scripted", "tools": ["review"], "answers": answers}],
        "tools": [{"name": "review", "tool_type": "orchestration", "orchestration_id": "article"}],
    }
    await sync_definitions(api.parts.database, "default", parse_bodies(bodies), actor="test")
    run_id = (await api.post("/orchestrations/outer/run", {"message": "go"})).json()["run_id"]

    async def children() -> list[dict[str, Any]]:
        return [child for child in (await api.get(f"/runs/{run_id}")).json()["children"] if child["status"] == "paused"]

    (child,) = await eventually(children, "a child that asks")
    assert (child["target"], child["path"]) == ("orchestration:article", "work#0/0/call_0")
    shown = (await api.get(f"/runs/{child['run_id']}")).json()
    assert (shown["parent"], shown["children"]) == ({"run_id": run_id, "path": "work#0/0/call_0"}, [])
    forked = await api.post(f"/runs/{child['run_id']}/fork", {"from_step": "draft"})
    assert (await api.get(f"/runs/{forked.json()['run_id']}")).json()["parent"] is None
    assert (await api.post(f"/runs/{run_id}/cancel")).status_code == 200
    assert (await ended(api, child["run_id"]))["status"] == "cancelled"
    assert (await ended(api, run_id))["parent"] is None
