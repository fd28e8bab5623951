"""The run routes over HTTP: their answers to valid and invalid requests."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx2
import pytest

from tests.acceptance.api.serving import API, Api, frames
from tests.harness import eventually
from tests.scale import scaled

# Several pages of a poller, written while it reads.
POLLED_LINES = scaled(500, 2_000)


def problem_of(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """Return the error, after checking its shape."""
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    assert body["code"] == code, body
    assert body["detail"] == body["message"]
    assert set(body) - {"fields"} == {"detail", "code", "message"}
    return body


async def test_a_run_is_accepted_followed_and_read(api: Api) -> None:
    accepted = await api.post("/tasks/greet/run", {"input": {"text": "hi", "lines": 2}})
    assert accepted.status_code == 202
    body = accepted.json()
    run_id = body["run_id"]
    assert body["stream_url"] == f"{API}/runs/{run_id}/stream"
    assert body["status_url"] == f"{API}/runs/{run_id}/status"
    ended = (await api.get(f"/runs/{run_id}/wait")).json()
    assert (ended["status"], ended["result"], ended["error"]) == ("completed", {"said": "hi"}, None)
    assert ended["input"] == {"text": "hi", "lines": 2}
    assert (await api.get(f"/runs/{run_id}")).json() == ended
    status = (await api.client.get(body["status_url"])).json()
    assert status["orchestration_id"] == "greet"
    assert status["status"] == "completed"
    assert status["worker_id"] == ended["worker_id"]
    assert {"current_step_id", "waiting_for_human", "total_cost_usd", "total_tokens_used"} <= set(status)
    attempts = (await api.get(f"/runs/{run_id}/attempts")).json()["attempts"]
    assert [(attempt["attempt"], attempt["outcome"]) for attempt in attempts] == [(1, "completed")]


@pytest.mark.parametrize("part", ["", "/status", "/attempts", "/steps", "/events", "/logs", "/wait"])
async def test_runs_answer_under_the_orchestration_path_too(api: Api, part: str) -> None:
    run = await api.run("save", input={"value": 3})
    here = await api.get(f"/runs/{run['run_id']}{part}")
    there = await api.get(f"/orchestrations/runs/{run['run_id']}{part}")
    assert here.status_code == there.status_code == 200
    assert here.text == there.text


async def test_steps_and_failed_attempts_are_listed(api: Api) -> None:
    saved = await api.run("save", input={"value": 7})
    steps = (await api.get(f"/runs/{saved['run_id']}/steps")).json()["steps"]
    assert [(step["path"], step["output"]) for step in steps] == [("checkpoint", {"value": 7})]
    failed = await api.run("fail")
    assert failed["status"] == "failed"
    assert failed["error"]["message"] == "it always does"
    attempts = (await api.get(f"/runs/{failed['run_id']}/attempts")).json()["attempts"]
    assert attempts[0]["outcome"] == "failed"
    assert attempts[0]["error"]["type"] == "Fail"


async def test_an_attempt_that_runs_is_among_the_attempts(api: Api) -> None:
    run = await api.run("wait", wait=False)
    path = f"/runs/{run['run_id']}/attempts"
    attempts = await eventually(lambda: _json(api, path, "attempts"), "an attempt")
    assert attempts[0]["outcome"] is None
    assert attempts[0]["worker_id"]
    assert (await api.post(f"/runs/{run['run_id']}/cancel")).json()["status"] == "cancellation_requested"


async def _json(api: Api, path: str, name: str) -> Any:
    return (await api.get(path)).json()[name]


async def test_lists_are_filtered_and_paged(idle_api: Api) -> None:
    api = idle_api
    ids = [(await api.run("greet", wait=False, ordering_key=f"key-{number}"))["run_id"] for number in range(5)]
    other = (await api.run("wait", wait=False))["run_id"]
    assert await _listed(api) == [other, *reversed(ids)]
    assert await _listed(api, target="greet") == list(reversed(ids))
    assert await _listed(api, lane="slow") == [other]
    assert await _listed(api, key="key-3") == [ids[3]]
    assert await _listed(api, text="KEY-4") == [ids[4]]
    assert await _listed(api, text="100%") == []
    assert await _listed(api, status=["completed", "failed"]) == []
    assert await _listed(api, status=["queued"], tenant="default", target="wait") == [other]
    assert await _listed(api, accepted_before="2020-01-01T00:00:00Z") == []
    assert await _listed(api, accepted_from="2020-01-01T00:00:00Z", target="wait") == [other]
    found: list[str] = []
    cursor: str | None = None
    while True:
        params: dict[str, Any] = {"limit": 2} | ({} if cursor is None else {"cursor": cursor})
        page = (await api.get("/runs", params=params)).json()
        found += [run["run_id"] for run in page["runs"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == [other, *reversed(ids)]


async def _listed(api: Api, **params: Any) -> list[str]:
    answer = await api.get("/runs", params=params)
    assert answer.status_code == 200, answer.text
    return [run["run_id"] for run in answer.json()["runs"]]


async def test_invalid_list_filters_are_refused(idle_api: Api) -> None:
    for params in (
        {"status": "done"},
        {"limit": "0"},
        {"limit": "many"},
        {"accepted_from": "yesterday"},
        {"text": "a\0"},
    ):
        body = problem_of(await idle_api.get("/runs", params=params), 422, "invalid_request")
        assert body["fields"][0]["field"].startswith("query.")


async def test_a_batch_is_accepted_whole_or_not_at_all(idle_api: Api) -> None:
    items: list[dict[str, Any]] = [{"task": "greet", "input": {"lines": number}} for number in range(3)]
    answer = await idle_api.post("/runs/batch", {"runs": items})
    assert answer.status_code == 202
    assert answer.json()["count"] == 3
    ids = [run["run_id"] for run in answer.json()["runs"]]
    assert await _listed(idle_api) == list(reversed(ids))
    problem_of(await idle_api.post("/runs/batch", {"runs": [*items, {"task": "gret"}]}), 404, "unknown_task")
    problem_of(await idle_api.post("/runs/batch", {"runs": []}), 422, "invalid_request")
    assert await _listed(idle_api) == list(reversed(ids))


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({"priority": False}, 422, "invalid_request", "body.priority"),
        ({"priority": 101}, 422, "invalid_request", "body.priority"),
        ({"priority": "1"}, 422, "invalid_request", "body.priority"),
        ({"hold": 1}, 422, "invalid_request", "body.hold"),
        ({"delay_seconds": -1}, 422, "invalid_request", "body.delay_seconds"),
        ({"prioritty": 1}, 422, "invalid_request", "body.prioritty"),
        ({"ordering_key": ""}, 422, "invalid_request", "body.ordering_key"),
        ({"ordering_key": "a\u0000"}, 422, "invalid_request", "body.ordering_key"),
        ({"input": []}, 422, "invalid_request", "body.input"),
        ({"input": {"text": 7}}, 422, "invalid_input", None),
        ({"input": {"txt": "a"}}, 422, "invalid_input", None),
    ],
)
async def test_a_request_that_does_not_fit_names_the_field(
    idle_api: Api, body: Any, status: int, code: str, field: str | None
) -> None:
    problem = problem_of(await idle_api.post("/tasks/greet/run", body), status, code)
    if field is not None:
        assert [item["field"] for item in problem["fields"]] == [field]
    assert await _listed(idle_api) == []


async def test_bodies_that_are_not_json_are_refused(idle_api: Api) -> None:
    headers = {"content-type": "application/json"}
    path = f"{API}/tasks/greet/run"
    problem_of(await idle_api.client.post(path, content=b'{"input":', headers=headers), 400, "invalid_json")
    problem_of(await idle_api.client.post(path, content=b"[" * 100_000, headers=headers), 400, "bad_request")
    nan = b'{"delay_seconds": NaN}'
    problem_of(await idle_api.client.post(path, content=nan, headers=headers), 422, "invalid_request")
    surrogate = b'{"input": {"text": "\\ud800"}}'
    problem_of(await idle_api.client.post(path, content=surrogate, headers=headers), 422, "invalid_input")
    problem_of(await idle_api.client.post(path, content=b"input=1"), 422, "invalid_request")


async def test_unknown_things_are_404_and_wrong_methods_405(idle_api: Api) -> None:
    problem = problem_of(await idle_api.post("/tasks/gret/run", {}), 404, "unknown_task")
    assert 'did you mean "greet"' in problem["message"]
    for path in ("/runs/run_x", "/runs/run_x/stream", "/runs/run_x/logs", "/runs/%20/events", "/runs/run_x/wait"):
        problem_of(await idle_api.get(path), 404, "run_not_found")
    for action in ("cancel", "retry", "approve", "release"):
        problem_of(await idle_api.post(f"/runs/run_x/{action}"), 404, "run_not_found")
    problem_of(await idle_api.get("/nothing"), 404, "not_found")
    problem_of(await idle_api.client.put(f"{API}/runs"), 405, "method_not_allowed")


async def test_held_runs_are_approved_and_failed_runs_retried(api: Api) -> None:
    held = await api.run("greet", wait=False, hold=True)
    path = f"/runs/{held['run_id']}"
    assert held["status"] == "awaiting_approval"
    problem_of(await api.post(f"{path}/retry"), 409, "wrong_state")
    problem_of(await api.post(f"{path}/resume", {"response": "go"}), 409, "wrong_state")
    approved = await api.post(f"{path}/approve")
    assert (approved.status_code, approved.json()["status"]) == (202, "queued")
    assert (await api.get(f"{path}/wait")).json()["status"] == "completed"
    failed = await api.run("fail")
    path = f"/runs/{failed['run_id']}"
    assert (await api.post(f"{path}/retry")).status_code == 202
    again = (await api.get(f"{path}/wait")).json()
    assert (again["status"], again["attempt"]) == ("failed", 2)


async def test_a_waiting_run_is_moved_and_cancelled(idle_api: Api) -> None:
    api = idle_api
    run = await api.run("greet", wait=False)
    path = f"/runs/{run['run_id']}"
    patched = await api.client.patch(f"{API}{path}", json={"priority": 50})
    assert patched.status_code == 200
    assert (await api.get(path)).json()["priority"] == 50
    assert (await api.post(f"{path}/cancel")).json()["status"] == "cancelled"
    assert (await api.post(f"{path}/cancel")).json()["status"] == "cancelled"
    problem_of(await api.client.patch(f"{API}{path}", json={"priority": 1}), 409, "wrong_state")


async def test_a_running_run_is_cancelled(api: Api) -> None:
    run = await api.run("wait", wait=False)
    path = f"/runs/{run['run_id']}"
    await eventually(lambda: _is(api, path, "running"), "running")
    assert (await api.post(f"{path}/cancel")).status_code == 200
    assert (await api.get(f"{path}/wait")).json()["status"] == "cancelled"


async def _is(api: Api, path: str, status: str) -> bool:
    return (await api.get(path)).json()["status"] == status


async def test_bulk_changes_are_bounded_and_counted(idle_api: Api) -> None:
    api = idle_api
    for _ in range(5):
        await api.run("greet", wait=False)
    await api.run("wait", wait=False)
    tried = (await api.post("/runs/cancel", {"filter": {"target": "greet"}, "dry_run": True})).json()
    assert (tried["matched"], tried["changed"]) == (5, 0)
    some = (await api.post("/runs/cancel", {"filter": {"target": "greet"}, "limit": 3})).json()
    assert (some["matched"], some["changed"], some["refused"], some["more"]) == (3, 3, 0, True)
    rest = (await api.post("/runs/cancel", {"filter": {"target": "greet"}, "limit": 3})).json()
    assert (rest["changed"], rest["more"]) == (2, False)
    assert len(await _listed(api, status="cancelled")) == 5
    none = (await api.post("/runs/retry", {"filter": {"target": "greet", "status": ["cancelled"]}})).json()
    assert none["matched"] == 0
    problem_of(await api.post("/runs/cancel", {"filter": {}}), 422, "invalid_request")
    problem_of(await api.post("/runs/cancel", {}), 422, "invalid_request")


async def test_failed_runs_are_retried_in_bulk(api: Api) -> None:
    failed = [await api.run("fail") for _ in range(3)]
    answer = (await api.post("/runs/retry", {"filter": {"target": "fail"}})).json()
    assert answer["changed"] == 3
    for run in failed:
        ended = (await api.get(f"/runs/{run['run_id']}/wait")).json()
        assert ended["attempt"] == 2


async def test_waiting_ends_with_the_time_and_with_the_run(api: Api) -> None:
    run = await api.run("wait", wait=False)
    path = f"/runs/{run['run_id']}/wait"
    early = await api.get(path, params={"timeout_seconds": 0.1})
    assert early.json()["status"] in ("queued", "running")
    waiting = asyncio.create_task(api.get(path, params={"timeout_seconds": 60}))
    await eventually(lambda: api.parts.tail.followers == 1, "a follower")
    await api.post(f"/runs/{run['run_id']}/cancel")
    assert (await waiting).json()["status"] == "cancelled"
    await eventually(lambda: api.parts.tail.followers == 0, "no follower")
    problem_of(await api.get(path, params={"timeout_seconds": 61}), 422, "invalid_request")


async def test_a_log_poller_always_terminates(api: Api) -> None:
    run = await api.run("greet", wait=False, input={"lines": POLLED_LINES})
    got: list[dict[str, Any]] = []
    since, deadline = 0, time.monotonic() + 240
    while True:
        assert time.monotonic() < deadline
        page = (await api.get(f"/runs/{run['run_id']}/logs", params={"since": since, "limit": 100})).json()
        assert page["next_index"] == since + len(page["logs"])
        assert (page["first_index"], page["truncated"], page["log_source"]) == (0, False, "database")
        got += page["logs"]
        since = page["next_index"]
        if page["expected_log_count"] is not None and since >= page["expected_log_count"]:
            break
        if not page["logs"]:
            await asyncio.sleep(0.02)
    assert [entry["index"] for entry in got] == list(range(len(got)))
    assert [entry["message"] for entry in got if entry["event"] == "log"] == [
        f"line {n + 1}" for n in range(POLLED_LINES)
    ]
    assert page["status"] == "completed"
    assert page["runner_id"]
    streamed = frames((await api.get(f"/runs/{run['run_id']}/stream")).text)
    assert [event["_id"] for event in streamed] == [entry["index"] + 1 for entry in got]
    only = (await api.get(f"/runs/{run['run_id']}/logs", params={"event": "log", "limit": 5})).json()
    assert [entry["message"] for entry in only["logs"]] == ["line 1", "line 2", "line 3"]


async def test_a_late_poller_sees_what_was_cut_and_ends(api: Api) -> None:
    from sqlalchemy import text

    from runlane.store.sql.database import read
    from runlane.store.sql.statement import Statement

    run = await api.run("greet", input={"lines": 10})
    last = run["last_seq"]
    for statement in (
        # After the first a poller sees what one does that reads the run before the cut and its events after it.
        "delete from run_events where run_id = :id and seq <= 8",
        "update runs set first_seq = 9 where id = :id",
    ):
        await read(api.parts.database, Statement("cut", text(statement)), id=run["run_id"])
        page = (await api.get(f"/runs/{run['run_id']}/logs", params={"since": 2})).json()
        assert (page["truncated"], page["first_index"]) == (True, 8)
        assert [entry["index"] for entry in page["logs"]] == list(range(8, last))
        assert page["next_index"] == page["expected_log_count"] == last
        events = (await api.get(f"/runs/{run['run_id']}/events", params={"after": 2})).json()
        assert (events["first_seq"], events["events"][0]["seq"]) == (9, 9)
    await read(
        api.parts.database, Statement("cut", text("delete from run_events where run_id = :id")), id=run["run_id"]
    )
    page = (await api.get(f"/runs/{run['run_id']}/logs", params={"since": 2})).json()
    assert page["next_index"] == page["expected_log_count"]


async def test_tasks_lanes_and_workers_are_shown(api: Api) -> None:
    tasks = (await api.get("/tasks")).json()["tasks"]
    assert "greet" in [task["name"] for task in tasks]
    workers = (await api.get("/workers")).json()["workers"]
    assert workers[0]["worker_id"] == api.parts.worker.worker_id if api.parts.worker else None
    assert {lane["name"] for lane in (await api.get("/lanes")).json()["lanes"]} == {"default", "slow"}
    assert (await api.get("/lanes/slow")).json()["name"] == "slow"
    problem_of(await api.get("/lanes/none"), 404, "unknown_lane")


async def test_a_lane_is_changed_with_old_and_new(idle_api: Api) -> None:
    api = idle_api
    path = f"{API}/lanes/slow"
    changed = (await api.client.patch(path, json={"max_slots": 3, "enabled": True})).json()
    assert changed["changed"] == {"max_slots": {"old": None, "new": 3}}
    assert changed["lane"]["slots_available"] == 3
    back = (await api.client.patch(path, json={"max_slots": None, "poll_interval_ms": 300})).json()
    assert back["changed"]["max_slots"] == {"old": 3, "new": None}
    for body in ({}, {"max_slots": -1}, {"max_slots": "3"}, {"slots": 3}, {"poll_interval_ms": 1}):
        problem_of(await api.client.patch(path, json=body), 422, "invalid_request")
    problem_of(await api.client.patch(f"{API}/lanes/none", json={"enabled": True}), 404, "unknown_lane")
    entries = (await api.get("/audit", params={"action": "lane.set"})).json()["entries"]
    assert [entry["new"]["max_slots"] for entry in entries] == [None, 3]
    assert entries[0]["actor"].startswith("key_")


async def test_the_lane_design_has_its_paths(idle_api: Api) -> None:
    api = idle_api
    run = await api.run("greet", wait=False)
    status = (await api.client.get("/admin/workers/status")).json()
    assert status["total_queued"] == 1
    assert status["queued_by_type"][0]["job_type"] == "greet"
    assert (await api.client.get("/admin/workers/lanes")).json() == (await api.get("/lanes")).json()
    job = f"/admin/workers/jobs/{run['run_id']}"
    moved = (await api.client.patch(f"{job}/priority", params={"priority": 9})).json()
    assert moved == {"job_id": run["run_id"], "old_priority": 0, "new_priority": 9}
    assert (await api.client.post(f"{job}/cancel")).json()["cancelled"] is True
    problem_of(await api.client.post(f"{job}/cancel"), 409, "wrong_state")
    problem_of(await api.client.patch(f"{job}/priority", params={"priority": 9}), 409, "wrong_state")


async def test_a_paused_run_is_resumed_with_an_answer(idle_api: Api) -> None:
    from sqlalchemy import text

    from runlane.store.sql.database import read
    from runlane.store.sql.statement import Statement

    run = await idle_api.run("greet", wait=False)
    pause = Statement("pause", text("update runs set status = 'paused' where id = :id"))
    await read(idle_api.parts.database, pause, id=run["run_id"])
    assert (await idle_api.get(f"/runs/{run['run_id']}/status")).json()["waiting_for_human"] is True
    resumed = await idle_api.post(f"/runs/{run['run_id']}/resume", {"response": "yes"})
    assert (resumed.status_code, resumed.json()["status"]) == (202, "queued")
    events = (await idle_api.get(f"/runs/{run['run_id']}/events")).json()["events"]
    assert events[-1]["type"] == "resumed"
    assert events[-1]["response"] == {"response": "yes"}
