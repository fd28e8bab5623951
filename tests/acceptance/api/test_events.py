"""Run dependencies, events and triggers over HTTP: what is stored, what starts, and what others may see of it."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from runlane import Client, InvalidRequest, RunNotFound
from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.serving import Api
from tests.harness import eventually

TRIGGER = {
    "id": "on-paid",
    "event": "order.*",
    "condition": "event.data.amount > 10",
    "task": "greet",
    "input": {"text": "{{event.data.who}} paid {{event.data.amount}}"},
}


async def client_of(api: Api, role: str = "developer", tenant: str = "default") -> Client:
    return Client(api.url, await api.key(role, tenant))


async def test_a_run_after_others_starts_when_they_have_completed(api: Api) -> None:
    async with await client_of(api) as client:
        first = await client.enqueue("greet", {"text": "one"})
        second = await client.enqueue("greet", {"text": "two"}, hold=True)
        third = await client.enqueue("greet", {"text": "three"}, after=[first.run_id, second.run_id])
        await client.wait(first.run_id, timeout=60)
        run = await client.get(third.run_id)
        assert run.status == "blocked"
        assert run.after is not None
        assert run.after["reason"] == "waits for 1 of 2 runs"
        await client.approve(second.run_id)
        assert (await client.wait(third.run_id, timeout=60)).status == "completed"


async def test_a_run_that_can_never_start_says_why(api: Api) -> None:
    async with await client_of(api) as client:
        parent = await client.enqueue("fail")
        dependent = await client.enqueue("greet", after=[parent.run_id])
        cleaning = await client.enqueue("greet", after=[parent.run_id], after_on="any_failed")
        run = await client.wait(dependent.run_id, timeout=60)
        assert (run.status, run.error) == (
            "cancelled",
            {
                "type": "dependency_failed",
                "message": "It starts after the success of 1 run, of which 1 failed.",
            },
        )
        assert (await client.wait(cleaning.run_id, timeout=60)).status == "completed"
        batch = await client.enqueue_many([("greet", {}), ("greet", {})], after=[cleaning.run_id], after_on="end")
        assert {(await client.wait(item.run_id, timeout=60)).status for item in batch} == {"completed"}


@pytest.mark.parametrize(
    "options",
    [{"after": ["run_1"]}, {"after": ["run_" + "0" * 32]}],
    ids=["not an id", "unknown"],
)
async def test_an_unknown_run_is_not_found(idle_api: Api, options: dict[str, Any]) -> None:
    async with await client_of(idle_api) as client:
        with pytest.raises(RunNotFound):
            await client.enqueue("greet", **options)


async def test_bad_dependencies_are_refused(idle_api: Api) -> None:
    api = idle_api
    for body in ({"after": "run_1"}, {"after": [7]}, {"after": ["run_x"] * 1001}, {"after_on": "maybe"}):
        assert (await api.post("/tasks/greet/run", body)).status_code == 422
    answer = await api.post("/tasks/greet/run", {"after_on": "end"})
    assert (answer.status_code, "without after" in answer.json()["message"]) == (422, True)


async def test_runs_of_other_tenants_cannot_be_waited_for(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    mine = (await api.run("greet", wait=False))["run_id"]
    async with await client_of(api, tenant="acme") as theirs:
        with pytest.raises(RunNotFound):
            await theirs.enqueue("greet", after=[mine])


async def test_an_event_starts_a_run_by_a_trigger(api: Api) -> None:
    async with await client_of(api) as client:
        await client.sync({"triggers": [TRIGGER]})
        sent = await client.broadcast_many(
            [
                {"name": "order.paid", "data": {"amount": 50, "who": "Ada"}, "id": "e-1", "key": "customer-1"},
                {"name": "order.paid", "data": {"amount": 5, "who": "Bob"}},
                {"name": "order.paid", "data": {"amount": 50, "who": "Ada"}, "id": "e-1"},
                {"name": "user.created"},
            ]
        )
        assert [receipt.duplicate for receipt in sent] == [False, False, True, False]

        async def decided() -> bool:
            found = [await client.event_outcomes(receipt.event_id) for receipt in sent[:2]]
            return all(items and items[0].outcome != "pending" for items in found)

        await eventually(decided, "the decision of the trigger")
        (outcome,) = await client.event_outcomes(sent[0].event_id)
        run = await client.wait(outcome.run_id or "", timeout=60)
        assert (run.status, run.result) == ("completed", {"said": "Ada paid 50"})
        assert run.origin == {"trigger": "on-paid", "event": sent[0].event_id, "depth": 1}
        assert await client.event_outcomes(sent[3].event_id) == []
        listed = [item async for item in client.trigger_outcomes("on-paid")]
        assert [item.outcome for item in listed] == ["filtered", "started"]
        assert [item.event_id async for item in client.trigger_outcomes("on-paid", outcome="started")] == [
            sent[0].event_id
        ]
        stored = [event async for event in client.stored_events(name="order.paid")]
        assert [event.id for event in stored] == [sent[1].event_id, sent[0].event_id]
        event = await client.stored_event(sent[0].event_id)
        assert (event.sent_id, event.key, event.source) == ("e-1", "customer-1", "api")
        assert [item.id async for item in client.stored_events(key="customer-1")] == [event.id]


async def test_a_replay_lists_and_then_evaluates(api: Api) -> None:
    async with await client_of(api) as client:
        sent = await client.broadcast("order.paid", {"amount": 50, "who": "Ada"})
        await client.sync({"triggers": [TRIGGER]})
        dry = await client.replay_trigger("on-paid", "2020-01-01T00:00:00Z", dry_run=True)
        assert (dry.events, dry.dry_run) == ((sent.event_id,), True)
        assert await client.event_outcomes(sent.event_id) == []
        await client.replay_trigger("on-paid", "2020-01-01T00:00:00Z")

        async def started() -> bool:
            found = await client.event_outcomes(sent.event_id)
            return [item.outcome for item in found] == ["started"]

        await eventually(started, "the replayed event")
        again = await client.replay_trigger("on-paid", "2020-01-01T00:00:00Z")
        assert (again.events, again.started_before) == ((), 1)
    entries = (await api.get("/audit", params={"action": "trigger.replay"})).json()["entries"]
    assert [entry["subject"] for entry in entries] == ["on-paid"]


async def test_roles_and_tenants(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    async with await client_of(api) as mine:
        sent = await mine.broadcast("a.b", {"n": 1})
    acme = {"Authorization": f"Bearer {await api.key('developer', 'acme')}"}
    for path in (f"/events/{sent.event_id}", f"/events/{sent.event_id}/outcomes"):
        assert (await api.get(path, headers=acme)).status_code == 404
    assert (await api.get("/events", headers=acme)).json()["events"] == []
    assert (await api.get("/events", headers=acme, params={"tenant": "default"})).status_code == 404
    viewer = {"Authorization": f"Bearer {await api.key('viewer')}"}
    assert (await api.get("/events", headers=viewer)).status_code == 200
    refused = await api.post("/events", {"events": [{"name": "a"}]}, headers=viewer)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert (await api.post("/triggers/x/replay", {"from": "2020-01-01T00:00:00Z"}, headers=viewer)).status_code == 403
    assert (await api.post("/triggers/x/replay", {"from": "2020-01-01T00:00:00Z"})).status_code == 404
    other = await api.post("/events", {"events": [{"name": "a"}], "tenant": "acme"})
    assert other.status_code == 202
    assert len((await api.get("/events", headers=acme)).json()["events"]) == 1


async def test_bad_events_and_triggers_are_refused(idle_api: Api) -> None:
    api = idle_api

    async def post(body: Any) -> httpx2.Response:
        return await api.post("/events", body)

    for events in ([], [{"name": "a"}] * 101, [{"data": 1}], [{"name": "a", "more": 1}], [{"name": "a", "id": ""}]):
        assert (await post({"events": events})).status_code == 422
    for name in ("run.completed", "a b", "a..b", ""):
        answer = await post({"events": [{"name": "ok"}, {"name": name}]})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert (await api.get("/events")).json()["events"] == []
    async with await client_of(api) as client:
        with pytest.raises(InvalidRequest):
            await client.replay_trigger("on-paid", "yesterday")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"event": "order*"}, "does not match"),
        ({"event": "run.started"}, "the ends of runs are"),
        ({"condition": "event.data ="}, "invalid syntax"),
        ({"condition": "{{event.data}}"}, "cannot contain placeholders"),
        ({"input": {"text": "{{data.who}}"}}, "A trigger has only the event"),
        ({"input": {"text": "{{event.payload.who}}"}}, 'does not have the field "payload"'),
        ({"task": "gret"}, 'did you mean "greet"'),
        ({"orchestration_id": "x"}, "exactly one of task"),
        ({"run_target": "greet"}, "only for events that begin with run."),
        ({"message": "hello"}, "a task has no message"),
    ],
)
async def test_checks_of_triggers(idle_api: Api, change: dict[str, Any], message: str) -> None:
    answer = await idle_api.post("/sync", {"triggers": [{**TRIGGER, **change}], "dry_run": True})
    assert answer.status_code == 422
    assert message.lower() in answer.text.lower().replace("\\", "")


async def test_a_trigger_is_listed_exported_and_protects_its_target(idle_api: Api) -> None:
    api = idle_api
    hello = {"id": "hello", "steps": [{"id": "say", "type": "print", "print_content": "Hello"}]}
    start = {"id": "start", "event": "a.b", "orchestration_id": "hello"}
    synced = await api.post("/sync", {"orchestrations": [hello], "triggers": [start], "source": "one"})
    assert synced.status_code == 200, synced.text
    assert [item["id"] for item in (await api.get("/triggers")).json()["triggers"]] == ["start"]
    assert (await api.get("/triggers/start")).json()["definition"]["event"] == "a.b"
    assert len((await api.get("/triggers/start/versions")).json()["versions"]) == 1
    assert (await api.get("/schemas/trigger")).json()["title"] == "Runlane trigger"
    bundle = (await api.post("/bundles/export", {"triggers": ["start"]})).json()
    assert [item["id"] for item in bundle["orchestrations"]] == ["hello"]
    assert (await api.post("/bundles/import", {"bundle": bundle})).json()["unchanged"] == 2
    moved = await api.post("/sync", {"triggers": [start], "source": "two", "take_over": True})
    assert moved.status_code == 200, moved.text
    refused = await api.post("/sync", {"source": "one", "remove_missing": True})
    assert (refused.status_code, "trigger" in refused.text) == (422, True)
