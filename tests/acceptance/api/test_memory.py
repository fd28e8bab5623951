"""Memory over HTTP: what people, programs and older clients do with it, and what they may not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runlane import Client, Conflict, MemoryBusy, NotFound
from runlane.domain.access import Permission
from runlane.domain.ids import new_id
from runlane.domain.memory import CommitState, NewEntry
from runlane.domain.memory_archive import MemoryImport, NewFragment, import_json
from runlane.errors import InvalidRequest
from runlane.memory.run_tasks import IMPORT_TASK
from runlane.store.access.roles import set_role
from runlane.store.access.tenants import create_tenant
from runlane.submit.memory_runs import memory_run
from tests.acceptance.api.serving import API, Api
from tests.acceptance.api.test_runs import problem_of

MEMORY = f"{API}/memory"


async def new_memory(api: Api, title: str = "notes") -> str:
    made = await api.post("/memory/memories", {"title": title})
    assert made.status_code == 201, made.text
    return made.json()["id"]


async def test_a_memorys_life(idle_api: Api) -> None:
    api = idle_api
    vault = (await api.post("/memory/vaults", {"title": "research", "description": "Of the lab."})).json()
    assert (vault["title"], vault["description"]) == ("research", "Of the lab.")
    problem_of(await api.post("/memory/vaults", {"title": "research"}), 409, "conflict")
    made = (await api.post("/memory/memories", {"title": "project-x", "vault_id": vault["id"]})).json()
    path = f"/memory/memories/{made['id']}"
    # A person sees at once what was just created.
    listed = (await api.get("/memory/memories", params={"vault_id": vault["id"]})).json()
    assert [item["id"] for item in listed["memories"]] == [made["id"]]
    body = {"text": "Ada prefers tea.", "summary": "tea", "metadata": {"by": "ada"}, "tags": {"kind": "preference"}}
    first = (await api.post(f"{path}/entries", body)).json()
    assert {name: first[name] for name in body} == body
    batch = await api.post(f"{path}/entries/batch", {"entries": [{"text": "Two."}, {"text": "Three."}]})
    assert [entry["seq"] for entry in batch.json()["entries"]] == [3, 4]
    fixed = await api.post(
        f"{path}/entries/{first['id']}/correct", {"text": "Ada prefers coffee.", "reason": "She said so."}
    )
    assert (fixed.status_code, fixed.json()["corrects"]) == (201, first["id"])
    again = await api.post(f"{path}/entries/{first['id']}/correct", {"text": "x", "reason": "y"})
    problem_of(again, 409, "conflict")
    tagged = await api.client.put(f"{API}{path}/entries/{fixed.json()['id']}/tags", json={"tags": {"drink": "coffee"}})
    assert tagged.json()["tags"] == {"drink": "coffee"}
    found = (await api.post(f"{path}/search", {"query": "what does Ada prefer: tea, coffee?"})).json()["hits"]
    # The corrected entry is not found; its correction is.
    assert [(hit["entry"]["text"], hit["found_by"]) for hit in found] == [("Ada prefers coffee.", ["text"])]
    gone = await api.client.delete(f"{API}{path}/entries/{batch.json()['entries'][0]['id']}?wait=committed")
    assert (gone.status_code, gone.headers["memory-commit"]) == (200, "committed")
    twice = await api.client.delete(f"{API}{path}/entries/{batch.json()['entries'][0]['id']}")
    assert twice.status_code == 200
    page = (await api.get(f"{path}/entries", params={"limit": 2})).json()
    assert [entry["text"] for entry in page["entries"]] == ["Ada prefers coffee.", "Three."]
    older = (await api.get(f"{path}/entries", params={"limit": 2, "before": page["next_before"]})).json()
    assert [entry["text"] for entry in older["entries"]] == ["Ada prefers tea."]
    assert (older["entries"][0]["corrected_by"], older["next_before"]) == (fixed.json()["id"], None)
    manifest = (await api.get(f"{path}/fragments")).json()["fragments"]
    assert [item["name"] for item in manifest] == ["context"]
    await api.client.put(f"{API}{path}/fragments/progress", json={"content": "Half done."})
    assert (await api.get(f"{path}/fragments/progress")).json()["content"] == "Half done."
    problem_of(await api.client.delete(f"{API}{path}/fragments/context"), 422, "invalid_request")
    problem_of(await api.client.delete(f"{MEMORY}/vaults/{vault['id']}"), 409, "conflict")
    waited = (await api.post(f"{path}/await-commit", {"timeout_seconds": 30})).json()
    assert (waited["state"], waited["seq"]) == ("committed", waited["committed_seq"])
    answer = await api.get(f"{path}/export")
    # Sent while it is read: the server does not hold the whole memory.
    assert answer.headers["transfer-encoding"] == "chunked"
    exported = answer.json()
    assert [entry["text"] for entry in exported["entries"]] == ["Ada prefers tea.", "Three.", "Ada prefers coffee."]
    assert {item["name"] for item in exported["fragments"]} == {"context", "progress"}
    assert (await api.client.delete(f"{API}{path}")).status_code == 200
    problem_of(await api.get(f"{path}/entries"), 404, "not_found")
    assert (await api.client.delete(f"{MEMORY}/vaults/{vault['id']}")).status_code == 200


async def test_the_client_does_the_same(idle_api: Api) -> None:
    async with Client(idle_api.url, await idle_api.key()) as client:
        memory = client.memory
        made = await memory.create_memory("notes", description="Of a program.")
        user = await memory.create_user("ada", "ada@example.com", time_zone="Europe/London")
        assert await memory.get_user("ada") == user
        vault = await memory.create_vault("own", user_id="ada")
        assert (await memory.get_vault(vault.id)).user_id == "ada"
        added = await memory.add_entry(made.id, NewEntry("one"), idempotency_key="a")
        assert await memory.add_entry(made.id, NewEntry("one"), idempotency_key="a") == added
        with pytest.raises(Conflict):
            await memory.add_entry(made.id, NewEntry("another"), idempotency_key="a")
        await memory.add_entries(made.id, [NewEntry("two", tags={"a": "b"}), NewEntry("three")])
        page = await memory.list_entries(made.id, after=added.seq)
        assert [entry.text for entry in page.entries] == ["two", "three"]
        assert (await memory.get_entry(made.id, added.id)).text == "one"
        await memory.put_fragment(made.id, "context", "All of it.")
        assert (await memory.get_fragment(made.id, "context")).content == "All of it."
        assert [info.name for info in await memory.manifest(made.id)] == ["context"]
        assert [hit.entry.text for hit in await memory.search(made.id, "two")] == ["two"]
        assert (await memory.await_commit(made.id, 30)).state is CommitState.COMMITTED
        await memory.delete_entry(made.id, added.id)
        with pytest.raises(NotFound):
            await memory.get_entry(made.id, added.id)
        moved = await memory.move_memory(made.id, vault.id)
        assert moved.vault_id == vault.id
        assert [item.id async for item in memory.list_memories(vault_id=vault.id)] == [made.id]
        assert (await memory.status()).pending == 0
        pages = [page async for page in memory.export_tenant()]
        assert pages[0].memory is not None
        assert {item.title for item in pages[0].vaults} == {"default", "own"}
        with pytest.raises(InvalidRequest):
            await memory.delete_tenant("")
        await memory.delete_tenant("default")
        assert [item async for item in memory.list_vaults()] == []
        with pytest.raises(NotFound):
            await memory.get_memory(made.id)


async def test_bounds_are_checked_before_anything_is_stored(idle_api: Api) -> None:
    """Weakness 24: validation helpers were not called, a duplicate title was an internal error."""
    path = f"/memory/memories/{await new_memory(idle_api)}"
    problem_of(await idle_api.post("/memory/memories", {"title": "notes"}), 409, "conflict")
    for body in (
        {"text": ""},
        {"text": "x" * 9001},
        {"text": "nul \x00"},
        {"text": "x", "summary": "x" * 513},
        {"text": "x", "metadata": {"x": "y" * 20_000}},
        {"text": "x", "metadata": {"nul": "\x00"}},
        {"text": "x", "tags": {"a": 1}},
        {"text": "x", "tags": {f"tag{number}": "" for number in range(51)}},
        {"text": "x", "expires_at": "2001-01-01T00:00:00Z"},
        {"text": "x", "unknown": 1},
    ):
        answer = await idle_api.post(f"{path}/entries", body)
        assert answer.status_code in (413, 422), (body, answer.text)
    for name, content in (("9lives", "x"), ("context", "bell \x07"), ("context", "x" * 65_537)):
        answer = await idle_api.client.put(f"{API}{path}/fragments/{name}", json={"content": content})
        assert answer.status_code in (413, 422), answer.text
    for title in ("", "x" * 51, "sp ace", "ünïcode", "-x"):
        problem_of(await idle_api.post("/memory/vaults", {"title": title}), 422, "invalid_request")
    both = await idle_api.get(f"{path}/entries", params={"before": 5, "after": 1})
    problem_of(both, 422, "invalid_request")
    assert (await idle_api.get(f"{path}/entries")).json()["entries"] == []


async def test_a_key_needs_the_permission_and_sees_its_tenant_only(idle_api: Api) -> None:
    api = idle_api
    memory_id = await new_memory(api)
    await api.post(f"/memory/memories/{memory_id}/entries", {"text": "secret of default"})
    await create_tenant(api.parts.database, "acme", actor="test")
    await set_role(api.parts.database, "reader", ["memory:read"], actor="test")

    def headers(key: str) -> dict[str, Any]:
        return {"headers": {"Authorization": f"Bearer {key}"}}

    reader = headers(await api.key("reader"))
    assert (await api.get(f"/memory/memories/{memory_id}/entries", **reader)).status_code == 200
    problem_of(await api.post(f"/memory/memories/{memory_id}/entries", {"text": "x"}, **reader), 403, "forbidden")
    problem_of(await api.client.delete(f"{MEMORY}/memories/{memory_id}", **reader), 403, "forbidden")
    problem_of(await api.get("/memory/status", **reader), 403, "forbidden")
    stranger = headers(await api.key("operator", "acme"))
    for method, path, body in (
        ("GET", "entries", None),
        ("POST", "entries", {"text": "x"}),
        ("GET", "fragments/context", None),
        ("POST", "search", {"query": "secret"}),
        ("POST", "await-commit", {"timeout_seconds": 1}),
        ("GET", "export", None),
        ("POST", "retry", None),
        ("POST", "discard", None),
    ):
        answer = await api.client.request(method, f"{MEMORY}/memories/{memory_id}/{path}", json=body, **stranger)
        problem_of(answer, 404, "not_found")
    assert (await api.get("/memory/memories", **stranger)).json()["memories"] == []
    problem_of(await api.get("/memory/status", **stranger), 403, "forbidden")
    refused = await api.client.delete(f"{MEMORY}?confirm=default", **stranger)
    problem_of(refused, 422, "invalid_request")
    assert (await api.get(f"/memory/memories/{memory_id}/entries")).json()["entries"] != []


async def test_the_paths_of_the_memory_design(idle_api: Api) -> None:
    client = idle_api.client
    assert (await client.get("/v0/health")).json()["status"] == "healthy"
    vault = (await client.post("/v0/vaults", json={"title": "work", "description": "All of it."})).json()
    assert vault["description"] == "All of it."
    made = await client.post(
        f"/v0/vaults/{vault['vaultId']}/memories", json={"title": "project", "memoryType": "PROJECT"}
    )
    assert (made.status_code, made.json()["memoryType"]) == (201, "PROJECT")
    path = f"/v0/vaults/{vault['vaultId']}/memories/{made.json()['memoryId']}"
    entry = await client.post(f"{path}/entries", json={"rawEntry": "It rains.", "summary": "rain", "tags": {"a": "b"}})
    assert (entry.status_code, entry.json()["rawEntry"]) == (201, "It rains.")
    for text in ("It snows.", "It hails."):
        await client.post(f"{path}/entries", json={"rawEntry": text})
    listed = (await client.get(f"{path}/entries", params={"limit": 2})).json()
    assert ([item["rawEntry"] for item in listed["entries"]], listed["count"]) == (["It hails.", "It snows."], 2)
    older = (await client.get(f"{path}/entries", params={"before": listed["entries"][-1]["creationTime"]})).json()
    assert [item["rawEntry"] for item in older["entries"]] == ["It rains."]
    patched = await client.patch(f"{path}/entries/{entry.json()['entryId']}/tags", json={"tags": {"c": "d"}})
    assert patched.json()["tags"] == {"c": "d"}
    written = await client.put(f"{path}/contexts", content="The weather.", headers={"Content-Type": "text/plain"})
    assert written.status_code == 201
    problem_of(await client.put(f"{path}/contexts", json={}), 415, "unsupported_media_type")
    assert (await client.get(f"{path}/contexts")).text == "The weather."
    by_title = await client.get("/v0/vaults/work/memories/project")
    assert by_title.json()["memoryId"] == made.json()["memoryId"]
    assert (await client.get("/v0/vaults/work/memories")).json()["count"] == 1
    found = (await client.post("/v0/search", json={"memoryId": made.json()["memoryId"], "query": "snows"})).json()
    assert ([item["rawEntry"] for item in found["entries"]], found["latestContext"]) == (["It snows."], "The weather.")
    assert (await client.delete(f"{path}/contexts/{written.json()['contextId']}")).status_code == 204
    assert (await client.get(f"{path}/contexts")).text != "The weather."
    assert (await client.delete(f"{path}/entries/{entry.json()['entryId']}")).status_code == 204
    problem_of(await client.get(f"{path}/entries/{entry.json()['entryId']}"), 404, "not_found")
    other = (await client.post("/v0/vaults", json={"title": "rest"})).json()
    moved = await client.post(f"/v0/vaults/{other['vaultId']}/memories/{made.json()['memoryId']}/attach")
    assert moved.json()["vaultId"] == other["vaultId"]
    problem_of(await client.get(path), 404, "not_found")
    moved_path = f"/v0/vaults/{other['vaultId']}/memories/{made.json()['memoryId']}"
    assert (await client.delete(moved_path)).status_code == 204
    assert (await client.delete(f"/v0/vaults/{vault['vaultId']}")).status_code == 204


async def test_a_full_shard_answers_429_and_stores_nothing(idle_api: Api) -> None:
    """Weakness 20: the error for a full queue was exported and never returned."""
    memory_id = await new_memory(idle_api)
    service = await idle_api.parts.app.memory()
    release = asyncio.Event()
    writer = service._storage.writer
    usual = writer._write

    async def held(jobs: Any) -> None:
        await release.wait()
        await usual(jobs)

    writer._write = held
    others = [
        asyncio.create_task(service.add_entry("default", memory_id, NewEntry(f"entry {number}")))
        for number in range(200)
    ]
    try:
        answer = await idle_api.post(f"/memory/memories/{memory_id}/entries", {"text": "too much"})
        problem_of(answer, 429, "memory_busy")
        assert int(answer.headers["retry-after"]) >= 1
    finally:
        release.set()
    results = await asyncio.gather(*others, return_exceptions=True)
    refused = [item for item in results if isinstance(item, MemoryBusy)]
    assert len(refused) == 200 - 128
    page = await service.list_entries("default", memory_id, limit=500)
    assert len(page.entries) == 128
    assert not any(entry.text == "too much" for entry in page.entries)


async def test_runs_on_a_memory_are_started_by_keys_that_may(api: Api) -> None:
    memory_id = await new_memory(api, "archive")
    path = f"/memory/memories/{memory_id}"
    async with Client(api.url, await api.key()) as client:
        memory = client.memory
        given = MemoryImport([NewEntry("one"), NewEntry("two")], [NewFragment("context", "Imported.")])
        runs = await memory.start_import(memory_id, given, idempotency_key="import-1")
        assert await memory.start_import(memory_id, given, idempotency_key="import-1") == runs
        for run_id in runs:
            assert (await client.wait(run_id, 60)).status == "completed"
        exported = await memory.start_export(memory_id)
        assert (await client.wait(exported, 60)).result == {"records": 4, "entries": 2, "fragments": 1}
        assert await memory.read_export(exported) == await memory.export_memory(memory_id)
        with pytest.raises(NotFound):
            await memory.read_export(runs[0])
        purged = await memory.start_purge(memory_id)
        assert (await client.wait(purged, 60)).result == {"deleted": 2}
        assert (await memory.get_fragment(memory_id, "context")).content == "Imported."
        # There is no embedding model.
        with pytest.raises(InvalidRequest, match="RUNLANE_MEMORY_EMBEDDING_MODEL"):
            await memory.reindex(memory_id)
        await memory.delete_memory(memory_id)
        actions = {entry.action for entry in await client.admin.audit(limit=100)}
        assert {"memory.import", "memory.export", "memory.purge", "memory.delete"} <= actions
    problem_of(await api.post(f"{path}/purge", {}), 404, "not_found")
    other = await new_memory(api, "other")
    problem_of(await api.post(f"/memory/memories/{other}/import", {}), 422, "invalid_request")
    writer = {"Authorization": f"Bearer {await api.key('developer')}"}
    for name in ("purge", "export", "reindex"):
        answer = await api.client.post(f"{MEMORY}/memories/{other}/{name}", json={}, headers=writer)
        problem_of(answer, 403, "forbidden")


async def test_what_a_run_copies_of_a_memory_needs_the_permission_to_read_it(api: Api) -> None:
    memory_id = await new_memory(api, "private")
    async with Client(api.url, await api.key()) as client:
        (imported,) = await client.memory.start_import(memory_id, MemoryImport([NewEntry("the secret plan")], []))
        assert (await client.wait(imported, 60)).status == "completed"
        exported = await client.memory.start_export(memory_id)
        assert (await client.wait(exported, 60)).status == "completed"
        # Its memory does not exist, so that it fails and leaves a dead letter with its input.
        given = import_json(MemoryImport([NewEntry("the secret plan")], []))
        connection = api.parts.connection
        (accepted,) = await connection.accept([memory_run(connection, IMPORT_TASK, "default", new_id("mem"), given)])
        lost = accepted.run_id
        assert (await client.wait(lost, 60)).status == "failed"
    await set_role(api.parts.database, "watcher", {Permission.RUNS_READ, Permission.RUNS_WRITE}, actor="test")
    watcher = {"Authorization": f"Bearer {await api.key('watcher')}"}
    viewer = {"Authorization": f"Bearer {await api.key('viewer')}"}
    for run_id in (imported, exported, lost):
        for part in ("", "/status", "/logs", "/events", "/values/input", "/wait", "/attempts", "/stream", "/timeline"):
            refused = problem_of(await api.get(f"/runs/{run_id}{part}", headers=watcher), 403, "forbidden")
            assert "memory:read" in refused["message"]
        token = await api.post("/stream-tokens", {"run_id": run_id}, headers=watcher)
        problem_of(token, 403, "forbidden")
        problem_of(await api.post(f"/runs/{run_id}/retry", headers=watcher), 403, "forbidden")
    problem_of(await api.get(f"/dead-letters/{lost}", headers=watcher), 403, "forbidden")
    assert "the secret plan" in (await api.get(f"/dead-letters/{lost}", headers=viewer)).text
    seen = await api.get(f"/runs/{exported}/logs", headers=viewer)
    assert "the secret plan" in seen.text
    listed = await api.get("/runs", headers=watcher)
    assert {item["run_id"] for item in listed.json()["runs"]} >= {imported, exported}
    assert "the secret plan" not in listed.text
