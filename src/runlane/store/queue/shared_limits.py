"""Concurrency limits that a tenant stores under a name. A change holds the limit's lock, so it takes effect at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runlane.domain.concurrency import SharedLimit, check_limit_name, check_max_running, shared_limit_key
from runlane.domain.events import EventType, Notice
from runlane.errors import Conflict, NotFound, nearest
from runlane.failpoints import failpoint
from runlane.store.access.audit import append_audit
from runlane.store.queue.events import append
from runlane.store.queue.limit_rows import (
    DELETE_LIMIT,
    EVERY_LIMIT,
    FIND_LIMIT,
    LIMIT_NAMES,
    LIMITS_OF_RUNS,
    LIST_LIMITS,
    SET_LIMIT,
    WITHDRAW,
    WITHDRAWABLE,
)
from runlane.store.queue.limits import free_slots, limit_locks, wait_in
from runlane.store.sql.database import Database, Session
from runlane.store.sql.rows import from_row
from runlane.store.sql.statement import Row

MAX_SHARED_LIMITS = 1000


async def list_shared_limits(
    database: Database, tenant: str, *, after: str = "", limit: int = MAX_SHARED_LIMITS
) -> Sequence[SharedLimit]:
    """Return the shared limits of a tenant with their use, by name."""
    return [_value(row) for row in await database.query(LIST_LIMITS, tenant=tenant, after=after, limit=limit)]


async def read_limit_use(database: Database, limit: int) -> Sequence[SharedLimit]:
    """Return the shared limits of all tenants with their use, at most this many."""
    return [_value(row) for row in await database.query(EVERY_LIMIT, limit=limit)]


async def find_shared_limit(database: Database, tenant: str, name: str) -> SharedLimit:
    """Return a shared limit with its use."""
    rows = await database.query(FIND_LIMIT, key=shared_limit_key(tenant, name))
    if rows:
        return _value(rows[0])
    raise _unknown(name, [row["name"] for row in await database.query(LIMIT_NAMES, tenant=tenant)])


async def set_shared_limit(
    database: Database, tenant: str, name: str, max_running: int, *, actor: str
) -> tuple[SharedLimit, tuple[Notice, ...]]:
    """Create or change a shared limit. Queued runs above a lower number wait again when this returns.

    Return the limit and the notices about these runs. The caller lets the admitter admit runs.
    """
    check_limit_name(name)
    check_max_running(max_running)
    key = shared_limit_key(tenant, name)

    async def work(session: Session) -> tuple[SharedLimit, tuple[Notice, ...]]:
        await session.lock(exclusive=limit_locks([key]))
        before = await session.fetch(FIND_LIMIT, key=key)
        if not before and len(await session.fetch(LIMIT_NAMES, tenant=tenant)) >= MAX_SHARED_LIMITS:
            raise Conflict(
                f'The tenant "{tenant}" has {MAX_SHARED_LIMITS} concurrency limits, which is the limit. Delete one.'
            )
        values = {"tenant": tenant, "name": name, "max_running": max_running, "updated_by": actor}
        await session.fetch(SET_LIMIT, key=key, **values)
        notices = await _withdraw(session, key, max_running)
        old = {"max_running": before[0]["max_running"]} if before else None
        await _audit(session, actor, tenant, "concurrency_limit.set", name, old, {"max_running": max_running})
        session.freed.add(key)
        failpoint("operate.before_commit")
        return _value((await session.fetch(FIND_LIMIT, key=key))[0]), notices

    changed = await database.transact(work)
    failpoint("operate.committed")
    return changed


async def _withdraw(session: Session, key: str, max_running: int) -> tuple[Notice, ...]:
    """Block queued runs again until at most this many are admitted, or only running ones are left."""
    notices: list[Notice] = []
    while True:
        admitted = (await session.fetch(FIND_LIMIT, key=key))[0]["admitted"]
        if admitted <= max_running:
            break
        # The change waits for a claim in progress. A run that the claim takes is not among the queued ones.
        found = await session.fetch(WITHDRAWABLE, key=key, most=admitted - max_running)
        ids = sorted(row["id"] for row in found)
        if not ids:
            break
        rows = await session.fetch(WITHDRAW, ids=session.texts(ids))
        await free_slots(session, ids)
        await wait_in(session, await session.fetch(LIMITS_OF_RUNS, ids=session.texts(ids)), key=key)
        events = [
            (row["id"], row["last_seq"], row["attempt"], EventType.WITHDRAWN.value, None, '{"status":"blocked"}')
            for row in rows
        ]
        await append(session, events)
        notices += [Notice(row["id"], row["last_seq"]) for row in rows]
    return tuple(notices)


async def delete_shared_limit(database: Database, tenant: str, name: str, *, actor: str) -> SharedLimit:
    """Delete a shared limit and return it. Conflict while a run is admitted under it or waits for it."""
    key = shared_limit_key(tenant, name)

    async def work(session: Session) -> SharedLimit:
        await session.lock(exclusive=limit_locks([key]))
        rows = await session.fetch(FIND_LIMIT, key=key)
        if not rows:
            raise _unknown(name, [row["name"] for row in await session.fetch(LIMIT_NAMES, tenant=tenant)])
        used = rows[0]
        if used["admitted"] or used["waiting"]:
            raise Conflict(
                f'The concurrency limit "{name}" is in use: {used["admitted"]} runs are admitted under it and '
                f"{used['waiting']} wait for it. Remove it from the targets, and delete it when these runs have ended."
            )
        await session.fetch(DELETE_LIMIT, key=key)
        await _audit(
            session, actor, tenant, "concurrency_limit.delete", name, {"max_running": used["max_running"]}, None
        )
        failpoint("operate.before_commit")
        return _value(used)

    deleted = await database.transact(work)
    failpoint("operate.committed")
    return deleted


async def _audit(
    session: Session,
    actor: str,
    tenant: str,
    action: str,
    name: str,
    old: dict[str, Any] | None,
    new: dict[str, Any] | None,
) -> None:
    await append_audit(session, actor=actor, tenant=tenant, action=action, subject=name, old=old, new=new)


def _unknown(name: str, known: Sequence[str]) -> NotFound:
    return NotFound(
        f'The concurrency limit "{name}" does not exist{nearest(name, known)}. See: runlane concurrency-limits list'
    )


def _value(row: Row) -> SharedLimit:
    return from_row(SharedLimit, row)
