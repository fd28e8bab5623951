"""An operator drains a worker from outside: its runs end, it claims no more, and it can be let loose again."""

from __future__ import annotations

from typing import Any

from runlane import Client
from runlane.api.services import WorkerOptions
from runlane.app import App
from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.serving import API, Api, serving
from tests.acceptance.api.test_runs import problem_of
from tests.harness import Store, eventually


async def test_a_drained_worker_claims_no_more_until_it_is_resumed(own_app: App) -> None:
    async with serving(own_app, worker=WorkerOptions(concurrency=4)) as api:
        (worker,) = (await api.get("/workers")).json()["workers"]
        worker_id = worker["worker_id"]
        first = (await api.run("wait", wait=False, input={"seconds": 60}))["run_id"]

        async def runs() -> bool:
            return (await api.get(f"/workers/{worker_id}")).json()["run_ids"] == [first]

        await eventually(runs, "the first run")

        # Its heartbeats report what its process uses.
        async def measured() -> bool:
            seen = (await api.get(f"/workers/{worker_id}")).json()["worker"]
            return (seen["memory_bytes"] or 0) > 1_000_000 and seen["cpu_percent"] is not None

        await eventually(measured, "a heartbeat with the usage of the process")
        assert worker["python"].startswith("3.")
        drained = (await api.post(f"/workers/{worker_id}/drain")).json()
        assert drained["status"] == "draining"
        assert api.parts.worker is not None
        claims = api.parts.worker._claims
        await eventually(lambda: not claims._may_claim.is_set(), "the heartbeat has read the request")
        second = (await api.run("greet", wait=False))["run_id"]
        reason = (await api.get(f"/runs/{second}")).json()["waiting_reason"]
        assert reason["code"] == "no_worker"
        assert (await api.get(f"/runs/{first}")).json()["status"] == "running"
        resumed = (await api.post(f"/workers/{worker_id}/resume")).json()
        assert (resumed["status"], resumed["drain_requested_at"]) == ("online", None)
        ended = await api.get(f"/runs/{second}/wait", params={"timeout_seconds": 60})
        assert ended.json()["status"] == "completed"
        await api.post(f"/runs/{first}/cancel")
        actions = [entry["action"] for entry in (await api.get("/audit")).json()["entries"]]
        assert {"worker.drain", "worker.resume"} <= set(actions)


async def test_all_workers_of_a_version_are_drained_at_once(idle_api: Api) -> None:
    api = idle_api
    store = Store(api.parts.app.settings, api.parts.database)
    old, also_old, new, ended = [await store.worker() for _ in range(4)]
    await store.sql(f"update workers set version = '0.0.9' where id in ('{old}', '{also_old}', '{ended}')")
    await store.sql(f"update workers set status = 'offline', ended_at = 1 where id = '{ended}'")

    async def statuses() -> dict[str, str]:
        return {worker["worker_id"]: worker["status"] for worker in (await api.get("/workers")).json()["workers"]}

    async with Client(api.url, await api.key()) as client:
        drained = await client.admin.drain_version("0.0.9")
        assert [worker.id for worker in drained] == sorted([old, also_old])
        assert await statuses() == {old: "draining", also_old: "draining", new: "online"}
        # Repeating changes nothing.
        assert await client.admin.drain_version("0.0.9") == []
        resumed = await client.admin.resume_version("0.0.9")
        assert [worker.id for worker in resumed] == sorted([old, also_old])
    assert set((await statuses()).values()) == {"online"}
    entries = [(entry["action"], entry["subject"]) for entry in (await api.get("/audit")).json()["entries"]]
    assert {(f"worker.{verb}", worker) for verb in ("drain", "resume") for worker in (old, also_old)} <= set(entries)
    await create_tenant(api.parts.database, "acme", actor="test")
    acme = {"Authorization": f"Bearer {await api.key('operator', tenant='acme')}"}
    problem_of(await api.post("/workers/drain", {"version": "0.0.9"}, headers=acme), 403, "forbidden")


async def test_workers_are_drained_by_the_platform_alone(api: Api) -> None:
    await create_tenant(api.parts.database, "acme", actor="test")
    acme = {"Authorization": f"Bearer {await api.key('operator', tenant='acme')}"}
    (worker,) = (await api.get("/workers")).json()["workers"]
    path = f"/workers/{worker['worker_id']}"
    problem_of(await api.post(f"{path}/drain", headers=acme), 403, "forbidden")
    seen = (await api.get(path, headers=acme)).json()
    assert (seen["worker"]["hostname"], seen["worker"]["memory_bytes"], seen["run_ids"]) == (None, None, [])
    assert (seen["worker"]["cpu_percent"], seen["worker"]["python"]) == (None, None)
    problem_of(await api.client.post(f"{API}/workers/wrk_none/drain"), 404, "not_found")


async def test_a_lost_worker_shows_the_attempts_that_ended_with_it(idle_api: Api) -> None:
    api = idle_api
    store = Store(api.parts.app.settings, api.parts.database)
    run = (await api.run("greet", wait=False))["run_id"]
    worker = await store.worker()
    (claimed,) = await store.claim(worker, 1, targets=["greet"])
    assert (await api.get(f"/workers/{worker}")).json()["losses"] == []
    await store.sql("update workers set lease_until = 1 where id = :id", id=worker)

    async def losses() -> list[dict[str, Any]]:
        return (await api.get(f"/workers/{worker}")).json()["losses"]

    (loss,) = await eventually(losses, "the loss")
    assert (loss["run_id"], loss["attempt"], loss["target"]) == (run, claimed.attempt, "greet")
    assert loss["started_at"] <= loss["ended_at"]
    await create_tenant(api.parts.database, "acme", actor="test")
    acme = {"Authorization": f"Bearer {await api.key('operator', tenant='acme')}"}
    assert (await api.get(f"/workers/{worker}", headers=acme)).json()["losses"] == []
