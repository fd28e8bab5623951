"""The checks of `runlane doctor` over HTTP, and the serving processes that an operator sees."""

from __future__ import annotations

from runlane.app import App
from runlane.settings import Settings
from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.serving import Api, copy_of, serving
from tests.acceptance.api.shop import app as shop
from tests.acceptance.api.test_runs import problem_of


async def test_an_operator_sees_what_is_wrong_and_how_to_correct_it(idle_api: Api) -> None:
    await idle_api.run("greet", wait=False)
    found = (await idle_api.get("/doctor")).json()
    assert found["healthy"] is False
    workers = next(finding for finding in found["findings"] if finding["check"] == "workers")
    assert (workers["level"], workers["message"]) == ("broken", "none online, and 1 runs wait")
    assert "runlane worker" in workers["cure"]


async def test_a_tenant_does_not_see_the_platform(idle_api: Api) -> None:
    await create_tenant(idle_api.parts.database, "acme", actor="test")
    acme = {"Authorization": f"Bearer {await idle_api.key('operator', tenant='acme')}"}
    problem_of(await idle_api.get("/doctor", headers=acme), 403, "forbidden")


async def test_every_serving_process_is_listed_until_it_stops(own_app: App, settings: Settings) -> None:
    async with serving(own_app) as first:
        await first.application.state.heartbeat.renew()
        async with serving(copy_of(shop, settings)) as second:
            await second.application.state.heartbeat.renew()
            servers = (await first.get("/doctor")).json()["servers"]
            assert len(servers) == 2
            assert {"followers", "pages", "memory_mb", "bus", "connected", "worker"} <= set(servers[0]["figures"])
        assert len((await first.get("/doctor")).json()["servers"]) == 1
