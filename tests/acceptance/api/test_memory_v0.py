"""The memory API under /v0: pages by time, repeated requests and searches of clients that use its names."""

from __future__ import annotations

import pytest

from runlane import NewEntry
from tests.acceptance.api.serving import Api
from tests.acceptance.api.test_runs import problem_of


async def new_path(api: Api) -> tuple[str, str]:
    """Create a memory; return its id and the path of its resources."""
    vault = (await api.client.post("/v0/vaults", json={"title": "work"})).json()["vaultId"]
    memory = (await api.client.post(f"/v0/vaults/{vault}/memories", json={"title": "notes"})).json()["memoryId"]
    return memory, f"/v0/vaults/{vault}/memories/{memory}"


async def test_pages_by_time_lose_no_entry_of_one_moment(idle_api: Api) -> None:
    """Weakness 24: a page by time dropped the entries that share the time at its edge."""
    memory_id, path = await new_path(idle_api)
    service = await idle_api.parts.app.memory()
    for batch in range(3):
        entries = [NewEntry(f"{batch} {number}") for number in range(7)]
        added = await service.add_entries("default", memory_id, entries)
        assert len({entry.created_at_us for entry in added}) == 1
    found: list[str] = []
    params: dict[str, str | int] = {"limit": 3}
    while page := (await idle_api.client.get(f"{path}/entries", params=params)).json()["entries"]:
        assert len(page) >= 3
        found += [entry["rawEntry"] for entry in page]
        params["before"] = page[-1]["creationTime"]
    assert found == [f"{batch} {number}" for batch in reversed(range(3)) for number in reversed(range(7))]


async def test_a_repeated_request_with_its_key_changes_nothing(idle_api: Api) -> None:
    """Weakness 21: a request that was sent again had its effect twice."""
    client, (_, path) = idle_api.client, await new_path(idle_api)
    text = {"Content-Type": "text/plain"}
    first = await client.put(f"{path}/contexts", content="first", headers={**text, "Idempotency-Key": "context-1"})
    assert first.status_code == 201
    await client.put(f"{path}/contexts", content="second", headers=text)
    again = await client.put(f"{path}/contexts", content="first", headers={**text, "Idempotency-Key": "context-1"})
    assert again.status_code == 201
    assert (await client.get(f"{path}/contexts")).text == "second"
    other = await client.put(f"{path}/contexts", content="third", headers={**text, "Idempotency-Key": "context-1"})
    problem_of(other, 409, "conflict")

    entry = (await client.post(f"{path}/entries", json={"rawEntry": "It rains."})).json()["entryId"]
    tags, key = f"{path}/entries/{entry}/tags", {"Idempotency-Key": "tags-1"}
    await client.patch(tags, json={"tags": {"a": "1"}}, headers=key)
    await client.patch(tags, json={"tags": {"a": "2"}})
    assert (await client.patch(tags, json={"tags": {"a": "1"}}, headers=key)).json()["tags"] == {"a": "2"}
    key = {"Idempotency-Key": "delete-1"}
    assert (await client.delete(f"{path}/entries/{entry}", headers=key)).status_code == 204
    assert (await client.delete(f"{path}/entries/{entry}", headers=key)).status_code == 204
    problem_of(await client.delete(f"{path}/entries/entry_of_nothing", headers=key), 409, "conflict")


async def test_a_search_returns_the_context_that_matches_best(idle_api: Api) -> None:
    """Earlier contexts are not stored, so this is the current one or none."""
    client, (memory_id, path) = idle_api.client, await new_path(idle_api)
    written = await client.put(f"{path}/contexts", content="Ada likes Tea.", headers={"Content-Type": "text/plain"})
    for query, score in (("tea, coffee", 0.5), ("what does ADA like: tea", 0.4), ("tea", 1.0)):
        found = (await client.post("/v0/search", json={"memoryId": memory_id, "query": query})).json()
        assert (found["bestContext"], found["bestContextScore"]) == ("Ada likes Tea.", pytest.approx(score)), query
        assert found["bestContextTimestamp"] == found["contextTimestamp"] == written.json()["creationTime"]
    found = (await client.post("/v0/search", json={"memoryId": memory_id, "query": "coffee"})).json()
    assert [found[name] for name in ("bestContext", "bestContextTimestamp", "bestContextScore")] == [None] * 3
    assert found["latestContext"] == "Ada likes Tea."


async def test_a_context_has_no_characters_that_are_not_text(idle_api: Api) -> None:
    client, (_, path) = idle_api.client, await new_path(idle_api)
    plain = {"Content-Type": "text/plain"}
    for character in ("\x07", "\x85", "\ufdd0", "\uffff", "\U0001fffe", "\U0010ffff"):
        refused = await client.put(f"{path}/contexts", content=f"x{character}y".encode(), headers=plain)
        assert f"U+{ord(character):04X}" in problem_of(refused, 422, "invalid_input")["message"]
    allowed = "tab\t, line\r\nfeed, \U0001f600"
    assert (await client.put(f"{path}/contexts", content=allowed.encode(), headers=plain)).status_code == 201
    assert (await client.get(f"{path}/contexts")).content == allowed.encode()
