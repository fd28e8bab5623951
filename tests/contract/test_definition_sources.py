"""Definitions record their source: projects that share a tenant neither remove nor overwrite each other's."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.catalog.bundles import import_bundle
from runlane.catalog.sync import SyncReport, sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.errors import Conflict, InvalidDefinitions, InvalidRequest
from runlane.store.definitions import list_definitions
from tests.harness import Store

ACTOR = "cli:tester"


async def sync(store: Store, source: str | None, *agents: dict[str, Any], **options: Any) -> SyncReport:
    loaded = parse_bodies({"agents": list(agents), "orchestrations": options.pop("orchestrations", [])})
    return await sync_definitions(store.database, "default", loaded, actor=ACTOR, source=source, **options)


async def owners(store: Store) -> dict[str, str | None]:
    return {item.id: item.source for item in await list_definitions(store.database, "default", "agent")}


async def test_pruning_removes_only_what_the_same_source_brought(store: Store) -> None:
    await sync(store, "shop", {"id": "clerk"}, {"id": "packer"})
    await sync(store, "news", {"id": "writer"}, {"id": "editor"})
    report = await sync(store, "news", {"id": "writer"}, remove_missing=True)
    assert [outcome.key for outcome in report.of("removed")] == ["agent:editor"]
    assert await owners(store) == {"clerk": "shop", "packer": "shop", "writer": "news"}


async def test_without_pruning_nothing_is_removed_and_what_is_missing_is_reported(store: Store) -> None:
    await sync(store, "shop", {"id": "clerk"}, {"id": "packer"})
    await sync(store, "news", {"id": "writer"})
    report = await sync(store, "shop", {"id": "clerk"})
    assert not report.changes
    assert list(report.missing) == ["agent:packer"]
    assert set(await owners(store)) == {"clerk", "packer", "writer"}


async def test_a_definition_of_another_source_is_not_overwritten(store: Store) -> None:
    await sync(store, "shop", {"id": "clerk", "name": "Shop"})
    before = await store.contents()
    with pytest.raises(Conflict, match=r'agent:clerk \(source "shop"\).* This sync has the source "news".*--take-over'):
        await sync(store, "news", {"id": "clerk", "name": "News"}, {"id": "writer"})
    assert await store.contents() == before
    report = await sync(store, "news", {"id": "clerk", "name": "News"}, take_over=True)
    assert [outcome.key for outcome in report.of("changed")] == ["agent:clerk"]
    assert await owners(store) == {"clerk": "news"}
    with pytest.raises(Conflict, match='source "news"'):
        await sync(store, "shop", {"id": "clerk", "name": "Shop"})


async def test_an_equal_definition_is_not_a_conflict_and_stays_with_its_source(store: Store) -> None:
    await sync(store, "shop", {"id": "clerk"})
    report = await sync(store, "news", {"id": "clerk"})
    assert [outcome.change for outcome in report.outcomes] == ["unchanged"]
    assert await owners(store) == {"clerk": "shop"}
    await sync(store, "news", {"id": "clerk"}, take_over=True)
    assert await owners(store) == {"clerk": "news"}


async def test_definitions_that_another_source_uses_cannot_be_removed(store: Store) -> None:
    await sync(store, "shop", {"id": "clerk"}, {"id": "packer"})
    user = {"id": "flow", "steps": [{"id": "s", "type": "agent", "agent_id": "clerk"}]}
    await sync(store, "news", orchestrations=[user])
    with pytest.raises(InvalidDefinitions, match='agent "clerk": It cannot be removed: orchestration "flow"'):
        await sync(store, "shop", {"id": "packer"}, remove_missing=True)


async def test_the_first_sync_owns_what_was_imported(store: Store) -> None:
    await import_bundle(store.database, "default", {"runlane_export": True, "agents": [{"id": "guest"}]}, actor=ACTOR)
    assert await owners(store) == {"guest": None}
    await sync(store, "shop", {"id": "guest", "name": "Guest"})
    assert await owners(store) == {"guest": "shop"}


async def test_an_import_skips_what_belongs_to_a_source(store: Store) -> None:
    await sync(store, "shop", {"id": "clerk", "name": "Shop"})
    bundle = {"runlane_export": True, "agents": [{"id": "clerk", "name": "Theirs"}, {"id": "guest"}]}
    report = (await import_bundle(store.database, "default", bundle, actor=ACTOR)).to_dict()
    skipped = [item for item in report["items"] if item["status"] == "skipped"]
    assert [(item["id"], 'belongs to the source "shop"' in item["reason"]) for item in skipped] == [("clerk", True)]
    assert await owners(store) == {"clerk": "shop", "guest": None}
    await import_bundle(store.database, "default", bundle, actor=ACTOR, take_over=True, source="theirs")
    assert await owners(store) == {"clerk": "theirs", "guest": "theirs"}


async def test_a_source_must_be_a_name(store: Store) -> None:
    with pytest.raises(InvalidRequest, match='"two words" is not a valid source'):
        await sync(store, "two words", {"id": "clerk"})
    with pytest.raises(InvalidRequest, match="Only a sync with a source can remove definitions"):
        await sync(store, None, {"id": "clerk"}, remove_missing=True)
