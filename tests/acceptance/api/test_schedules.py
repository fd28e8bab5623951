"""Schedules over HTTP and with the client: each is checked as a whole, and belongs to its tenant."""

from __future__ import annotations

from typing import Any

import pytest

from runlane import Client, VersionMismatch
from runlane.domain.run import Status
from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.serving import API, Api
from tests.acceptance.api.test_runs import problem_of
from tests.harness import eventually

HOURLY: dict[str, Any] = {
    "id": "hourly",
    "target": {"kind": "task", "name": "greet"},
    "spec": [{"every_seconds": 3600}],
    "input": {"text": "hi", "lines": 1},
}


def without(*names: str, **fields: Any) -> dict[str, Any]:
    return {name: value for name, value in (HOURLY | fields).items() if name not in names}


async def test_a_schedules_life(idle_api: Api) -> None:
    api = idle_api
    made = await api.post("/schedules", HOURLY)
    assert made.status_code == 201, made.text
    body = made.json()
    assert (body["status"], body["version"], body["description"], body["source"]) == ("active", 1, "Every hour", "api")
    assert made.headers["etag"] == '"1"'
    problem_of(await api.post("/schedules", HOURLY), 409, "conflict")
    assert [item["id"] for item in (await api.get("/schedules")).json()["schedules"]] == ["hourly"]
    assert (await api.get("/schedules/hourly")).json() == body | {"warnings": []}
    upcoming = (await api.get("/schedules/hourly/next", params={"count": 2})).json()["next"]
    assert upcoming[0]["slot"] == body["next_slot"]
    changed = await api.client.patch(
        f"{API}/schedules/hourly", json={"overlap": "queue_one"}, headers={"If-Match": '"1"'}
    )
    assert (changed.json()["overlap"], changed.json()["version"]) == ("queue_one", 2)
    stale = await api.client.put(f"{API}/schedules/hourly", json=HOURLY, headers={"If-Match": "1"})
    problem_of(stale, 412, "version_mismatch")
    put = await api.client.put(f"{API}/schedules/hourly", json=HOURLY, headers={"If-Match": "2"})
    assert (put.json()["overlap"], put.json()["version"]) == ("skip", 3)
    paused = await api.post("/schedules/hourly/pause", {"reason": "audit"})
    assert (paused.json()["status"], paused.json()["paused_reason"]) == ("paused", "audit")
    fired = await api.post("/schedules/hourly/trigger", {"input": {"text": "now"}})
    assert (fired.status_code, fired.json()["outcome"], fired.json()["kind"]) == (202, "started", "manual")
    run = (await api.get(f"/runs/{fired.json()['run_id']}")).json()
    assert (run["schedule_id"], run["slot"], run["input"]) == ("hourly", fired.json()["slot"], {"text": "now"})
    resumed = await api.post("/schedules/hourly/resume", {})
    assert (resumed.json()["schedule"]["status"], resumed.json()["firings"]) == ("active", [])
    firings = (await api.get("/schedules/hourly/firings")).json()
    assert [firing["outcome"] for firing in firings["firings"]] == ["started"]
    gone = await api.client.delete(f"{API}/schedules/hourly")
    assert gone.status_code == 200
    problem_of(await api.get("/schedules/hourly"), 404, "not_found")
    actions = [entry["action"] for entry in (await api.get("/audit")).json()["entries"]]
    assert actions[0] == "schedule.delete"


BAD: list[tuple[dict[str, Any], int, str]] = [
    (without(spec=[{"cron": "0 0 9 * * MON"}]), 422, "invalid_request"),
    (without(spec=[{"cron": "0 0 31 2 *"}]), 422, "invalid_request"),
    (without(zone="Mars/Olympus"), 422, "invalid_request"),
    (without(spec=[{"every_seconds": 2}]), 422, "invalid_request"),
    (without(spec=[]), 422, "invalid_request"),
    (without("spec"), 422, "invalid_request"),
    (without(spec=[{"at": "2001-01-01T00:00:00Z"}]), 422, "invalid_request"),
    (without(extra=1), 422, "invalid_request"),
    (without(target={"kind": "task", "name": "gret"}), 404, "unknown_task"),
    (without(target={"kind": "orchestration", "name": "nothing"}), 404, "unknown_definition"),
    (
        without(target={"kind": "chat", "name": "a", "session_id": "sess_0"}, message="m", input={}),
        404,
        "session_not_found",
    ),
    (without(input={"colour": "red"}), 422, "invalid_input"),
]


async def test_a_bad_schedule_changes_nothing(idle_api: Api) -> None:
    for body, status, code in BAD:
        problem_of(await idle_api.post("/schedules", body), status, code)
    assert (await idle_api.get("/schedules")).json()["schedules"] == []
    assert (await idle_api.post("/schedules", HOURLY)).status_code == 201
    for body, status, code in BAD:
        problem_of(await idle_api.client.put(f"{API}/schedules/hourly", json=body), status, code)
    assert (await idle_api.get("/schedules/hourly")).json()["version"] == 1


async def test_a_preview_stores_nothing_and_names_days_without_a_slot(idle_api: Api) -> None:
    shown = await idle_api.post(
        "/schedules/preview", {"spec": [{"cron": "*/20 2 * * *"}], "zone": "Europe/Berlin", "count": 3}
    )
    body = shown.json()
    assert len(body["next"]) == 3
    assert "Europe/Berlin" in body["description"]
    assert len(body["warnings"]) == 1
    assert (await idle_api.get("/schedules")).json()["schedules"] == []


async def test_each_tenant_has_its_own_schedules(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    theirs = {"Authorization": f"Bearer {await api.key('developer', tenant='acme')}"}
    await api.post("/schedules", HOURLY)
    assert (await api.get("/schedules", headers=theirs)).json()["schedules"] == []
    answers = [
        await api.get("/schedules/hourly", headers=theirs),
        await api.get("/schedules/hourly/next", headers=theirs),
        await api.get("/schedules/hourly/firings", headers=theirs),
        await api.client.put(f"{API}/schedules/hourly", json=HOURLY, headers=theirs),
        await api.client.patch(f"{API}/schedules/hourly", json={"name": "x"}, headers=theirs),
        await api.client.delete(f"{API}/schedules/hourly", headers=theirs),
        await api.get("/schedules", headers=theirs, params={"tenant": "default"}),
    ]
    span = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}
    for verb, body in {"pause": {"reason": "r"}, "resume": {}, "trigger": {}, "backfill": span}.items():
        answers.append(await api.post(f"/schedules/hourly/{verb}", body, headers=theirs))
    for answer in answers:
        problem_of(answer, 404, "not_found")
    assert (await api.post("/schedules", HOURLY, headers=theirs)).json()["tenant"] == "acme"


@pytest.mark.parametrize(("role", "may"), [("viewer", False), ("operator", True), ("developer", True)])
async def test_who_may_change_schedules(idle_api: Api, role: str, may: bool) -> None:
    headers = {"Authorization": f"Bearer {await idle_api.key(role)}"}
    answer = await idle_api.post("/schedules", HOURLY, headers=headers)
    if may:
        assert answer.status_code == 201
    else:
        problem_of(answer, 403, "forbidden")
    assert (await idle_api.get("/schedules", headers=headers)).status_code == 200


async def test_a_limit_of_schedules_is_429(idle_api: Api) -> None:
    await idle_api.client.patch(f"{API}/tenants/default", json={"max_schedules": 1})
    assert (await idle_api.post("/schedules", HOURLY)).status_code == 201
    problem_of(await idle_api.post("/schedules", without(id="two")), 429, "schedules_limited")


async def test_a_repeated_trigger_starts_one_run(idle_api: Api) -> None:
    await idle_api.post("/schedules", HOURLY)
    key = {"Idempotency-Key": "once"}
    first = await idle_api.post("/schedules/hourly/trigger", {}, headers=key)
    again = await idle_api.post("/schedules/hourly/trigger", {}, headers=key)
    assert first.json() == again.json()


async def test_a_schedule_fires_in_a_serving_process_and_its_task_reads_the_slot(api: Api) -> None:
    await api.client.patch(f"{API}/tenants/default", json={"min_schedule_seconds": 1})
    made = await api.post("/schedules", without(spec=[{"every_seconds": 1}], overlap="allow"))
    assert made.status_code == 201, made.text

    async def started() -> list[Any]:
        found = (await api.get("/schedules/hourly/firings")).json()["firings"]
        return [firing for firing in found if firing["outcome"] == "started"]

    firing = (await eventually(started))[-1]
    ended = await api.get(f"/runs/{firing['run_id']}/wait", params={"timeout_seconds": 60})
    assert (ended.json()["status"], ended.json()["slot"]) == ("completed", firing["slot"])
    assert "runlane_schedule_starts_total" in (await api.client.get("/metrics")).text


async def test_the_client_has_every_operation(idle_api: Api) -> None:
    async with Client(idle_api.url, await idle_api.key()) as client:
        schedules = client.schedules
        made = await schedules.create(HOURLY)
        assert made == await schedules.get("hourly")
        assert [schedule.id async for schedule in schedules.list()] == ["hourly"]
        assert (await schedules.set("hourly", {"priority": 5}, version=1)).version == 2
        with pytest.raises(VersionMismatch):
            await schedules.put(HOURLY, version=1)
        assert (await schedules.put(HOURLY, version=2)).settings.get("priority") is None
        assert (await schedules.pause("hourly", "why")).status == "paused"
        resumed, firings = await schedules.resume("hourly", catch_up="latest")
        assert (resumed.status, firings) == ("active", [])
        fired = await schedules.trigger("hourly", input={"text": "x"})
        assert fired.run_id is not None
        assert (await client.get(fired.run_id)).status is Status.QUEUED
        assert (await client.get(fired.run_id)).schedule_id == "hourly"
        assert [firing.run_id for firing in await schedules.firings("hourly")] == [fired.run_id]
        filled = await schedules.backfill("hourly", "2026-01-01T00:00:00Z", "2026-01-01T05:00:00Z", dry_run=True)
        assert (filled.dry_run, len(filled.firings)) == (True, 5)
        assert len(await schedules.next("hourly", 3)) == 3
        assert (await schedules.preview({"spec": [{"cron": "0 9 * * *"}]}, 1)).description.startswith("At 09:00")
        assert (await schedules.delete("hourly")).id == "hourly"


ECHO = {"id": "echo", "steps": [{"id": "say", "type": "print", "print_content": "hi"}]}
NIGHTLY = {"id": "nightly", "target": {"kind": "orchestration", "name": "echo"}, "spec": [{"cron": "0 2 * * *"}]}


async def test_schedules_of_files_are_synced_exported_and_removed(idle_api: Api) -> None:
    api = idle_api
    body: dict[str, Any] = {"orchestrations": [ECHO], "schedules": [NIGHTLY], "source": "shop"}
    planned = await api.post("/sync", body | {"dry_run": True})
    assert planned.json()["added"] == 2
    assert (await api.get("/schedules")).json()["schedules"] == []
    assert (await api.post("/sync", body)).json()["added"] == 2
    found = (await api.get("/schedules/nightly")).json()
    assert (found["source"], found["target"]["name"]) == ("files", "echo")
    problem_of(await api.client.patch(f"{API}/schedules/nightly", json={"name": "x"}), 409, "conflict")
    await api.post("/schedules/nightly/pause", {"reason": "night off"})
    moved = NIGHTLY | {"spec": [{"cron": "0 3 * * *"}]}
    assert (await api.post("/sync", body | {"schedules": [moved]})).json()["changed"] == 1
    found = (await api.get("/schedules/nightly")).json()
    assert (found["status"], found["generation"]) == ("paused", 2)
    bundle = (await api.post("/bundles/export", {})).json()
    assert [item["id"] for item in bundle["schedules"]] == ["nightly"]
    gone = await api.post("/sync", body | {"schedules": [], "remove_missing": True})
    assert gone.json()["removed"] == 1
    problem_of(await api.get("/schedules/nightly"), 404, "not_found")


async def test_a_sync_with_a_bad_schedule_stores_nothing(idle_api: Api) -> None:
    api = idle_api
    wrong = [
        NIGHTLY | {"spec": [{"cron": "0 0 2 * * *"}]},
        NIGHTLY | {"zone": "Nowhere/Land"},
        NIGHTLY | {"target": {"kind": "orchestration", "name": "nothing"}},
        NIGHTLY | {"spec": [{"every_seconds": 2}]},
        NIGHTLY | {"unknown": 1},
    ]
    for schedule in wrong:
        answer = await api.post("/sync", {"orchestrations": [ECHO], "schedules": [schedule]})
        assert answer.status_code == 422, answer.text
        assert (await api.get("/orchestrations")).json()["orchestrations"] == []
    await api.post("/schedules", without(id="nightly"))
    both = {"orchestrations": [ECHO], "schedules": [NIGHTLY]}
    problem_of(await api.post("/sync", both), 409, "conflict")
    assert (await api.post("/sync", both | {"take_over": True})).status_code == 200
    assert (await api.get("/schedules/nightly")).json()["source"] == "files"


async def test_imported_orchestrations_with_a_schedule_get_one(idle_api: Api) -> None:
    foreign = {
        "id": "sched_1a2b3c4d",
        "name": "Daily",
        "enabled": True,
        "target_type": "orchestration",
        "target_id": "echo",
        "prompt": "go",
        "schedule_type": "interval",
        "interval_value": 2,
        "interval_unit": "hours",
        "missed_run_policy": "skip",
        "last_run_at": None,
    }
    own = ECHO | {"id": "own", "trigger": "scheduled", "schedule": "30 6 * * *"}
    bundle = {
        "synapse_export": True,
        "version": "1.0",
        "orchestrations": [ECHO, own],
        "schedules": [foreign, foreign | {"id": "off", "enabled": False}],
    }
    answer = await idle_api.post("/bundles/import", {"bundle": bundle})
    assert answer.status_code == 200, answer.text
    assert answer.json()["skipped"] == 1, answer.text
    found = {item["id"]: item for item in (await idle_api.get("/schedules")).json()["schedules"]}
    assert set(found) == {"sched_1a2b3c4d", "own"}
    assert found["sched_1a2b3c4d"]["settings"]["spec"] == [{"every_seconds": 7200.0}]
    assert (found["sched_1a2b3c4d"]["catch_up"], found["own"]["target"]["name"]) == ("none", "own")
