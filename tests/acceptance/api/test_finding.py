"""Search by name, saved views, and lists of runs as files."""

from __future__ import annotations

import csv
import io

import orjson

from runlane.domain.saved_view import MAX_VIEWS
from runlane.store.access.saved_views import save_view
from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.flows import ARTICLE, bring
from tests.acceptance.api.serving import API, Api
from tests.acceptance.api.test_runs import problem_of


async def test_records_of_every_kind_are_found_by_id_and_name(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    acme = {"Authorization": f"Bearer {await api.key('operator', tenant='acme')}"}
    await bring(api.parts.database, ARTICLE)
    run_id = (await api.run("greet", wait=False))["run_id"]

    async def hits(words: str, **options: dict[str, str]) -> list[tuple[str, str]]:
        found = (await api.get("/search", params={"q": words}, **options)).json()["hits"]
        assert len(found) <= 20
        return [(hit["kind"], hit["id"]) for hit in found]

    assert await hits(run_id) == [("run", run_id)]
    assert ("run", run_id) in await hits(run_id[:-2])
    assert await hits("ARTIC") == [("orchestration", "article")]
    assert await hits("slo") == [("lane", "slow")]
    assert await hits("%") == []
    for words in (run_id, "artic", "slo"):
        assert await hits(words, headers=acme) == []


async def test_views_are_saved_per_tenant(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    acme = {"Authorization": f"Bearer {await api.key('operator', tenant='acme')}"}
    viewer = {"Authorization": f"Bearer {await api.key('viewer')}"}
    path = f"{API}/views/runs/Failed today"
    for query in ("status=failed&window=24h", "status=failed"):
        saved = await api.client.put(path, json={"query": query})
        assert (saved.status_code, saved.json()["query"]) == (200, query)
    (view,) = (await api.get("/views", params={"page": "runs"}, headers=viewer)).json()["views"]
    assert (view["name"], view["query"], view["tenant"]) == ("Failed today", "status=failed", "default")
    assert (await api.get("/views", headers=acme)).json()["views"] == []
    problem_of(await api.client.delete(path, headers=acme), 404, "not_found")
    problem_of(await api.client.put(path, json={"query": "x"}, headers=viewer), 403, "forbidden")
    problem_of(await api.client.put(path, json={"query": "x\n"}), 422, "invalid_request")
    assert (await api.client.delete(path)).status_code == 200
    problem_of(await api.client.delete(path), 404, "not_found")
    for number in range(MAX_VIEWS):
        await save_view(api.parts.database, "default", "runs", f"view {number}", "", actor="test")
    problem_of(await api.client.put(f"{API}/views/runs/more", json={"query": ""}), 409, "conflict")


async def test_lists_are_downloaded_as_files(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    acme = {"Authorization": f"Bearer {await api.key('operator', tenant='acme')}"}
    hostile = "=HYPERLINK(1)"
    ids = [(await api.run("greet", wait=False, ordering_key=hostile))["run_id"] for _ in range(3)]
    await api.post("/tasks/wait/run", {"input": {"seconds": 1}})
    lines = await api.get("/runs/export", params={"target": "greet"})
    assert [orjson.loads(line)["run_id"] for line in lines.text.splitlines()] == ids[::-1]
    assert lines.headers["content-disposition"] == 'attachment; filename="runs.jsonl"'
    table = await api.get("/runs/export", params={"target": "greet", "format": "csv", "limit": 2})
    assert table.headers["content-type"].startswith("text/csv")
    assert table.headers["x-content-type-options"] == "nosniff"
    rows = list(csv.DictReader(io.StringIO(table.text)))
    assert [row["run_id"] for row in rows] == ids[:0:-1]
    assert {row["ordering_key"] for row in rows} == {f"'{hostile}"}
    assert (await api.get("/runs/export", headers=acme)).text == ""
    problem_of(await api.get("/runs/export?tenant=default", headers=acme), 404, "not_found")


async def test_filters_accept_the_statuses_of_other_job_systems(idle_api: Api) -> None:
    """`pending` and `approved` are queued, `processing` is running; responses use the statuses of Runlane."""
    run_id = (await idle_api.run("greet", wait=False))["run_id"]
    for status, expected in (("pending", [run_id]), ("approved", [run_id]), ("processing", []), ("queued", [run_id])):
        found = (await idle_api.get("/runs", params={"status": status})).json()["runs"]
        assert [run["run_id"] for run in found] == expected, status
        assert all(run["status"] == "queued" for run in found)
        lines = (await idle_api.get("/runs/export", params={"status": status})).text.splitlines()
        assert [orjson.loads(line)["run_id"] for line in lines] == expected, status
    problem_of(await idle_api.get("/runs", params={"status": "waiting"}), 422, "invalid_request")
