"""Shared concurrency limits over HTTP: tenants set their own, and a run has the reason why it waits."""

from __future__ import annotations

import pytest

from runlane.client import Client
from runlane.errors import Conflict, Forbidden, NotFound
from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.conftest import Api
from tests.acceptance.api.test_lists import API
from tests.harness import new_run
from tests.limits import shared


async def start(api: Api, count: int, tenant: str = "default") -> list[str]:
    runs = [new_run(target="greet", tenant=tenant, limits=(shared("gpu"),)) for _ in range(count)]
    return [accepted.run_id for accepted in await api.parts.connection.accept(runs)]


async def test_a_limit_is_set_read_changed_and_deleted(idle_api: Api) -> None:
    async with Client(idle_api.url, await idle_api.key()) as client:
        made = await client.set_concurrency_limit("gpu", 1)
        assert (made.name, made.max_running, made.admitted, made.waiting) == ("gpu", 1, 0, 0)
        first, second = await start(idle_api, 2)
        found = await client.concurrency_limit("gpu")
        assert (found.admitted, found.waiting) == (1, 1)
        assert list(await client.concurrency_limits()) == [found]
        waiting = await client.get(second)
        assert waiting.waiting_reason == {
            "code": "concurrency_limit",
            "message": "1 of 1 runs for gpu are queued or running",
            "runs": [first],
            "refs": {},
        }
        raised = await client.set_concurrency_limit("gpu", 2)
        assert (raised.admitted, raised.waiting) == (2, 0)
        assert (await client.get(second)).status == "queued"
        lowered = await client.set_concurrency_limit("gpu", 0)
        assert (lowered.admitted, lowered.waiting) == (0, 2)
        with pytest.raises(Conflict, match="2 wait for it"):
            await client.delete_concurrency_limit("gpu")
        for run_id in (first, second):
            await client.cancel(run_id)
        assert (await client.delete_concurrency_limit("gpu")).max_running == 0
        with pytest.raises(NotFound):
            await client.concurrency_limit("gpu")


async def test_a_limit_belongs_to_its_tenant_and_needs_the_permission(idle_api: Api) -> None:
    await create_tenant(idle_api.parts.database, "acme", actor="test")
    async with Client(idle_api.url, await idle_api.key("operator", tenant="acme")) as client:
        await client.set_concurrency_limit("gpu", 3)
        assert [item.tenant for item in await client.concurrency_limits()] == ["acme"]
        with pytest.raises(NotFound):
            await client.set_concurrency_limit("gpu", 3, tenant="default")
    async with Client(idle_api.url, await idle_api.key("viewer", tenant="acme")) as client:
        assert len(await client.concurrency_limits()) == 1
        with pytest.raises(Forbidden):
            await client.set_concurrency_limit("gpu", 1)
        with pytest.raises(Forbidden):
            await client.delete_concurrency_limit("gpu")
    async with Client(idle_api.url, await idle_api.key()) as client:
        assert await client.concurrency_limits() == []
        assert (await client.concurrency_limit("gpu", tenant="acme")).max_running == 3
    with pytest.raises(NotFound, match='The concurrency limit "gpu" does not exist'):
        await start(idle_api, 1)


@pytest.mark.parametrize("body", [{"max_running": -1}, {"max_running": 1.5}, {}, {"max_running": 1, "speed": 2}])
async def test_a_bad_number_is_refused(idle_api: Api, body: dict[str, object]) -> None:
    answer = await idle_api.client.put(f"{API}/concurrency-limits/gpu", json=body)
    assert answer.status_code == 422
    assert (await idle_api.client.put(f"{API}/concurrency-limits/a%20b", json={"max_running": 1})).status_code == 422


async def test_metrics_have_the_use_of_each_limit(idle_api: Api) -> None:
    await idle_api.client.put(f"{API}/concurrency-limits/gpu", json={"max_running": 1})
    await start(idle_api, 3)
    text = (await idle_api.client.get("/metrics")).text
    assert 'runlane_concurrency_limit_max{limit="gpu"} 1.0' in text
    assert 'runlane_concurrency_limit_admitted{limit="gpu"} 1.0' in text
    assert 'runlane_concurrency_limit_waiting{limit="gpu"} 2.0' in text
