"""Refresh threads whose run another process than its worker has ended: the reaper, or a cancellation.

A worker reports the state of the thread with the end of its run. A run that ends without its worker may have stored
checkpoints that the thread does not show yet; the thread then shows the newest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import structlog
from sqlalchemy import BigInteger, FromClause, Text, and_, case, func, select, update
from sqlalchemy.sql.base import Executable

from runlane.domain.graph import ThreadStatus
from runlane.domain.text import dump_json
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, member, now_us
from runlane.store.sql.schema import checkpoints, threads
from runlane.store.sql.statement import Statement
from runlane.store.threads.checkpoints import ROOT, CheckpointRecord, records_of
from runlane.store.threads.states import describe_state

log = structlog.get_logger(__name__)

_of_thread = and_(checkpoints.c.thread == threads.c.key, checkpoints.c.ns == ROOT)
_NEWEST = Statement(
    "newest_checkpoints_of_threads",
    select(
        threads.c.key,
        threads.c.state_updated_at,
        select(func.max(checkpoints.c.id)).where(_of_thread).correlate(threads).scalar_subquery().label("id"),
    )
    .where(member(threads.c.key, "keys"))
    .order_by(threads.c.key),
    purpose="Find the newest checkpoints of threads.",
)


def _read_newer(batch: FromClause) -> Executable:
    c, b = checkpoints.c, batch.c
    found = and_(c.thread == b.thread, c.ns == b.ns, c.id == b.id, c.created_at > b.since)
    return select(checkpoints).select_from(batch.join(checkpoints, found))


_NEWER = Statement(
    "read_newer_checkpoints",
    _read_newer,
    {"thread": Text(), "ns": Text(), "id": Text(), "since": BigInteger()},
    purpose="Read checkpoints that are newer than the state of their threads.",
)


def _show(batch: FromClause) -> Executable:
    b = batch.c
    return (
        update(threads)
        .where(threads.c.key == b.key)
        .values(
            # The error of a failed run stays.
            status=case((threads.c.status == lit(ThreadStatus.ERROR), threads.c.status), else_=b.status),
            state_values=b.state_values,
            interrupts=b.interrupts,
            state_updated_at=now_us(),
        )
    )


_SHOW = Statement(
    "show_newest_checkpoints",
    _show,
    {"key": Text(), "status": Text(), "state_values": Text(), "interrupts": Text()},
    purpose="Show the state at the newest checkpoints in their threads.",
)


async def refresh_threads(session: Session, keys: Sequence[str]) -> None:
    """Show the newest checkpoint in each of these threads that does not show it yet."""
    if not keys or find_spec("ormsgpack") is None:
        return  # without the extra `langgraph` values cannot be decoded; the next run of the thread stores them
    newest = await session.fetch(_NEWEST, keys=session.texts(sorted(keys)))
    rows = await session.fetch(
        _NEWER, [(row["key"], ROOT, row["id"], row["state_updated_at"]) for row in newest if row["id"] is not None]
    )
    shown = [_shown(record) for record in await records_of(session, rows)]
    await session.fetch(_SHOW, [row for row in shown if row is not None])


def _shown(record: CheckpointRecord) -> tuple[Any, ...] | None:
    try:
        state = describe_state(record, live=True)
    except Exception as error:  # noqa: BLE001 - a value that cannot be decoded must not keep the run from ending
        log.warning("thread_state_not_read", thread=record.thread, error=f"{type(error).__name__}: {error}")
        return None
    interrupts = {task["id"]: task["interrupts"] for task in state["tasks"] if task["interrupts"]}
    status = ThreadStatus.INTERRUPTED if state["next"] else ThreadStatus.IDLE
    return (record.thread, status.value, dump_json(state["values"]), dump_json(interrupts))
