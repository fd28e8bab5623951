"""Definitions in the database: sync is atomic, versions stay, and a run's pins hold whatever happens later."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from hashlib import sha256
from typing import Any

import pytest

from runlane.catalog import pins as catalog_pins
from runlane.catalog import sync as sync_store
from runlane.catalog.sync import SyncReport, sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.definitions.schema.definition import Agent, Orchestration
from runlane.errors import Conflict, InvalidDefinitions, NotFound, UnknownDefinition
from runlane.settings import Settings
from runlane.store import definitions as definition_store
from runlane.store.access.audit import list_audit
from runlane.store.access.tenants import create_tenant, delete_tenant
from runlane.store.definitions import (
    _Kept,
    find_definition,
    find_version,
    list_definitions,
    list_versions,
    load_pinned,
    pins,
)
from runlane.store.sql.database import Database, open_database
from tests.harness import Store

ACTOR = "cli:tester"


@pytest.fixture
async def elsewhere(settings: Settings, store: Store) -> AsyncGenerator[Database]:
    """Return the same database as another process has it."""
    database = await open_database(settings)
    try:
        yield database
    finally:
        await database.close()


def agent(name: str, /, **fields: Any) -> dict[str, Any]:
    return {"id": name, **fields}


def orchestration(name: str, /, *steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": name, "steps": list(steps) or [{"id": "s", "type": "end"}], **fields}


def step(name: str, kind: str, /, **fields: Any) -> dict[str, Any]:
    return {"id": name, "type": kind, **fields}


async def sync(database: Database, tenant: str = "default", **options: Any) -> SyncReport:
    bodies = {key: options.pop(key) for key in ("orchestrations", "agents", "tools", "mcp_servers") if key in options}
    return await sync_definitions(database, tenant, parse_bodies(bodies), actor=ACTOR, **options)


def changes(report: SyncReport) -> dict[str, str]:
    return {outcome.key: outcome.change for outcome in report.outcomes}


async def test_a_sync_returns_what_it_did(store: Store) -> None:
    first = await sync(store.database, agents=[agent("a"), agent("b")], remove_missing=True)
    assert changes(first) == {"agent:a": "added", "agent:b": "added"}
    second = await sync(
        store.database, agents=[agent("a", name="A"), agent("c", description="see")], remove_missing=True
    )
    assert changes(second) == {"agent:a": "changed", "agent:c": "added", "agent:b": "removed"}
    changed = second.of("changed")[0]
    assert (changed.old, changed.version) == (first.outcomes[0].version, changed.version)
    assert changed.old != changed.version
    third = await sync(store.database, agents=[agent("a", name="A"), agent("c", description="see")])
    assert changes(third) == {"agent:a": "unchanged", "agent:c": "unchanged"}
    assert not third.changes
    listed = await list_definitions(store.database, "default", "agent")
    assert [(item.id, item.name, item.description, item.origin) for item in listed] == [
        ("a", "A", "", "sync"),
        ("c", "", "see", "sync"),
    ]
    entries = await list_audit(store.database, action="definitions.sync")
    assert len(entries) == 2
    assert entries[0].new == {
        "source": "default",
        "added": {"agent:c": second.outcomes[1].version},
        "changed": {"agent:a": changed.version},
    }
    assert entries[0].old == {"changed": {"agent:a": changed.old}, "removed": {"agent:b": first.outcomes[1].version}}
    assert (entries[0].actor, entries[0].tenant) == (ACTOR, "default")


async def test_a_dry_run_changes_nothing(store: Store) -> None:
    await sync(store.database, agents=[agent("a")])
    before = await store.contents()
    report = await sync(store.database, agents=[agent("b")], remove_missing=True, dry_run=True)
    assert changes(report) == {"agent:b": "added", "agent:a": "removed"}
    assert report.dry_run
    assert await store.contents() == before


async def test_a_refused_sync_changes_nothing(store: Store) -> None:
    await sync(store.database, agents=[agent("a")])
    before = await store.contents()
    with pytest.raises(InvalidDefinitions, match='The agent "absent" does not exist'):
        await sync(
            store.database,
            agents=[agent("b")],
            orchestrations=[orchestration("o", step("s", "agent", agent_id="absent"))],
        )
    with pytest.raises(InvalidDefinitions, match="Unknown field"):
        await sync(store.database, agents=[agent("b"), agent("c", nope=1)])
    with pytest.raises(NotFound, match='No tenant "absent"'):
        await sync(store.database, tenant="absent", agents=[agent("b")])
    assert await store.contents() == before


async def test_references_may_lead_to_stored_definitions(store: Store) -> None:
    await sync(store.database, agents=[agent("a")])
    await sync(store.database, orchestrations=[orchestration("o", step("s", "agent", agent_id="a"))])
    with pytest.raises(InvalidDefinitions, match='The agent "a" does not exist'):
        await sync(
            store.database, orchestrations=[orchestration("o", step("s", "agent", agent_id="a"))], remove_missing=True
        )
    assert await pins(store.database, "default", "o")


async def test_imported_definitions_stay_when_a_directory_is_synced(store: Store) -> None:
    await sync(store.database, agents=[agent("guest")], origin="import", source=None)
    report = await sync(store.database, agents=[agent("own")], remove_missing=True)
    assert changes(report) == {"agent:own": "added"}
    await sync(store.database, agents=[agent("own"), agent("guest")], remove_missing=True)
    report = await sync(store.database, agents=[agent("own")], remove_missing=True)
    assert changes(report) == {"agent:own": "unchanged", "agent:guest": "removed"}


async def test_definitions_that_an_imported_one_uses_cannot_be_removed(store: Store) -> None:
    await sync(store.database, agents=[agent("own")])
    user = orchestration("guest", step("s", "agent", agent_id="own"))
    await sync(store.database, orchestrations=[user], origin="import", source=None)
    with pytest.raises(InvalidDefinitions, match='agent "own": It cannot be removed: orchestration "guest"'):
        await sync(store.database, tools=[{"name": "t", "url": "https://example.com"}], remove_missing=True)


async def test_loose_ends_are_tolerated_where_requested(store: Store) -> None:
    user = orchestration("o", step("s", "agent", agent_id="absent", prompt_template="{{tone}}"))
    report = await sync(store.database, orchestrations=[user], origin="import", source=None, tolerant=True)
    assert changes(report) == {"orchestration:o": "added"}
    assert len(report.warnings) == 2
    assert set(await pins(store.database, "default", "o")) == {"orchestration:o"}
    await sync(store.database, agents=[agent("absent")], origin="import", source=None)
    assert set(await pins(store.database, "default", "o")) == {"orchestration:o", "agent:absent"}
    broken = orchestration("p", step("s", "end", next_step_id="x"))
    user = orchestration("q", step("s", "orchestration", orchestration_id="p"))
    report = await sync(store.database, orchestrations=[broken, user], origin="import", source=None, tolerant=True)
    assert changes(report) == {"orchestration:q": "added"}
    (skipped,) = report.skipped
    assert (skipped.kind, skipped.id) == ("orchestration", "p")
    assert skipped.reason.startswith('step "s", field next_step_id: The step "x" does not exist')
    assert any('The orchestration "p" does not exist' in problem.message for problem in report.warnings)


async def test_existing_definitions_are_kept_where_requested(store: Store) -> None:
    await sync(store.database, agents=[agent("a", name="one")])
    report = await sync(store.database, agents=[agent("a", name="two"), agent("b")], keep_existing=True)
    assert changes(report) == {"agent:b": "added"}
    assert [(item.id, item.reason) for item in report.skipped] == [("a", "A definition of this name exists already.")]
    assert (await find_definition(store.database, "default", "agent", "a")).body["name"] == "one"


async def test_versions_are_addressed_by_content_and_kept(store: Store) -> None:
    await sync(store.database, agents=[agent("a", name="one")])
    await sync(store.database, agents=[agent("a", name="two")])
    await sync(store.database, agents=[agent("a", name="one")])
    versions = (await list_versions(store.database, "default", "agent", "a")).versions
    assert [version.current for version in versions] == [False, True]
    for version in versions:
        found = await find_version(store.database, "default", "agent", "a", version.version)
        assert (found.current, found.version) == (version.current, version.version)
        content = json.dumps(found.body, sort_keys=True, separators=(",", ":")).encode()
        assert sha256(content).hexdigest() == version.version
    found = await find_definition(store.database, "default", "agent", "a")
    assert (found.body, found.current) == ({"id": "a", "name": "one"}, True)


async def test_a_removed_definition_is_gone_but_its_versions_stay(store: Store) -> None:
    report = await sync(store.database, agents=[agent("a"), agent("b")])
    version = report.outcomes[0].version
    assert version is not None
    await sync(store.database, agents=[agent("b")], remove_missing=True)
    with pytest.raises(UnknownDefinition, match='The agent "a" does not exist'):
        await find_definition(store.database, "default", "agent", "a")
    with pytest.raises(UnknownDefinition):
        await pins(store.database, "default", "a", "agent")
    assert [item.current for item in (await list_versions(store.database, "default", "agent", "a")).versions] == [False]
    assert not (await find_version(store.database, "default", "agent", "a", version)).current
    report = await sync(store.database, agents=[agent("a"), agent("b")])
    assert changes(report) == {"agent:a": "added", "agent:b": "unchanged"}
    assert (await find_definition(store.database, "default", "agent", "a")).version == version


async def test_missing_definitions_raise_an_error_that_names_them(store: Store) -> None:
    await sync(store.database, agents=[agent("writer")])
    with pytest.raises(UnknownDefinition, match=r'The agent "writr" does not exist \(did you mean "writer"\?\)'):
        await find_definition(store.database, "default", "agent", "writr")
    with pytest.raises(UnknownDefinition, match='The agent "writer" has no version "0"'):
        await find_version(store.database, "default", "agent", "writer", "0")
    with pytest.raises(UnknownDefinition, match='The agent "x" does not exist'):
        await find_version(store.database, "default", "agent", "x", "0")
    with pytest.raises(UnknownDefinition, match='The orchestration "x" does not exist'):
        await list_versions(store.database, "default", "orchestration", "x")
    with pytest.raises(UnknownDefinition, match='The MCP server "x" does not exist'):
        await find_definition(store.database, "default", "mcp_server", "x")
    with pytest.raises(UnknownDefinition) as raised:
        await load_pinned(store.database, "default", {"agent:writer": "0"})
    assert raised.value.http_status == 404


async def test_tenants_have_definitions_of_their_own(store: Store) -> None:
    await create_tenant(store.database, "acme", actor=ACTOR)
    await sync(store.database, agents=[agent("a", name="ours")])
    await sync(store.database, tenant="acme", agents=[agent("a", name="theirs"), agent("b")])
    await sync(store.database, agents=[agent("c")], remove_missing=True)
    assert [item.id for item in await list_definitions(store.database, "acme", "agent")] == ["a", "b"]
    assert (await find_definition(store.database, "acme", "agent", "a")).body["name"] == "theirs"
    with pytest.raises(UnknownDefinition):
        await find_definition(store.database, "default", "agent", "b")
    pinned = await pins(store.database, "acme", "b", "agent")
    assert set(await load_pinned(store.database, "acme", pinned)) == {"agent:b"}
    await delete_tenant(store.database, "acme", actor=ACTOR)
    await create_tenant(store.database, "acme", actor=ACTOR)
    assert await list_definitions(store.database, "acme", "agent") == []
    with pytest.raises(UnknownDefinition):
        await list_versions(store.database, "acme", "agent", "a")


async def test_pages_go_by_id(store: Store) -> None:
    await sync(store.database, agents=[agent(f"a{number}") for number in range(5)])
    first = await list_definitions(store.database, "default", "agent", limit=3)
    rest = await list_definitions(store.database, "default", "agent", after=first[-1].id, limit=3)
    assert [item.id for item in (*first, *rest)] == ["a0", "a1", "a2", "a3", "a4"]


async def test_pins_hold_everything_and_stay_what_they_were(store: Store, elsewhere: Database) -> None:
    inner = orchestration("inner", step("say", "print", print_content="one"))
    top = orchestration(
        "top",
        step("call", "orchestration", orchestration_id="inner", next_step_id="ask"),
        step("ask", "agent", agent_id="boss"),
    )
    agents = [agent("boss", delegate_agent_ids=["clerk"]), agent("clerk", tools=["search", "files__read"])]
    others: dict[str, Any] = {
        "tools": [{"name": "search", "url": "https://example.com"}, {"name": "spare", "url": "https://example.com"}],
        "mcp_servers": [{"name": "files", "url": "https://example.com"}],
    }
    await sync(store.database, orchestrations=[inner, top], agents=agents, **others)
    pinned = await pins(store.database, "default", "top")
    assert set(pinned) == {
        "orchestration:top", "orchestration:inner", "agent:boss", "agent:clerk", "tool:search", "mcp_server:files",
    }  # fmt: skip

    # The nested one changes; the run that pinned the old one still finds it, and a new run pins the new one.
    new_inner = orchestration("inner", step("say", "print", print_content="two"))
    await sync(store.database, orchestrations=[new_inner])
    newer = await pins(store.database, "default", "top")
    assert newer["orchestration:inner"] != pinned["orchestration:inner"]
    assert {key: version for key, version in newer.items() if key != "orchestration:inner"} == {
        key: version for key, version in pinned.items() if key != "orchestration:inner"
    }
    # Everything is removed; a new process can still load what was pinned.
    await sync(store.database, orchestrations=[orchestration("other")], remove_missing=True)
    definition_store._kept = _Kept(1024 * 1024)
    for database, wanted, content in ((elsewhere, pinned, "one"), (store.database, newer, "two")):
        loaded = await load_pinned(database, "default", wanted)
        assert set(loaded) == set(wanted)
        found = loaded["orchestration:inner"]
        assert isinstance(found, Orchestration)
        assert found.steps[0].model_dump()["print_content"] == content
        assert isinstance(loaded["agent:boss"], Agent)
        assert loaded == await load_pinned(database, "default", wanted)


async def test_two_syncs_at_once_run_one_after_the_other(store: Store, elsewhere: Database) -> None:
    await sync(store.database, agents=[agent("a")])
    one, other = await asyncio.gather(
        sync(store.database, agents=[agent("b", name="one")], remove_missing=True),
        sync(elsewhere, agents=[agent("b", name="other")], remove_missing=True),
    )
    (first, second) = (one, other) if changes(one)["agent:b"] == "added" else (other, one)
    assert changes(first) == {"agent:b": "added", "agent:a": "removed"}
    assert changes(second) == {"agent:b": "changed"}
    (current,) = await list_definitions(store.database, "default", "agent")
    assert current.version == second.outcomes[0].version
    assert second.outcomes[0].old == first.outcomes[0].version


async def test_many_syncs_at_once_lose_nothing(store: Store, elsewhere: Database) -> None:
    async with asyncio.timeout(120):
        await asyncio.gather(
            *(
                sync(database, agents=[agent(f"a{number}")])
                for number, database in enumerate((store.database, elsewhere, store.database, elsewhere))
            )
        )
    assert len(await list_definitions(store.database, "default", "agent")) == 4


async def test_a_sync_checks_again_what_changed_meanwhile(
    store: Store, elsewhere: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent is removed after it was seen and before the orchestration that uses it is stored."""
    await sync(store.database, agents=[agent("a")])
    check_and_plan = sync_store._check_and_plan
    removed: list[SyncReport] = []

    def meanwhile(*arguments: Any) -> Any:
        done = check_and_plan(*arguments)
        if not removed:
            monkeypatch.setattr(sync_store, "_check_and_plan", check_and_plan)
            other = asyncio.run_coroutine_threadsafe(sync(elsewhere, agents=[agent("b")], remove_missing=True), loop)
            removed.append(other.result(60))
        return done

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(sync_store, "_check_and_plan", meanwhile)
    with pytest.raises(InvalidDefinitions, match='The agent "a" does not exist'):
        await sync(store.database, orchestrations=[orchestration("o", step("s", "agent", agent_id="a"))])
    assert changes(removed[0]) == {"agent:b": "added", "agent:a": "removed"}
    assert await list_definitions(store.database, "default", "orchestration") == []


async def test_tasks_are_checked_where_they_are_known(store: Store) -> None:
    user = orchestration("o", step("s", "task", task="send"))
    with pytest.raises(InvalidDefinitions, match='No task "send" is registered'):
        await sync(store.database, orchestrations=[user], tasks=["greet"])
    await sync(store.database, orchestrations=[user], tasks=["send"])


async def test_large_definitions_and_many_of_them(store: Store) -> None:
    big = agent("big", system_prompt="x" * 190_000, repos=["y" * 1_000_000, "zoë \U0001f600 'quoted' \\ {state.x}"])
    many = [agent(f"a{number:04}") for number in range(1500)]
    report = await sync(store.database, agents=[big, *many])
    assert len(report.of("added")) == 1501
    found = await find_definition(store.database, "default", "agent", "big")
    assert found.body == big
    (entry,) = await list_audit(store.database, action="definitions.sync")
    assert entry.new is not None
    assert entry.new["added"]["and more"] == 1301


def test_kept_definitions_are_bounded() -> None:
    kept = _Kept(100)
    for number in range(10):
        body = json.dumps({"id": f"a{number}", "name": "x" * 10})
        kept.put("agent", str(number), body)
        kept.put("agent", str(number), body)
        assert kept.get("agent", "0") is not None
    assert kept.get("agent", "1") is None
    assert kept.get("agent", "9") is not None
    assert kept._bytes <= 100
    assert sum(size for _, size in kept._found.values()) == kept._bytes


async def test_the_pins_of_all_definitions_together_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each agent with all tools has a pin for each tool, so a short request can describe gigabytes of pins."""
    tools = [{"name": f"t{number}", "url": "https://example.com"} for number in range(10)]
    agents = [{"id": f"a{number}", "tools": ["all"]} for number in range(10)]
    loaded = parse_bodies({"tools": tools, "agents": agents})
    monkeypatch.setattr(catalog_pins, "_MAX_ALL_PINS", 109)
    with pytest.raises(InvalidDefinitions, match="more than 109"):
        await sync_definitions(store.database, "default", loaded, actor="test")
    monkeypatch.setattr(catalog_pins, "_MAX_ALL_PINS", 110)
    await sync_definitions(store.database, "default", loaded, actor="test")


@pytest.mark.parametrize(("bound", "most"), [("MAX_DEFINITIONS", 3), ("MAX_BYTES", 20_000)])
async def test_the_definitions_of_a_tenant_are_bounded_together(
    store: Store, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    """Each sync and each check of one definition reads all of them."""
    monkeypatch.setattr(sync_store, bound, most)

    async def put(count: int) -> SyncReport:
        agents = [{"id": f"a{number}", "system_prompt": "x" * 5000} for number in range(count)]
        return await sync_definitions(
            store.database, "default", parse_bodies({"agents": agents}), actor="test", remove_missing=True
        )

    await put(3)
    with pytest.raises(Conflict, match="would have 4 definitions"):
        await put(4)
    assert len(await list_definitions(store.database, "default", "agent")) == 3
    assert len((await put(2)).of("removed")) == 1
