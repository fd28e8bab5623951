"""Find threads. A page is bounded in bytes, because the values of a thread may have megabytes.

The first statement reads the keys and sizes of the threads of a page, the second one the threads that the bound has
room for. Values that the caller does not need are not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from sqlalchemy import Boolean, ColumnElement, Integer, Text, and_, bindparam, case, cast, func, null, or_, select

from runlane.domain.access_rule import AccessRule, rule_text
from runlane.domain.graph import ThreadStatus
from runlane.domain.run import Status
from runlane.domain.text import dump_json
from runlane.domain.thread import Thread
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import byte_size, json_contains, lit, member, visible_by
from runlane.store.sql.schema import run_waits, runs, thread_runs, threads
from runlane.store.sql.statement import Row, Statement
from runlane.store.threads.threads import thread_of

# The maximum size of a page in bytes of JSON. The first thread is returned whatever its size.
MAX_PAGE_BYTES: Final = 16 * 1024 * 1024
# Larger JSON is parsed in a thread of the process.
_PARSED_AT_ONCE: Final = 256 * 1024
SORT_COLUMNS: Final[Mapping[str, ColumnElement[Any]]] = {
    "thread_id": threads.c.id,
    "status": threads.c.status,
    "created_at": threads.c.created_at,
    "updated_at": threads.c.updated_at,
    "state_updated_at": threads.c.state_updated_at,
}


@dataclass(frozen=True, slots=True)
class ThreadFilter:
    """Selects threads: all given conditions must hold."""

    ids: Sequence[str] | None = None
    status: ThreadStatus | None = None
    metadata: Mapping[str, Any] | None = None
    values: Mapping[str, Any] | None = None
    rule: AccessRule | None = None


@dataclass(frozen=True, slots=True)
class FoundThreads:
    """A page of threads, and whether more follow."""

    threads: list[Thread]
    more: bool


_tenant = bindparam("tenant", type_=Text())
_metadata = bindparam("metadata", type_=Text())
_status = bindparam("status", type_=Text())
_values = bindparam("values", type_=Text())
# A run of an agent that waits for a person makes its thread interrupted; runs of graphs do not pause.
_asks = (
    select(lit(1))
    .select_from(
        thread_runs.join(runs, runs.c.id == thread_runs.c.run_id).join(run_waits, run_waits.c.run_id == runs.c.id)
    )
    .where(
        thread_runs.c.thread == threads.c.key,
        runs.c.status == lit(Status.PAUSED),
        run_waits.c.kind == lit("human"),
        run_waits.c.answered_at.is_(None),
        run_waits.c.settled_at.is_(None),
    )
    .exists()
)
_shown_status = case(
    (threads.c.open_runs == lit(0), threads.c.status),
    (and_(threads.c.native.is_not(None), _asks), lit(ThreadStatus.INTERRUPTED)),
    else_=lit(ThreadStatus.BUSY),
)
_found = (
    threads.c.tenant == _tenant,
    or_(cast(bindparam("every_id", type_=Boolean()), Boolean), member(threads.c.id, "ids")),
    or_(cast(_status, Text).is_(None), _shown_status == _status),
    or_(cast(_metadata, Text).is_(None), json_contains(threads.c.metadata, _metadata)),
    or_(cast(_values, Text).is_(None), json_contains(threads.c.state_values, _values)),
    visible_by(threads.c.metadata),
)


def _size(name: str) -> ColumnElement[int]:
    return func.coalesce(byte_size(threads.c[name]), lit(0))


_SEARCH = {
    (column, descending): Statement(
        f"search_threads_by_{column}{'_down' if descending else ''}",
        select(
            threads.c.key,
            (_size("metadata") + _size("config") + _size("interrupts") + _size("error")).label("size"),
            _size("state_values").label("values_size"),
        )
        .where(*_found)
        .order_by(order.desc() if descending else order.asc(), threads.c.id.desc() if descending else threads.c.id)
        .limit(bindparam("limit", type_=Integer()))
        .offset(bindparam("offset", type_=Integer())),
        purpose=f"Find threads with their sizes, in the order of {column}.",
    )
    for column, order in SORT_COLUMNS.items()
    for descending in (False, True)
}
_READ = Statement(
    "read_found_threads",
    select(threads).where(member(threads.c.key, "keys")),
    purpose="Read the threads of a page.",
)
_READ_SHORT = Statement(
    "read_found_threads_without_values",
    select(
        *(column for column in threads.c if column.name != "state_values"), cast(null(), Text).label("state_values")
    ).where(member(threads.c.key, "keys")),
    purpose="Read the threads of a page without their values.",
)
_COUNT = Statement(
    "count_threads",
    select(func.count().label("number")).select_from(threads).where(*_found),
    purpose="Count the threads that a search finds.",
)


async def search_threads(
    database: Database,
    tenant: str,
    wanted: ThreadFilter,
    *,
    sort_by: str = "updated_at",
    descending: bool = True,
    limit: int = 10,
    offset: int = 0,
    with_values: bool = True,
) -> FoundThreads:
    """Return a page of the threads of a tenant: at most `limit`, and as many as MAX_PAGE_BYTES have room for."""

    async def work(session: Session) -> tuple[list[Row], int, bool]:
        given = {"tenant": tenant, "limit": limit + 1, "offset": offset, **_filter(session, wanted)}
        found = await session.fetch(_SEARCH[sort_by, descending], **given)
        page = found[:limit]
        ends = list(accumulate(row["size"] + (row["values_size"] if with_values else 0) for row in page))
        fitting = page[: max(1, sum(end <= MAX_PAGE_BYTES for end in ends))]
        keys = [row["key"] for row in fitting]
        rows = await session.fetch(_READ if with_values else _READ_SHORT, keys=session.texts(keys))
        by_key = {row["key"]: row for row in rows}
        size = ends[len(fitting) - 1] if fitting else 0
        return [by_key[key] for key in keys if key in by_key], size, len(found) > len(fitting)

    rows, size, more = await database.transact(work)
    if size <= _PARSED_AT_ONCE:
        return FoundThreads([thread_of(row) for row in rows], more)
    return FoundThreads(await asyncio.to_thread(lambda: [thread_of(row) for row in rows]), more)


async def count_threads(database: Database, tenant: str, wanted: ThreadFilter) -> int:
    """Return how many threads a search finds."""

    async def work(session: Session) -> int:
        return (await session.fetch(_COUNT, tenant=tenant, **_filter(session, wanted)))[0]["number"]

    return await database.transact(work)


def _filter(session: Session, wanted: ThreadFilter) -> dict[str, Any]:
    return {
        "every_id": wanted.ids is None,
        "ids": session.texts(list(wanted.ids or ())),
        "status": None if wanted.status is None else wanted.status.value,
        "metadata": None if wanted.metadata is None else dump_json(wanted.metadata),
        "values": None if wanted.values is None else dump_json(wanted.values),
        "rule": rule_text(wanted.rule),
    }
