"""Rate limits of model providers as operators set them, and the back-off that all processes share.

Every worker reads both about twice a second while it makes calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, Integer, Text, bindparam, delete, select, update

from runlane.domain.ids import lock_key
from runlane.domain.rate_limit import (
    MAX_RETRY_AFTER_SECONDS,
    CredentialLimits,
    LimitChange,
    ProviderLimits,
    back_off_seconds,
    changed_limits,
    check_credential,
    default_credentials,
    default_limits,
)
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.text import clean_text
from runlane.errors import Conflict
from runlane.store.access.audit import append_audit
from runlane.store.sql.database import Database, Session, read
from runlane.store.sql.expressions import now_us, upsert
from runlane.store.sql.schema import provider_limits, provider_states
from runlane.store.sql.statement import Row, Statement

MAX_REASON = 300
_SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Slowdown:
    """All processes slow down on a credential. Ages are by the database's clock at the time of reading."""

    left_seconds: float
    ago_seconds: float
    streak: int
    reason: str


@dataclass(frozen=True, slots=True)
class LimitSnapshot:
    """The limits and back-offs that a worker checks before a call. A credential without `limits` has its defaults."""

    limits: Mapping[str, ProviderLimits]
    slow: Mapping[str, Slowdown]


_SNAPSHOT = Statement(
    "provider_snapshot",
    select(
        now_us().label("now"),
        provider_states.c.credential,
        provider_states.c.slow_until,
        provider_states.c.slowed_at,
        provider_states.c.slow_reason,
        provider_states.c.streak,
        provider_limits.c.in_flight,
        provider_limits.c.requests_per_minute,
        provider_limits.c.tokens_per_minute,
        provider_limits.c.updated_at,
        provider_limits.c.updated_by,
    ).select_from(
        provider_states.outerjoin(provider_limits, provider_limits.c.credential == provider_states.c.credential)
    ),
    purpose="Read the limits and back-offs of every known credential.",
)
_by_credential = provider_limits.c.credential == bindparam("credential")
_FIND = Statement(
    "find_provider_limits", select(provider_limits).where(_by_credential), purpose="Read the limits of a credential."
)
_RESET = Statement(
    "reset_provider_limits",
    delete(provider_limits).where(_by_credential),
    purpose="Delete the limits of a credential, so that the defaults apply.",
)
_add = upsert(provider_states).values(credential=bindparam("credential"))
_ADD = Statement(
    "add_credential",
    _add.on_conflict_do_nothing(index_elements=["credential"]),
    purpose="Add a credential, unless it is known.",
)
_values = {
    "in_flight": bindparam("new_in_flight", type_=Integer()),
    "requests_per_minute": bindparam("new_requests", type_=Integer()),
    "tokens_per_minute": bindparam("new_tokens", type_=Integer()),
    "updated_at": now_us(),
    "updated_by": bindparam("actor", type_=Text()),
}
_set = upsert(provider_limits).values(credential=bindparam("credential"), **_values)
_SET = Statement(
    "set_provider_limits",
    _set.on_conflict_do_update(
        index_elements=["credential"], set_={name: _set.excluded[name] for name in _values}
    ).returning(provider_limits),
    purpose="Store the limits of a credential.",
)
_STATE = Statement(
    "provider_state",
    select(provider_states, now_us().label("now")).where(provider_states.c.credential == bindparam("credential")),
    purpose="Read the back-off of a credential.",
)
# Every process that calls models reads all credentials twice a second, so a tenant has a limited number of them.
MAX_CREDENTIALS: Final = 100
_OF_TENANT = Statement(
    "credentials_of_tenant",
    select(provider_states.c.credential).where(provider_states.c.credential.like(bindparam("ending"), escape="\\")),
    purpose="Read the credentials of a tenant.",
)
_SLOW = Statement(
    "slow_down",
    update(provider_states)
    .where(provider_states.c.credential == bindparam("credential"))
    .values(
        slow_until=bindparam("new_until", type_=BigInteger()),
        slowed_at=bindparam("new_at", type_=BigInteger()),
        slow_reason=bindparam("new_reason", type_=Text()),
        streak=bindparam("new_streak", type_=Integer()),
    ),
    purpose="Store the back-off of a credential.",
)
_RECOVER = Statement(
    "recover_provider",
    update(provider_states)
    .where(
        provider_states.c.credential == bindparam("credential"),
        provider_states.c.slow_until <= now_us(),
        provider_states.c.slowed_at < now_us() - bindparam("entered_ago", type_=BigInteger()),
    )
    .values(streak=0),
    purpose="End the streak of 429 responses of a credential after a success.",
)


def provider_lock(credential: str) -> int:
    """Return the lock under which the calls of a credential are counted and its back-off is decided."""
    return lock_key("provider", credential)


async def read_snapshot(database: Database) -> LimitSnapshot:
    """Return the limits and back-offs of every known credential."""
    rows = await database.query(_SNAPSHOT)
    return LimitSnapshot(
        limits={row["credential"]: _limits(row) for row in rows if row["updated_at"] is not None},
        slow={
            row["credential"]: Slowdown(
                left_seconds=(row["slow_until"] - row["now"]) / _SECOND_US,
                ago_seconds=(row["now"] - row["slowed_at"]) / _SECOND_US,
                streak=row["streak"],
                reason=row["slow_reason"] or "",
            )
            for row in rows
            if row["streak"] or row["slow_until"] > row["now"]
        },
    )


async def list_limits(database: Database) -> Sequence[tuple[CredentialLimits, int | None, str | None]]:
    """Return every known credential with its limits, the end of its back-off if there is one, and the reason."""
    rows = await database.query(_SNAPSHOT)
    found: dict[str, tuple[CredentialLimits, int | None, str | None]] = {
        name: (_defaults(name), None, None) for name in default_credentials()
    }
    for row in rows:
        name, slow = row["credential"], row["slow_until"] > row["now"]
        found[name] = (
            _setting_from_row(name, row),
            row["slow_until"] if slow else None,
            (row["slow_reason"] or None) if slow else None,
        )
    return [found[name] for name in sorted(found)]


async def set_limits(
    database: Database, credential: str, change: LimitChange, *, actor: str
) -> tuple[CredentialLimits, CredentialLimits]:
    """Change the limits of a credential; return the old and the new. Workers apply them within about a second."""
    check_credential(credential)

    async def transaction(session: Session) -> tuple[CredentialLimits, CredentialLimits]:
        await session.lock(exclusive=[provider_lock(credential)])
        old = await _find(session, credential)
        limits = changed_limits(old.limits, change)
        await _require_room(session, credential)
        await session.fetch(_ADD, credential=credential)
        rows = await session.fetch(
            _SET,
            credential=credential,
            new_in_flight=limits.in_flight,
            new_requests=limits.requests_per_minute,
            new_tokens=limits.tokens_per_minute,
            actor=actor,
        )
        await _audit(session, actor, "limits.set", old.limits, limits, credential)
        return old, _setting_from_row(credential, rows[0])

    return await database.transact(transaction)


async def _require_room(session: Session, credential: str) -> None:
    """Raise Conflict if the credential would be one too many of its tenant."""
    _, at, tenant = credential.rpartition("@")
    if not at:
        return
    ending = tenant.replace("_", "\\_")
    known = [row["credential"] for row in await session.fetch(_OF_TENANT, ending=f"%@{ending}")]
    if credential not in known and len(known) >= MAX_CREDENTIALS:
        raise Conflict(
            f'The tenant "{tenant}" has {MAX_CREDENTIALS} credentials, which is the most. Change the limits of one of '
            "them: runlane limits list"
        )


async def reset_limits(database: Database, credential: str, *, actor: str) -> tuple[CredentialLimits, CredentialLimits]:
    """Reset a credential to its defaults; return the old and the new limits."""
    check_credential(credential)

    async def transaction(session: Session) -> tuple[CredentialLimits, CredentialLimits]:
        await session.lock(exclusive=[provider_lock(credential)])
        old = await _find(session, credential)
        new = _defaults(credential)
        if old.updated_by is not None:
            await session.fetch(_RESET, credential=credential)
            await _audit(session, actor, "limits.reset", old.limits, new.limits, credential)
        return old, new

    return await database.transact(transaction)


async def slow_down(
    database: Database, credential: str, retry_after_seconds: float | None, reason: str, jitter: float
) -> float:
    """Start or extend the back-off of a credential; return how many seconds of it are left.

    A 429 that arrives during a back-off belongs to a call that began before it: it may extend the back-off, but it is
    not counted as a repeat.
    """

    async def transaction(session: Session) -> float:
        await session.lock(exclusive=[provider_lock(credential)])
        await session.fetch(_ADD, credential=credential)
        row = (await session.fetch(_STATE, credential=credential))[0]
        now: int = row["now"]
        again = row["slow_until"] <= now
        streak = row["streak"] + 1 if again else max(1, row["streak"])
        seconds = (
            back_off_seconds(streak, retry_after_seconds, jitter)
            if again
            else min(retry_after_seconds or 0.0, MAX_RETRY_AFTER_SECONDS)
        )
        until = max(row["slow_until"], now + int(seconds * _SECOND_US))
        await session.fetch(
            _SLOW,
            credential=credential,
            new_until=until,
            new_at=now,
            new_reason=clean_text(reason, MAX_REASON),
            new_streak=streak,
        )
        return (until - now) / _SECOND_US

    return await database.transact(transaction)


async def recover(database: Database, credential: str, entered_seconds_ago: float) -> None:
    """Reset the streak after a call that began during the back-off succeeded: the next back-off is short again."""

    await read(database, _RECOVER, credential=credential, entered_ago=int(entered_seconds_ago * _SECOND_US))


async def add_credential(database: Database, credential: str) -> None:
    """List the credential, if it is not listed yet."""
    await read(database, _ADD, credential=credential)


async def _find(session: Session, credential: str) -> CredentialLimits:
    rows = await session.fetch(_FIND, credential=credential)
    return _setting_from_row(credential, rows[0]) if rows else _defaults(credential)


async def _audit(
    session: Session, actor: str, action: str, old: ProviderLimits, new: ProviderLimits, credential: str
) -> None:
    if old != new or action == "limits.reset":
        change: dict[str, Any] = {"old": asdict(old), "new": asdict(new)}
        await append_audit(session, actor=actor, tenant=DEFAULT_TENANT, action=action, subject=credential, **change)


def _limits(row: Row) -> ProviderLimits:
    return ProviderLimits(row["in_flight"], row["requests_per_minute"], row["tokens_per_minute"])


def _setting_from_row(credential: str, row: Row) -> CredentialLimits:
    if row["updated_at"] is None:
        return _defaults(credential)
    limits = asdict(_limits(row))
    return CredentialLimits(credential, **limits, updated_at_us=row["updated_at"], updated_by=row["updated_by"])


def _defaults(credential: str) -> CredentialLimits:
    limits = asdict(default_limits(credential))
    return CredentialLimits(credential, **limits, updated_at_us=None, updated_by=None)
