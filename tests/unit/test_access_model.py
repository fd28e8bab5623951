"""Keys, permissions, roles, and what a principal may do in which tenant."""

from __future__ import annotations

import re

import pytest

from runlane.access.policy import LOCAL, check_grant, require, require_everywhere, tenant_to_list, tenant_to_use
from runlane.domain.access import (
    BUILT_IN_ROLES,
    Permission,
    Principal,
    Role,
    check_permissions,
    check_role_name,
    hash_of,
    mint_key,
    parse_key,
    same_hash,
)
from runlane.errors import Forbidden, InvalidRequest, NotFound, RunNotFound

ALLOWED = {
    "viewer": {"runs:read", "workers:view", "memory:read"},
    "operator": {
        "runs:read",
        "workers:view",
        "runs:write",
        "workers:manage",
        "events:write",
        "schedules:write",
        "webhooks:write",
        "memory:read",
        "memory:write",
        "memory:admin",
    },
    "developer": {
        "runs:read",
        "workers:view",
        "runs:write",
        "definitions:write",
        "secrets:manage",
        "events:write",
        "schedules:write",
        "webhooks:write",
        "memory:read",
        "memory:write",
    },
    "platform_admin": {
        "runs:read",
        "runs:write",
        "workers:view",
        "workers:manage",
        "definitions:write",
        "schedules:write",
        "keys:manage",
        "secrets:manage",
        "audit:read",
        "events:write",
        "webhooks:write",
        "memory:read",
        "memory:write",
        "memory:admin",
    },
}


def principal(role: str = "operator", tenant: str = "acme", *more: Permission) -> Principal:
    permissions = BUILT_IN_ROLES.get(role, frozenset()) | set(more)
    return Principal("key_1", "ci", tenant, role, permissions)


def test_a_key_is_a_prefix_and_64_hex_digits_and_never_the_same() -> None:
    minted = [mint_key() for _ in range(100)]
    assert len({key.raw for key in minted}) == 100
    for key in minted:
        assert re.fullmatch(r"sk-rl-[0-9a-f]{64}", key.raw)
        assert key.prefix == key.raw[:12]
        assert key.hash == hash_of(key.raw) == parse_key(key.raw)
        assert re.fullmatch(r"[0-9a-f]{64}", key.hash)


def test_a_new_key_does_not_print_its_secret() -> None:
    key = mint_key()
    assert key.raw not in repr(key)
    assert key.hash not in repr(key)
    assert key.raw not in str(key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sk-rl-",
        "sk-rl-" + "a" * 63,
        "sk-rl-" + "a" * 65,
        "sk-rl-" + "A" * 64,
        "sk-rl-" + "g" * 64,
        "sk-syn-" + "a" * 64,
        " sk-rl-" + "a" * 64,
        "sk-rl-" + "a" * 64 + "\n",
        "sk-rl-" + "\uff11" * 64,
        "\ud800",
        "x" * 1_000_000,
    ],
)
def test_strings_that_cannot_be_a_key_are_not_looked_up(text: str) -> None:
    assert parse_key(text) is None


def test_hashes_are_compared_whole() -> None:
    assert same_hash("ab", "ab")
    assert not same_hash("ab", "ac")
    assert not same_hash("ab", "abc")


def test_the_built_in_roles() -> None:
    assert {name: set(map(str, allowed)) for name, allowed in BUILT_IN_ROLES.items()} == ALLOWED


@pytest.mark.parametrize("role", ALLOWED)
@pytest.mark.parametrize("permission", Permission)
def test_each_role_gets_what_it_has_and_nothing_else(role: str, permission: Permission) -> None:
    if permission.value in ALLOWED[role]:
        require(principal(role), permission)
    else:
        with pytest.raises(Forbidden, match=permission.value):
            require(principal(role), permission)


def test_a_key_sees_its_own_tenant_only() -> None:
    require(principal(tenant="acme"), Permission.RUNS_READ, "acme")
    with pytest.raises(NotFound):
        require(principal(tenant="acme"), Permission.RUNS_READ, "other")
    with pytest.raises(RunNotFound, match="run_1"):
        require(principal(tenant="acme"), Permission.RUNS_READ, "other", RunNotFound("run_1"))


def test_the_role_is_checked_before_the_tenant() -> None:
    with pytest.raises(Forbidden):
        require(principal("viewer"), Permission.RUNS_WRITE, "other")


def test_a_key_of_the_default_tenant_sees_no_other() -> None:
    with pytest.raises(NotFound):
        require(principal("operator", "default"), Permission.RUNS_READ, "acme")


def test_platform_admin_acts_in_every_tenant() -> None:
    for tenant in ("acme", "default"):
        require(principal("platform_admin", tenant), Permission.RUNS_WRITE, "other")
    require_everywhere(principal("platform_admin"), Permission.KEYS_MANAGE)
    assert LOCAL.everywhere


def test_a_custom_role_with_every_permission_stays_in_its_tenant() -> None:
    everything = principal("mine", "acme", *Permission)
    with pytest.raises(NotFound):
        require(everything, Permission.RUNS_READ, "other")
    with pytest.raises(Forbidden, match="platform_admin"):
        require_everywhere(everything, Permission.KEYS_MANAGE)


def test_the_tenant_of_lists_and_of_new_things() -> None:
    admin, one = principal("platform_admin", "default"), principal("viewer", "acme")
    assert tenant_to_list(admin) is None
    assert tenant_to_list(admin, "other") == "other"
    assert tenant_to_list(one) == tenant_to_list(one, "acme") == "acme"
    assert tenant_to_use(admin) == "default"
    assert tenant_to_use(admin, "other") == "other"
    assert tenant_to_use(one) == "acme"
    for choose in (tenant_to_list, tenant_to_use):
        with pytest.raises(NotFound):
            choose(one, "other")


def test_a_key_cannot_grant_more_than_it_has() -> None:
    viewer, operator, admin = (
        Role(name, BUILT_IN_ROLES[name], True) for name in ("viewer", "operator", "platform_admin")
    )
    keeper = principal("keeper", "acme", Permission.KEYS_MANAGE, *BUILT_IN_ROLES["viewer"])
    check_grant(keeper, viewer, "acme")
    with pytest.raises(Forbidden, match="runs:write"):
        check_grant(keeper, operator, "acme")
    with pytest.raises(NotFound):
        check_grant(keeper, viewer, "other")
    with pytest.raises(Forbidden):
        check_grant(principal("operator"), viewer, "acme")
    check_grant(principal("platform_admin"), admin, "other")
    with pytest.raises(Forbidden, match="every tenant"):
        check_grant(principal("mine", "acme", *Permission), admin, "acme")


def test_permissions_and_role_names_are_checked() -> None:
    assert check_permissions(["runs:read", "runs:read"]) == {Permission.RUNS_READ}
    with pytest.raises(InvalidRequest, match='did you mean "runs:read"'):
        check_permissions(["runs:raed"])
    for name in (*BUILT_IN_ROLES, "", "Upper", "1st", "a b", "x" * 64, "a\n"):
        with pytest.raises(InvalidRequest):
            check_role_name(name)
    assert check_role_name("night-shift_2") == "night-shift_2"
