"""Tenants, keys, roles and the audit log in the database, and authentication over them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from runlane.access.authentication import Authenticator
from runlane.access.remembered_keys import RememberedKeys
from runlane.domain.access import BUILT_IN_ROLES, Permission, given_key
from runlane.domain.tenant import TenantLimits
from runlane.errors import Conflict, InvalidRequest, NotFound, Unauthorized, Unavailable
from runlane.settings import Settings
from runlane.store.access import keys as key_store
from runlane.store.access.audit import list_audit
from runlane.store.access.keys import create_key, find_key, find_principal, has_keys, list_keys, revoke_key, touch_key
from runlane.store.access.roles import delete_role, find_role, list_roles, set_role
from runlane.store.access.tenants import (
    TenantChange,
    create_tenant,
    delete_tenant,
    find_tenant,
    list_tenants,
    set_tenant,
)
from runlane.store.sql.database import Database, open_database
from tests.harness import Store, eventually

ACTOR = "cli:tester"


@pytest.fixture
async def elsewhere(settings: Settings, store: Store) -> AsyncGenerator[Database]:
    """Return the same database as another process has it."""
    database = await open_database(settings)
    try:
        yield database
    finally:
        await database.close()


async def refused(database: Database, raw: str) -> bool:
    gate = Authenticator(database)
    try:
        await gate.identify(raw)
    except Unauthorized:
        return True
    finally:
        await gate.close()
    return False


async def test_the_default_tenant_exists_and_stays(store: Store) -> None:
    assert [tenant.id for tenant in await list_tenants(store.database)] == ["default"]
    assert not (await find_tenant(store.database, "default")).limits
    with pytest.raises(InvalidRequest):
        await delete_tenant(store.database, "default", actor=ACTOR)
    with pytest.raises(InvalidRequest):
        await set_tenant(store.database, "default", TenantChange(enabled=False), actor=ACTOR)


async def test_a_tenants_life(store: Store) -> None:
    made = await create_tenant(store.database, "acme", name="Acme Ltd", limits=TenantLimits(5, None, 2.5), actor=ACTOR)
    assert (made.id, made.name, made.limits, made.enabled) == ("acme", "Acme Ltd", TenantLimits(5, None, 2.5), True)
    with pytest.raises(Conflict):
        await create_tenant(store.database, "acme", actor=ACTOR)
    change = TenantChange(max_running=3, unlimited=frozenset({"max_queued"}))
    old, new = await set_tenant(store.database, "acme", change, actor=ACTOR)
    assert (old.limits, new.limits) == (TenantLimits(5, None, 2.5), TenantLimits(None, 3, 2.5))
    assert await find_tenant(store.database, "acme") == new
    assert (await delete_tenant(store.database, "acme", actor=ACTOR)).id == "acme"
    with pytest.raises(NotFound):
        await find_tenant(store.database, "acme")
    for work in (
        set_tenant(store.database, "acne", TenantChange(name="x"), actor=ACTOR),
        delete_tenant(store.database, "acme", actor=ACTOR),
    ):
        with pytest.raises(NotFound):
            await work


@pytest.mark.parametrize(
    "change",
    [
        TenantChange(),
        TenantChange(max_queued=-1),
        TenantChange(max_queued=1, unlimited=frozenset({"max_queued"})),
        TenantChange(unlimited=frozenset({"name"})),
        TenantChange(name=""),
    ],
)
async def test_a_change_without_sense_changes_nothing(store: Store, change: TenantChange) -> None:
    await create_tenant(store.database, "acme", actor=ACTOR)
    before = await store.contents()
    with pytest.raises(InvalidRequest):
        await set_tenant(store.database, "acme", change, actor=ACTOR)
    assert await store.contents() == before


async def test_a_tenant_with_runs_stays_and_stays_open(store: Store) -> None:
    await create_tenant(store.database, "acme", actor=ACTOR)
    await store.add(tenant="acme")
    with pytest.raises(Conflict, match="has runs"):
        await delete_tenant(store.database, "acme", actor=ACTOR)
    assert (await find_tenant(store.database, "acme")).enabled
    assert [entry.action for entry in await list_audit(store.database)] == ["tenant.create"]


async def test_only_the_hash_of_a_key_is_in_the_database(store: Store) -> None:
    key, raw = await create_key(store.database, "ci", "operator", actor=ACTOR)
    await revoke_key(store.database, key.id, actor=ACTOR)
    everything = repr(await store.contents())
    assert raw not in everything
    assert raw.removeprefix("sk-rl-") not in everything
    # The prefix is shown and the rest of the secret is nowhere.
    assert raw[:12] in everything
    assert raw[12:24] not in everything
    hashes = await store.sql("select hash from api_keys")
    assert [len(row["hash"]) for row in hashes] == [64]
    assert hashes[0]["hash"] not in repr(await list_audit(store.database))


async def test_a_key_opens_its_tenant_with_its_role(store: Store) -> None:
    await create_tenant(store.database, "acme", actor=ACTOR)
    key, raw = await create_key(store.database, "ci", "developer", tenant="acme", actor=ACTOR)
    found = await find_principal(store.database, raw)
    assert found is not None
    who = found.principal
    assert (who.key_id, who.name, who.tenant, who.role) == (key.id, "ci", "acme", "developer")
    assert who.permissions == BUILT_IN_ROLES["developer"]
    assert (key.prefix, key.created_by, key.expires_at_us) == (raw[:12], ACTOR, None)
    assert await find_key(store.database, key.id) == key


async def test_a_given_key_is_stored_once_by_several_callers(store: Store) -> None:
    given = given_key("sk-rl-" + "5a" * 32)

    async def create() -> tuple[str, str]:
        key, raw = await create_key(store.database, "admin", "platform_admin", actor=ACTOR, given=given)
        return key.id, raw

    created = set(await asyncio.gather(*(create() for _ in range(5))))
    assert len(created) == 1
    found = await find_principal(store.database, given.raw)
    assert found is not None
    assert created == {(found.principal.key_id, given.raw)}
    assert [entry.action for entry in await list_audit(store.database)] == ["key.create"]


async def test_invalid_keys_are_refused(store: Store) -> None:
    _, raw = await create_key(store.database, "ci", "viewer", actor=ACTOR)
    gate = Authenticator(store.database)
    other = raw[:-1] + ("0" if raw[-1] != "0" else "1")
    for text in (None, "", "x", raw[:-1], raw + "0", raw.upper(), other, "sk-rl-" + "0" * 64, "\x00"):
        with pytest.raises(Unauthorized):
            await gate.identify(text)


async def test_a_revoked_key_is_refused_at_once_elsewhere(store: Store, elsewhere: Database) -> None:
    key, raw = await create_key(store.database, "ci", "viewer", actor=ACTOR)
    gate = Authenticator(elsewhere)
    for _ in range(3):
        assert (await gate.identify(raw)).key_id == key.id
    await revoke_key(store.database, key.id, actor=ACTOR)
    with pytest.raises(Unauthorized):
        await gate.identify(raw)
    await gate.close()


async def test_revoking_twice_is_harmless_and_recorded_once(store: Store) -> None:
    key, _ = await create_key(store.database, "ci", "viewer", actor=ACTOR)
    first = await revoke_key(store.database, key.id, actor=ACTOR)
    assert first.revoked_at_us is not None
    assert await revoke_key(store.database, key.id, actor=ACTOR) == first
    assert [entry.action for entry in await list_audit(store.database, subject=key.id)] == ["key.revoke", "key.create"]


async def test_another_tenants_key_is_not_found(store: Store) -> None:
    key, raw = await create_key(store.database, "ci", "viewer", actor=ACTOR)
    for key_id, tenant in ((key.id, "acme"), ("key_none", None)):
        with pytest.raises(NotFound):
            await revoke_key(store.database, key_id, actor=ACTOR, tenant=tenant)
    with pytest.raises(NotFound):
        await find_key(store.database, "key_none")
    assert not await refused(store.database, raw)


async def test_an_expired_key_is_refused(store: Store) -> None:
    key, raw = await create_key(store.database, "ci", "viewer", life_seconds=3600, actor=ACTOR)
    assert key.expires_at_us is not None
    assert key.expires_at_us - key.created_at_us == pytest.approx(3_600_000_000, abs=1_000_000)
    assert not await refused(store.database, raw)
    assert await has_keys(store.database)
    await store.sql("update api_keys set expires_at = created_at")
    assert await refused(store.database, raw)
    assert not await has_keys(store.database)


@pytest.mark.parametrize("seconds", [0, -1, 1e12, float("nan")])
async def test_a_life_without_sense_is_refused(store: Store, seconds: float) -> None:
    with pytest.raises(InvalidRequest):
        await create_key(store.database, "ci", "viewer", life_seconds=seconds, actor=ACTOR)


async def test_a_key_needs_a_tenant_and_a_role_that_exist(store: Store) -> None:
    with pytest.raises(NotFound, match='did you mean "default"'):
        await create_key(store.database, "ci", "viewer", tenant="defualt", actor=ACTOR)
    with pytest.raises(NotFound, match='did you mean "viewer"'):
        await create_key(store.database, "ci", "viewr", actor=ACTOR)
    assert await store.count("api_keys") == await store.count("audit") == 0


async def test_a_closed_tenants_keys_are_refused(store: Store) -> None:
    await create_tenant(store.database, "acme", actor=ACTOR)
    _, raw = await create_key(store.database, "ci", "viewer", tenant="acme", actor=ACTOR)
    await set_tenant(store.database, "acme", TenantChange(enabled=False), actor=ACTOR)
    assert await refused(store.database, raw)
    await set_tenant(store.database, "acme", TenantChange(enabled=True), actor=ACTOR)
    assert not await refused(store.database, raw)
    await delete_tenant(store.database, "acme", actor=ACTOR)
    await create_tenant(store.database, "acme", actor=ACTOR)
    assert await refused(store.database, raw)


async def test_keys_are_listed_newest_first_in_pages(store: Store) -> None:
    await create_tenant(store.database, "acme", actor=ACTOR)
    made = [
        (await create_key(store.database, f"k{n}", "viewer", tenant="acme" if n % 2 else "default", actor=ACTOR))[0]
        for n in range(6)
    ]
    first = await list_keys(store.database, limit=4)
    rest = await list_keys(store.database, limit=4, before=first[-1].id)
    assert [*first, *rest] == made[::-1]
    assert await list_keys(store.database, tenant="acme") == [made[5], made[3], made[1]]


async def test_a_custom_role_holds_from_the_next_request_on(store: Store, elsewhere: Database) -> None:
    old, new = await set_role(store.database, "night", ["runs:read"], actor=ACTOR)
    assert old is None
    assert new.permissions == {Permission.RUNS_READ}
    _, raw = await create_key(store.database, "ci", "night", actor=ACTOR)
    gate = Authenticator(elsewhere)
    assert (await gate.identify(raw)).permissions == {Permission.RUNS_READ}
    old, _ = await set_role(store.database, "night", ["audit:read", "runs:read"], actor=ACTOR)
    assert old is not None
    assert (await gate.identify(raw)).permissions == {Permission.RUNS_READ, Permission.AUDIT_READ}
    await gate.close()


async def test_a_role_in_use_stays(store: Store) -> None:
    await set_role(store.database, "night", ["runs:read"], actor=ACTOR)
    key, raw = await create_key(store.database, "ci", "night", actor=ACTOR)
    with pytest.raises(Conflict, match=key.id):
        await delete_role(store.database, "night", actor=ACTOR)
    await revoke_key(store.database, key.id, actor=ACTOR)
    await delete_role(store.database, "night", actor=ACTOR)
    with pytest.raises(NotFound):
        await find_role(store.database, "night")
    assert [role.name for role in await list_roles(store.database)] == list(BUILT_IN_ROLES)
    assert await refused(store.database, raw)


@pytest.mark.parametrize("name", BUILT_IN_ROLES)
async def test_built_in_roles_cannot_be_changed_or_shadowed(store: Store, name: str) -> None:
    with pytest.raises(InvalidRequest, match="built in"):
        await set_role(store.database, name, ["runs:read"], actor=ACTOR)
    with pytest.raises(InvalidRequest, match="built in"):
        await delete_role(store.database, name, actor=ACTOR)
    # Not even by a row that was written by hand.
    await store.sql("insert into roles values (:name, '[]', 0, 0)", name=name)
    _, raw = await create_key(store.database, "ci", name, actor=ACTOR)
    found = await find_principal(store.database, raw)
    assert found is not None
    assert found.principal.permissions == BUILT_IN_ROLES[name]


async def test_a_role_that_vanished_or_is_unknown_allows_nothing(store: Store) -> None:
    await set_role(store.database, "night", ["runs:read"], actor=ACTOR)
    _, raw = await create_key(store.database, "ci", "night", actor=ACTOR)
    await store.sql("""update roles set permissions = '["runs:read","runs:fly"]'""")
    found = await find_principal(store.database, raw)
    assert found is not None
    assert found.principal.permissions == {Permission.RUNS_READ}
    await store.sql("delete from roles")
    assert await refused(store.database, raw)


async def test_roles_need_permissions_that_exist(store: Store) -> None:
    for permissions in ([], ["runs:fly"]):
        with pytest.raises(InvalidRequest):
            await set_role(store.database, "night", permissions, actor=ACTOR)
    assert await store.count("roles") == 0


async def test_every_change_is_in_the_audit_log_with_old_and_new(store: Store) -> None:
    database = store.database
    await create_tenant(database, "acme", actor="one")
    await set_tenant(database, "acme", TenantChange(max_queued=5), actor="two")
    await set_role(database, "night", ["runs:read"], actor="three")
    await set_role(database, "night", ["runs:write"], actor="four")
    key, _ = await create_key(database, "ci", "night", tenant="acme", actor="five")
    await revoke_key(database, key.id, actor="six")
    await delete_role(database, "night", actor="seven")
    await delete_tenant(database, "acme", actor="eight")
    entries = list(await list_audit(database))[::-1]
    answers: list[Any] = [
        (entry.actor, entry.action, entry.subject, entry.old is not None, entry.new is not None) for entry in entries
    ]
    assert answers == [
        ("one", "tenant.create", "acme", False, True),
        ("two", "tenant.set", "acme", True, True),
        ("three", "role.set", "night", False, True),
        ("four", "role.set", "night", True, True),
        ("five", "key.create", key.id, False, True),
        ("six", "key.revoke", key.id, True, True),
        ("seven", "role.delete", "night", True, False),
        ("eight", "tenant.delete", "acme", True, False),
    ]
    assert entries[1].old is not None
    assert entries[1].new is not None
    assert (entries[1].old["max_queued"], entries[1].new["max_queued"]) == (None, 5)
    assert (entries[3].old, entries[3].new) == ({"permissions": ["runs:read"]}, {"permissions": ["runs:write"]})
    assert all(entry.id.startswith("aud_") for entry in entries)
    assert [entry.at_us for entry in entries] == sorted(entry.at_us for entry in entries)
    page = await list_audit(database, limit=3)
    assert [*page, *await list_audit(database, limit=10, before=page[-1].id)] == entries[::-1]
    assert {entry.tenant for entry in await list_audit(database, tenant="acme")} == {"acme"}
    assert [entry.actor for entry in await list_audit(database, action="role.set")] == ["four", "three"]


async def test_no_change_without_its_entry(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*args: Any, **fields: Any) -> None:
        raise RuntimeError("no audit")

    monkeypatch.setattr(key_store, "append_audit", broken)
    with pytest.raises(RuntimeError):
        await create_key(store.database, "ci", "viewer", actor=ACTOR)
    assert await store.count("api_keys") == 0


async def test_use_is_noted_at_most_once_a_minute(store: Store) -> None:
    key, raw = await create_key(store.database, "ci", "viewer", actor=ACTOR)
    gate = Authenticator(store.database)
    await asyncio.gather(*(gate.identify(raw) for _ in range(10)))
    await gate.close()
    first = (await find_key(store.database, key.id)).last_used_at_us
    assert first is not None
    await gate.identify(raw)
    await touch_key(store.database, key.id)
    await gate.close()
    assert (await find_key(store.database, key.id)).last_used_at_us == first
    await store.sql("update api_keys set last_used_at = last_used_at - 61000000")
    await gate.identify(raw)
    await gate.close()

    async def noted() -> bool:
        return ((await find_key(store.database, key.id)).last_used_at_us or 0) >= first

    await eventually(noted, "the use was noted")


async def test_a_note_that_fails_fails_no_request(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*args: Any) -> None:
        raise Unavailable("gone")

    monkeypatch.setattr("runlane.access.authentication.touch_key", broken)
    _, raw = await create_key(store.database, "ci", "viewer", actor=ACTOR)
    gate = Authenticator(store.database)
    assert (await gate.identify(raw)).name == "ci"
    await gate.close()


async def test_the_age_of_a_remembered_key_is_that_of_the_request(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that arrives long after it was sent for may be that old. Only a failed lookup recalls a key."""
    clock = [100.0]
    remembered = RememberedKeys(10, lambda: clock[0])
    _, raw = await create_key(store.database, "ci", "viewer", actor=ACTOR)
    gate = Authenticator(store.database, remembered)

    async def late(database: Database, raw_key: str) -> Any:
        clock[0] += 9
        return await find_principal(database, raw_key)

    monkeypatch.setattr("runlane.access.authentication.find_principal", late)
    assert (await gate.identify(raw)).name == "ci"
    clock[0] += 0.5

    async def defect(*args: Any) -> None:
        raise RuntimeError("a defect")

    async def away(*args: Any) -> None:
        raise Unavailable("away")

    monkeypatch.setattr("runlane.access.authentication.find_principal", defect)
    with pytest.raises(Unavailable):
        await gate.identify_or_recall(raw)
    monkeypatch.setattr("runlane.access.authentication.find_principal", away)
    found, recalled = await gate.identify_or_recall(raw)
    assert (found.name, recalled) == ("ci", True)
    # Requests for other routes do not use this.
    with pytest.raises(Unavailable):
        await gate.identify(raw)
    with pytest.raises(Unauthorized):
        await gate.identify_or_recall(None)
    clock[0] += 0.5
    with pytest.raises(Unavailable):
        await gate.identify_or_recall(raw)
    monkeypatch.undo()
    assert (await gate.identify_or_recall(raw))[1] is False
    await gate.close()


async def test_the_gate_fails_closed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    _, raw = await create_key(store.database, "ci", "viewer", actor=ACTOR)

    async def broken(*args: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("runlane.access.authentication.find_principal", broken)
    with pytest.raises(Unavailable) as error:
        await Authenticator(store.database).identify(raw)
    assert raw not in str(error.value)
    monkeypatch.undo()
    await store.database.close()
    with pytest.raises(Unavailable):
        await Authenticator(store.database).identify(raw)
