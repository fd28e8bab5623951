"""Lists, counts and tags over HTTP and with the client: filters, bounds, and the tenants apart."""

from __future__ import annotations

from typing import Any

import pytest

from runlane import Client, InvalidRequest, RunNotFound, Status
from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.serving import API, Api


async def ids_of(api: Api, headers: dict[str, str] | None = None, **params: Any) -> list[str]:
    answer = await api.get("/runs", params=params, headers=headers)
    assert answer.status_code == 200, answer.text
    return [run["run_id"] for run in answer.json()["runs"]]


async def test_runs_are_listed_and_counted_by_tag_target_lane_and_id(idle_api: Api) -> None:
    api = idle_api
    plain = await api.run("greet", wait=False)
    tagged = await api.run("greet", wait=False, tags=["nightly", "customer=7"])
    other = await api.run("wait", wait=False, tags=["nightly"])
    assert await ids_of(api, tag="nightly") == [other["run_id"], tagged["run_id"]]
    assert await ids_of(api, tag=["nightly", "customer=7"]) == [tagged["run_id"]]
    assert await ids_of(api, tag="nightly", target="wait", status="queued") == [other["run_id"]]
    assert await ids_of(api, ids=[plain["run_id"], other["run_id"], "run_none"]) == [other["run_id"], plain["run_id"]]
    assert await ids_of(api, parent=plain["run_id"]) == []
    row = (await api.get("/runs", params={"tag": "customer=7"})).json()["runs"][0]
    assert row["tags"] == ["customer=7", "nightly"]
    counts = (await api.get("/runs/counts", params={"target": "greet"})).json()["counts"]
    assert [item for item in counts if item["count"]] == [{"status": "queued", "count": 2, "exact": True}]
    assert {item["status"] for item in counts} == {status.value for status in Status}


async def test_a_list_is_sent_again_only_after_a_change(idle_api: Api) -> None:
    api = idle_api
    run_id = (await api.run("greet", wait=False, tags=["nightly"]))["run_id"]

    async def again(etag: str, **params: Any) -> int:
        answer = await api.get("/runs", params={"tag": "nightly", **params}, headers={"If-None-Match": etag})
        assert (answer.status_code == 304) is (answer.content == b"")
        return answer.status_code

    etag = (await api.get("/runs", params={"tag": "nightly"})).headers["etag"]
    # Another client's copy among several, and one that a proxy has compressed.
    for same in (etag, f"W/{etag}", f'"other", {etag}'):
        assert await again(same) == 304
    assert await again('"other"') == 200
    assert await again(etag, status="failed") == 200
    await create_tenant(api.parts.database, "acme", actor="test")
    acme = {"Authorization": f"Bearer {await api.key('viewer', tenant='acme')}", "If-None-Match": etag}
    assert (await api.get("/runs", params={"tag": "nightly"}, headers=acme)).json()["runs"] == []
    await api.client.patch(f"{API}/runs/{run_id}", json={"priority": 7})
    assert await again(etag) == 200


async def test_tags_are_changed_by_the_client(idle_api: Api) -> None:
    async with Client(idle_api.url, await idle_api.key()) as client:
        run_id = (await client.enqueue("greet", tags=["b", "a", "a"])).run_id
        assert (await client.get(run_id)).tags == ("a", "b")
        assert await client.set_tags(run_id, add=["c"], remove=["a", "x"]) == ("b", "c")
        assert [run.id async for run in client.list(tag=["b", "c"])] == [run_id]
        assert {item.status: item.count for item in await client.counts()}[Status.QUEUED] == 1
        assert await client.set_tags(run_id, []) == ()
        assert [run.id async for run in client.list(tag="b")] == []
        with pytest.raises(InvalidRequest, match="Nothing to change"):
            await client.set_tags(run_id)
        with pytest.raises(InvalidRequest, match="Give either all tags"):
            await client.set_tags(run_id, ["a"], add=["b"])
        with pytest.raises(RunNotFound):
            await client.set_tags("run_unknown", ["a"])
    audit = (await idle_api.get("/audit", params={"action": "run.tag"})).json()["entries"]
    assert [entry["new"] for entry in audit] == [{"tags": []}, {"tags": ["b", "c"]}]


@pytest.mark.parametrize("tags", [["a b"], [""], ["é"], ["a" * 65], [f"t{number}" for number in range(21)], "a", [1]])
async def test_invalid_tags_are_422_and_change_nothing(idle_api: Api, tags: Any) -> None:
    run_id = (await idle_api.run("greet", wait=False))["run_id"]
    assert (await idle_api.post("/tasks/greet/run", {"tags": tags})).status_code == 422
    assert (await idle_api.client.patch(f"{API}/runs/{run_id}/tags", json={"add": tags})).status_code == 422
    assert await ids_of(idle_api) == [run_id]


async def test_another_tenants_runs_are_neither_listed_nor_counted_nor_tagged(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    mine = (await api.run("greet", wait=False, tags=["shared"]))["run_id"]
    acme = {"Authorization": f"Bearer {await api.key('operator', tenant='acme')}"}
    theirs = (await api.post("/tasks/greet/run", {"tags": ["shared"]}, headers=acme)).json()["run_id"]
    for params in ({"tag": "shared"}, {"ids": [mine, theirs]}, {"target": "greet"}, {"status": "queued"}):
        assert await ids_of(api, acme, **params) == [theirs]
    assert await ids_of(api, acme, parent=mine) == []
    assert (await api.client.patch(f"{API}/runs/{mine}/tags", json={"add": ["x"]}, headers=acme)).status_code == 404
    counted = (await api.get("/runs/counts", headers=acme)).json()["counts"]
    assert sum(item["count"] for item in counted) == 1
    assert (await api.get("/runs/counts", params={"tenant": "default"}, headers=acme)).status_code == 404
    viewer = {"Authorization": f"Bearer {await api.key('viewer', tenant='acme')}"}
    assert (await api.client.patch(f"{API}/runs/{theirs}/tags", json={"add": ["x"]}, headers=viewer)).status_code == 403
    assert await ids_of(api, tag="shared") == [theirs, mine]


async def test_a_bulk_change_selects_by_tag(idle_api: Api) -> None:
    api = idle_api
    tagged = (await api.run("greet", wait=False, tags=["stop"]))["run_id"]
    await api.run("greet", wait=False)
    answer = await api.post("/runs/cancel", {"filter": {"tags": ["stop"]}})
    assert answer.json()["run_ids"] == [tagged]


async def test_quotas_are_read_by_their_tenant_and_set_by_platform_admins(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    acme = {"Authorization": f"Bearer {await api.key('operator', tenant='acme')}"}
    path = f"{API}/quotas/runs_per_day"
    assert (await api.client.put(path, json={"limit": 1}, headers=acme)).status_code == 403
    answer = await api.client.put(path, json={"limit": 1, "tenant": "acme"})
    assert answer.status_code == 200, answer.text
    assert (await api.post("/tasks/greet/run", {}, headers=acme)).status_code == 202
    refused = await api.post("/tasks/greet/run", {}, headers=acme)
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_reached")
    assert "1 of at most 1 runs today" in refused.json()["message"]
    assert int(refused.headers["Retry-After"]) > 0
    own = {item["name"]: item for item in (await api.get("/quotas", headers=acme)).json()["quotas"]}
    assert (own["runs_per_day"]["limit"], own["runs_per_day"]["used"], own["runs_per_day"]["per"]) == (1, 1, "day")
    assert (await api.get("/quotas", params={"tenant": "default"}, headers=acme)).status_code == 404
    assert (await api.client.put(f"{API}/quotas/nothing", json={"limit": 1})).status_code == 404
    assert (await api.client.put(path, json={"limit": -1})).status_code == 422
    async with Client(api.url, await api.key()) as client:
        found = {item.name: item for item in await client.set_quota("runs_per_day", None, tenant="acme")}
        assert found["runs_per_day"].limit is None
        assert await client.quotas(tenant="acme") == list(found.values())
    assert (await api.post("/tasks/greet/run", {}, headers=acme)).status_code == 202
