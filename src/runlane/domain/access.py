"""Permissions, roles and API keys.

A key is 32 random bytes behind a prefix; only its SHA-256 is stored. A fast hash is enough: 256 random bits cannot be
guessed, so a slow hash would not protect them better. A key belongs to one tenant and gives access only to that tenant;
only the built-in role platform_admin acts in every tenant.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, PlainSerializer

from runlane.domain.wire import Timestamp
from runlane.errors import InvalidRequest, nearest

KEY_PREFIX: Final = "sk-rl-"
SHOWN_CHARACTERS: Final = 12
_KEY: Final = re.compile(r"sk-rl-[0-9a-f]{64}")
_ROLE: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")


class Permission(StrEnum):
    """A permission of a role."""

    RUNS_READ = "runs:read"
    RUNS_WRITE = "runs:write"
    WORKERS_VIEW = "workers:view"
    WORKERS_MANAGE = "workers:manage"
    DEFINITIONS_WRITE = "definitions:write"
    SCHEDULES_WRITE = "schedules:write"
    KEYS_MANAGE = "keys:manage"
    SECRETS_MANAGE = "secrets:manage"
    AUDIT_READ = "audit:read"
    EVENTS_WRITE = "events:write"
    WEBHOOKS_WRITE = "webhooks:write"
    MEMORY_READ = "memory:read"
    MEMORY_WRITE = "memory:write"
    MEMORY_ADMIN = "memory:admin"


PLATFORM_ADMIN: Final = "platform_admin"

_VIEWER: Final = frozenset({Permission.RUNS_READ, Permission.WORKERS_VIEW, Permission.MEMORY_READ})

# An operator controls runs, a developer changes definitions and sets their secrets; neither may create keys.
BUILT_IN_ROLES: Final[Mapping[str, frozenset[Permission]]] = {
    "viewer": _VIEWER,
    "operator": _VIEWER
    | {
        Permission.RUNS_WRITE,
        Permission.WORKERS_MANAGE,
        Permission.SCHEDULES_WRITE,
        Permission.EVENTS_WRITE,
        Permission.WEBHOOKS_WRITE,
        Permission.MEMORY_WRITE,
        Permission.MEMORY_ADMIN,
    },
    "developer": _VIEWER
    | {
        Permission.RUNS_WRITE,
        Permission.DEFINITIONS_WRITE,
        Permission.SECRETS_MANAGE,
        Permission.SCHEDULES_WRITE,
        Permission.EVENTS_WRITE,
        Permission.WEBHOOKS_WRITE,
        Permission.MEMORY_WRITE,
    },
    PLATFORM_ADMIN: frozenset(Permission),
}


def known_permissions(names: Iterable[str]) -> frozenset[Permission]:
    """Return the permissions of these names. A newer server may have some that do not exist in this version."""
    known = set(Permission)
    return frozenset(Permission(name) for name in names if name in known)


def _sorted_names(permissions: Iterable[str]) -> list[str]:
    return sorted(permissions)


Permissions = Annotated[frozenset[Permission], BeforeValidator(known_permissions), PlainSerializer(_sorted_names)]


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated caller of a request."""

    key_id: str
    name: str
    tenant: str
    role: str
    permissions: Permissions
    expires_at_us: Annotated[int | None, Field(exclude=True)] = None
    # The browser session of the request, if its cookie identified the caller.
    session_id: Annotated[str | None, Field(exclude=True)] = None

    @property
    def everywhere(self) -> bool:
        """Whether the caller acts in every tenant, which only the built-in role platform_admin allows."""
        return self.role == PLATFORM_ADMIN

    @property
    def actor(self) -> str:
        """The name in the audit log."""
        return self.key_id


@dataclass(frozen=True, slots=True)
class UserPrincipal(Principal):
    """A user whom an auth module has authenticated. `user` is what the module returned."""

    user: Annotated[Any, Field(exclude=True)] = None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A stored key; the key itself is not stored anywhere."""

    id: str
    tenant: str
    name: str
    prefix: Annotated[str, Field(alias="key_prefix")]
    role: str
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    expires_at_us: Annotated[Timestamp | None, Field(alias="expires_at")]
    revoked_at_us: Annotated[Timestamp | None, Field(alias="revoked_at")]
    last_used_at_us: Annotated[Timestamp | None, Field(alias="last_used_at")]
    created_by: str


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One administrative change. `old` is null for a new object, `new` for a deleted one."""

    id: str
    at_us: Annotated[Timestamp, Field(alias="at")]
    actor: str
    tenant: str
    action: str
    subject: str
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class MintedKey:
    """A new key, shown only once. Its repr does not contain the key."""

    raw: str = field(repr=False)
    prefix: str
    hash: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Role:
    """A role and its permissions."""

    name: str
    permissions: Permissions
    built_in: bool


def mint_key() -> MintedKey:
    """Return a new random key."""
    raw = KEY_PREFIX + secrets.token_hex(32)
    return MintedKey(raw, raw[:SHOWN_CHARACTERS], hash_of(raw))


def given_key(raw: str) -> MintedKey:
    """Return a key that another system has created."""
    found = parse_key(raw)
    if found is None:
        raise InvalidRequest("That is not an API key. A key is sk-rl- and 64 hex digits: openssl rand -hex 32")
    return MintedKey(raw, raw[:SHOWN_CHARACTERS], found)


def hash_of(raw: str) -> str:
    """Return the stored hash of a key."""
    return sha256(raw.encode()).hexdigest()


def parse_key(raw: str) -> str | None:
    """Return the hash of a key, or None for a string that is not a key."""
    return hash_of(raw) if len(raw) <= 128 and _KEY.fullmatch(raw) else None


def same_hash(one: str, other: str) -> bool:
    """Compare two hashes in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def check_permissions(names: Iterable[str]) -> frozenset[Permission]:
    """Return the permissions of these names."""
    known = [permission.value for permission in Permission]
    found: set[Permission] = set()
    for name in names:
        if name not in known:
            raise InvalidRequest(f'No permission "{name}"{nearest(name, known)}. Permissions: {", ".join(known)}.')
        found.add(Permission(name))
    return frozenset(found)


def check_role_name(name: str) -> str:
    """Return the name if it is valid for a custom role."""
    if name in BUILT_IN_ROLES:
        raise InvalidRequest(f'The role "{name}" is built in and cannot be changed. Give yours another name.')
    if _ROLE.fullmatch(name) is None:
        raise InvalidRequest(
            f"{name!r} is not a valid role name. Use 1 to 63 of a-z, 0-9, '_' and '-', beginning with a letter."
        )
    return name
