"""Lanes of definitions: created and removed with them, bounded per tenant, and never those of an operator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runlane.catalog.sync import SyncReport, sync_definitions
from runlane.definitions.checks.environment import environment_of
from runlane.definitions.loader import parse_bodies
from runlane.errors import InvalidDefinitions
from runlane.store.access.tenants import create_tenant, delete_tenant
from runlane.store.queue.lanes import LaneChange, list_lanes, set_lane
from tests.harness import Store

ACTOR = "test"


async def bring(
    store: Store, lanes: list[str], tenant: str = "default", *, most: int = 3, dry_run: bool = False
) -> SyncReport:
    """Sync one orchestration for each lane and remove the others."""
    steps = [{"id": "s", "type": "print", "print_content": "x"}]
    bodies = {"orchestrations": [{"id": f"in-{lane}", "lane": lane, "steps": steps} for lane in lanes]}
    environment = replace(environment_of(store.settings), max_lanes=most)
    return await sync_definitions(
        store.database,
        tenant,
        parse_bodies(bodies),
        actor=ACTOR,
        remove_missing=True,
        environment=environment,
        dry_run=dry_run,
    )


async def names(store: Store) -> set[str]:
    return {lane.name for lane in await list_lanes(store.database)} - {"default"}


async def test_a_sync_makes_the_lanes_that_its_definitions_name(store: Store) -> None:
    await bring(store, ["default", "media", "night"])
    assert await names(store) == {"media", "night"}


async def test_a_lane_that_no_definition_names_is_removed(store: Store) -> None:
    await bring(store, ["media", "night"])
    await bring(store, ["night"])
    assert await names(store) == {"night"}


async def test_a_lane_with_ready_or_running_runs_stays_until_it_is_empty(store: Store) -> None:
    await bring(store, ["media", "night"])
    await store.add(lane="media")
    await store.add(lane="night")
    claims = await store.claim(await store.worker(), 2)
    await bring(store, [])
    assert await names(store) == {"media", "night"}
    for claimed in claims:
        await store.finish(claimed)
    await bring(store, ["default"])
    assert await names(store) == set()


async def test_a_lane_that_an_operator_has_set_stays(store: Store) -> None:
    await bring(store, ["media"])
    await set_lane(store.database, "media", LaneChange(max_slots=2))
    await bring(store, [])
    assert await names(store) == {"media"}


@pytest.mark.parametrize("dry_run", [False, True])
async def test_more_new_lanes_than_the_quota_are_refused_whole(store: Store, dry_run: bool) -> None:
    await bring(store, ["one", "two"])
    before = await store.contents()
    with pytest.raises(InvalidDefinitions, match="RUNLANE_MAX_LANES_PER_TENANT"):
        await bring(store, ["one", "two", "three", "four"], dry_run=dry_run)
    assert await store.contents() == before


async def test_lanes_that_exist_do_not_count(store: Store) -> None:
    await create_tenant(store.database, "acme", actor=ACTOR)
    for name in ("a", "b", "c", "d"):
        await set_lane(store.database, name, LaneChange(enabled=True), create=True)
    await bring(store, ["a", "b", "c", "d", "one", "two", "three"], "acme")
    await bring(store, ["one", "two", "three"])


async def test_under_a_lowered_quota_existing_lanes_can_be_changed(store: Store) -> None:
    await bring(store, ["one", "two", "three"])
    await bring(store, ["one", "two"], most=1)
    with pytest.raises(InvalidDefinitions):
        await bring(store, ["one", "other"], most=1)


async def test_the_lanes_of_a_deleted_tenant_go_with_it(store: Store) -> None:
    await create_tenant(store.database, "acme", actor=ACTOR)
    await bring(store, ["media"], "acme")
    await delete_tenant(store.database, "acme", actor=ACTOR)
    assert await names(store) == set()
