"""Concurrency limits in the transactions that change runs: the change of the status itself takes and frees slots.

A run with limits is queued only with a slot of each. A statement that would queue such a run without its slots blocks
it instead, and `wait_for_limits` lets it wait in the same transaction. A transaction that ends or pauses a run, or lets
it wait for a retry, frees its slots. After the commit, the `Admitter` of the process admits waiting runs under the
locks of the limits. No transaction that ends runs needs these locks: a run that is accepted meanwhile waits, and the
admission after the commit finds it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, case

from runlane.domain.admission import Room, turn_of, wait_order
from runlane.domain.concurrency import ConcurrencyLimit, ConcurrencyStrategy, limits_of_text
from runlane.domain.ids import lock_key
from runlane.domain.run import PRIORITY_STEP_US, RunHook, Status
from runlane.store.queue.limit_rows import (
    ADD_SLOTS,
    ADD_WAITS,
    FREE_SLOTS,
    LIMITS_OF_RUNS,
    READ_ROOM,
    REMOVE_WAITS,
    SET_PLACE,
)
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import has_bits, lit
from runlane.store.sql.schema import runs
from runlane.store.sql.statement import Row


def limit_locks(keys: Iterable[str]) -> list[int]:
    """Return the lock numbers of concurrency limits."""
    return [_limit_lock(key) for key in set(keys)]


@lru_cache(maxsize=4096)
def _limit_lock(key: str) -> int:
    return lock_key("limit", key)


def queued_status() -> ColumnElement[Any]:
    """Return the status of a run that is ready and has no slots: blocked if it has limits, until they admit it."""
    return case((has_bits(runs.c.hooks, RunHook.LIMITS), lit(Status.BLOCKED)), else_=lit(Status.QUEUED))


def waits_for_limits(row: Row) -> bool:
    """Return whether a changed run waits for its limits, and for nothing else.

    The row has status, hooks, ordering_key and holds_key.
    """
    return (
        row["status"] == Status.BLOCKED
        and bool(row["hooks"] & RunHook.LIMITS)
        and not row["hooks"] & RunHook.WAITS_FOR_RUNS
        and (row["ordering_key"] is None or bool(row["holds_key"]))
    )


async def wait_for_limits(session: Session, changed: Iterable[Row], *, again: bool = True) -> None:
    """Let the changed runs that are ready and have limits wait for their limits.

    With `again`, runs that have started before are ahead of the others. The rows are as in `waits_for_limits`.
    """
    ids = sorted(row["id"] for row in changed if waits_for_limits(row))
    if ids:
        await wait_in(session, await session.fetch(LIMITS_OF_RUNS, ids=session.texts(ids)), again=again)


async def wait_in(session: Session, rows: Sequence[Row], *, key: str | None = None, again: bool = True) -> None:
    """Let runs wait under one of their limits, by default the first; they may be admitted after the commit."""
    members: list[tuple[Any, ...]] = []
    for row in rows:
        limits = limits_of_text(row["limits"])
        limit = next((limit for limit in limits if limit.key == key), limits[0])
        place = wait_order(row["accepted_at"], row["priority"], started=again and row["attempt"] > 0)
        members.append(wait_row(row["id"], limits, limit, place, row["fairness_key"], row["target"]))
        session.freed.add(limit.key)
    await session.fetch(ADD_WAITS, members)


def wait_row(
    run_id: str,
    limits: Sequence[ConcurrencyLimit],
    limit: ConcurrencyLimit,
    place: int,
    fairness_key: str | None,
    target: str,
) -> tuple[Any, ...]:
    """Return the member of ADD_WAITS for a run that waits under this limit."""
    turn = turn_of(limits, limit.key, fairness_key, target)
    return (run_id, limit.key, turn, place, limit.strategy is ConcurrencyStrategy.CANCEL_RUNNING)


async def free_slots(session: Session, run_ids: Iterable[str]) -> None:
    """Free the slots of runs that are not admitted any more."""
    ids = sorted(run_ids)
    if not ids:
        return
    rows = await session.fetch(LIMITS_OF_RUNS, ids=session.texts(ids))
    slots = sorted({(limit.key, row["id"]) for row in rows for limit in limits_of_text(row["limits"])})
    await session.fetch(FREE_SLOTS, slots)
    # All limits are notified, even for a run that only waited: the next run of its key may take its turn under another
    # limit.
    session.freed.update(key for key, _ in slots)


async def free_ended(session: Session, ended: Iterable[Row]) -> None:
    """Free the slots of ended runs, and remove those that waited. A row has id, status and hooks."""
    limited = [row for row in ended if row["hooks"] & RunHook.LIMITS]
    if not limited:
        return
    await free_slots(session, [row["id"] for row in limited])
    # Only a cancelled run may have waited.
    cancelled = sorted(row["id"] for row in limited if row["status"] == Status.CANCELLED)
    if cancelled:
        await session.fetch(REMOVE_WAITS, ids=session.texts(cancelled))


async def add_slots(session: Session, admitted: Iterable[tuple[str, Sequence[ConcurrencyLimit]]]) -> None:
    """Store the slots of runs that are admitted in this transaction, which holds the locks of their limits."""
    # The rows are in the order of the key, as in every transaction that locks them.
    slots = sorted((limit.key, run_id) for run_id, limits in admitted for limit in limits)
    await session.fetch(ADD_SLOTS, slots)


async def read_room(session: Session, keys: Collection[str]) -> Room:
    """Return the number of admitted runs by key, the numbers of shared limits, and the keys that runs wait for."""
    room = Room()
    for row in await session.fetch(READ_ROOM, [(key,) for key in sorted(keys)]):
        room.admitted[row["key"]] = row["admitted"]
        if row["most"] is not None:
            room.shared[row["key"]] = row["most"]
        if row["waited"]:
            room.waited.add(row["key"])
    return room


async def move_place(session: Session, row: Row, old_priority: int, new_priority: int) -> None:
    """Change the place of a waiting run whose priority was changed."""
    if waits_for_limits(row):
        shift_us = (old_priority - new_priority) * PRIORITY_STEP_US
        freed = await session.fetch(SET_PLACE, run_id=row["id"], shift_us=shift_us)
        session.freed.update(one["key"] for one in freed)
