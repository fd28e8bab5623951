"""Threads: create, read, find, change and delete them.

A thread is created and changed under the lock of the ordering key of its runs, so that a run that is accepted at the
same time sees it as it was before or after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Integer,
    Text,
    bindparam,
    case,
    cast,
    insert,
    select,
    update,
)

from runlane.domain.graph import ThreadStatus, metadata_json, thread_key, thread_ordering_key
from runlane.domain.text import dump_json, load_json
from runlane.domain.thread import Thread, ThreadTtl
from runlane.domain.timestamps import format_timestamp
from runlane.errors import Conflict, UnknownThread
from runlane.store.queue.ordering import key_locks
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import json_contains, lit, now_us, upsert
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import threads
from runlane.store.sql.statement import Row, Statement
from runlane.store.threads.deletion import copy_checkpoints, expiry, keep_latest

_MINUTE_US: Final = 60 * 1_000_000


@dataclass(frozen=True, slots=True)
class Ttl:
    """The expiry of a thread, and whether the thread or only its old checkpoints are deleted then."""

    minutes: int
    strategy: str


_key = bindparam("key", type_=Text())
_tenant = bindparam("tenant", type_=Text())
_metadata = bindparam("metadata", type_=Text())
_minutes = bindparam("ttl_minutes", type_=Integer())
_one = threads.c.key == _key
_expires = case(
    (cast(_minutes, Integer).is_(None), None),
    else_=now_us() + cast(_minutes, BigInteger) * lit(_MINUTE_US),
)
_CREATE = Statement(
    "create_thread",
    upsert(threads)
    .values(
        key=_key,
        tenant=_tenant,
        id=bindparam("thread_id", type_=Text()),
        status=lit(ThreadStatus.IDLE),
        open_runs=lit(0),
        metadata=_metadata,
        config=bindparam("config", type_=Text()),
        ttl_minutes=_minutes,
        ttl_strategy=bindparam("ttl_strategy", type_=Text()),
        expires_at=_expires,
        created_at=now_us(),
        updated_at=now_us(),
        state_updated_at=now_us(),
    )
    .on_conflict_do_nothing()
    .returning(threads),
    purpose="Create a thread, unless its id exists.",
)
_FIND = Statement("find_thread", select(threads).where(_one), purpose="Read a thread.")
_LOCK = Statement("lock_thread", select(threads).where(_one).with_for_update(), purpose="Lock a thread.")
_PATCH = Statement(
    "patch_thread",
    update(threads)
    .where(_one)
    .values(
        metadata=_metadata,
        ttl_minutes=_minutes,
        ttl_strategy=bindparam("ttl_strategy", type_=Text()),
        expires_at=bindparam("expires_at", type_=BigInteger()),
        updated_at=now_us(),
    )
    .returning(threads),
    purpose="Change the metadata and the expiry of a thread.",
)
_COPIED = ("tenant", "status", "metadata", "config", "state_values", "interrupts", "ttl_minutes", "ttl_strategy")
_COPY = Statement(
    "copy_thread",
    insert(threads)
    .from_select(
        ["key", "id", "open_runs", *_COPIED, "expires_at", "created_at", "updated_at", "state_updated_at"],
        select(
            cast(bindparam("target", type_=Text()), Text),
            cast(bindparam("copy_id", type_=Text()), Text),
            lit(0),
            *(threads.c[name] for name in _COPIED),
            expiry(),
            now_us(),
            now_us(),
            now_us(),
        ).where(threads.c.key == bindparam("source", type_=Text())),
    )
    .returning(threads),
    purpose="Copy a thread.",
)
_NOW = Statement("time_of_threads", select(now_us().label("now")), purpose="Read the clock for the expiry of a thread.")
_OF_ASSISTANT = Statement(
    "threads_of_assistant",
    select(threads.c.id).where(threads.c.tenant == _tenant, json_contains(threads.c.metadata, _metadata)),
    purpose="Find the threads of an assistant.",
)


async def create_thread(
    database: Database,
    tenant: str,
    thread_id: str,
    *,
    metadata: Mapping[str, Any] | None = None,
    ttl: Ttl | None = None,
    may_exist: bool = False,
) -> Thread:
    """Create a thread. If its id exists: return it with `may_exist`, else raise Conflict."""

    async def work(session: Session) -> Thread:
        await lock_thread_key(session, tenant, thread_id)
        row = await create_thread_in(session, tenant, thread_id, metadata=metadata, ttl=ttl)
        if row is None:
            if not may_exist:
                raise Conflict(
                    f'The thread "{thread_id}" exists already. Use another id, or send "if_exists": "do_nothing".'
                )
            return await find_thread_in(session, tenant, thread_id)
        return thread_of(row)

    return await database.transact(work)


async def create_thread_in(
    session: Session,
    tenant: str,
    thread_id: str,
    *,
    metadata: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    ttl: Ttl | None = None,
) -> Row | None:
    """Create a thread under the lock of its key; None if it exists."""
    rows = await session.fetch(
        _CREATE,
        key=thread_key(tenant, thread_id),
        tenant=tenant,
        thread_id=thread_id,
        metadata=metadata_json(metadata or {}),
        config=dump_json(config or {}),
        ttl_minutes=None if ttl is None else ttl.minutes,
        ttl_strategy=None if ttl is None else ttl.strategy,
    )
    return rows[0] if rows else None


async def find_thread(database: Database, tenant: str, thread_id: str) -> Thread:
    """Return a thread."""
    rows = await database.query(_FIND, key=thread_key(tenant, thread_id))
    if not rows:
        raise UnknownThread(thread_id)
    return thread_of(rows[0])


async def find_thread_in(session: Session, tenant: str, thread_id: str) -> Thread:
    """Do the same within a transaction."""
    rows = await session.fetch(_FIND, key=thread_key(tenant, thread_id))
    if not rows:
        raise UnknownThread(thread_id)
    return thread_of(rows[0])


async def read_thread_in(session: Session, key: str) -> Row | None:
    """Lock the row of a thread and return it; None if the thread does not exist."""
    rows = await session.fetch(_LOCK, key=key)
    return rows[0] if rows else None


async def lock_thread_key(session: Session, tenant: str, thread_id: str) -> None:
    """Wait for the lock of the ordering key of a thread, under which its runs are accepted and end."""
    await session.lock(exclusive=key_locks([thread_ordering_key(tenant, thread_id)]))


async def patch_thread(
    database: Database, tenant: str, thread_id: str, *, metadata: Mapping[str, Any] | None, ttl: Ttl | None
) -> Thread:
    """Merge metadata into the metadata of a thread, and set when it expires if `ttl` is given."""
    key = thread_key(tenant, thread_id)

    async def work(session: Session) -> Thread:
        rows = await session.fetch(_LOCK, key=key)
        if not rows:
            raise UnknownThread(thread_id)
        row = rows[0]
        merged = {**load_json(row["metadata"]), **(metadata or {})}
        expiry = {name: row[name] for name in ("ttl_minutes", "ttl_strategy", "expires_at")}
        if ttl is not None:
            now: int = (await session.fetch(_NOW))[0]["now"]
            expires_at = now + ttl.minutes * _MINUTE_US
            expiry = {"ttl_minutes": ttl.minutes, "ttl_strategy": ttl.strategy, "expires_at": expires_at}
        return thread_of((await session.fetch(_PATCH, key=key, metadata=metadata_json(merged), **expiry))[0])

    return await database.transact(work)


async def copy_thread(database: Database, tenant: str, thread_id: str, copy_id: str) -> Thread:
    """Copy a thread with its checkpoints and metadata. Runs are not copied, and an open run is not part of the copy."""
    source, target = thread_key(tenant, thread_id), thread_key(tenant, copy_id)

    async def work(session: Session) -> Thread:
        keys = [thread_ordering_key(tenant, thread_id), thread_ordering_key(tenant, copy_id)]
        await session.lock(exclusive=key_locks(keys))
        rows = await session.fetch(_COPY, source=source, target=target, copy_id=copy_id)
        if not rows:
            raise UnknownThread(thread_id)
        await copy_checkpoints(session, source, target)
        return thread_of(rows[0])

    return await database.transact(work)


async def prune_thread(database: Database, tenant: str, thread_id: str) -> bool:
    """Delete the checkpoints of a thread before the newest. Return False if it does not exist, Conflict if busy."""

    async def work(session: Session) -> bool:
        await lock_thread_key(session, tenant, thread_id)
        row = await read_thread_in(session, thread_key(tenant, thread_id))
        if row is None:
            return False
        if row["open_runs"]:
            raise Conflict(f'The thread "{thread_id}" has a run that has not ended. Prune it afterwards.')
        await keep_latest(session, row["key"])
        return True

    return await database.transact(work)


async def threads_of_assistant(session: Session, tenant: str, assistant_id: str) -> list[str]:
    """Return the ids of the threads whose last run was one of this assistant."""
    found = await session.fetch(_OF_ASSISTANT, tenant=tenant, metadata=dump_json({"assistant_id": assistant_id}))
    return [row["id"] for row in found]


def thread_of(row: Row) -> Thread:
    """Return the value of a row."""
    return from_row(
        Thread,
        row,
        json=("metadata", "config", "error"),
        status=ThreadStatus.BUSY if row["open_runs"] > 0 else ThreadStatus(row["status"]),
        values=None if row["state_values"] is None else load_json(row["state_values"]),
        interrupts={} if row["interrupts"] is None else load_json(row["interrupts"]),
        ttl=_ttl(row),
    )


def _ttl(row: Row) -> ThreadTtl | None:
    if row["ttl_minutes"] is None:
        return None
    expires = row["expires_at"]
    return {
        "strategy": row["ttl_strategy"],
        "ttl_minutes": row["ttl_minutes"],
        "expires_at": None if expires is None else format_timestamp(expires),
    }
