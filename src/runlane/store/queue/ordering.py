"""Ordering keys: runs with the same key run one at a time, in the order they were accepted.

One run holds the key (`holds_key`, unique in the database), the others are `blocked` behind it by number. Every
transaction that frees or takes a key does so under a lock on the key, and the one that frees it assigns it to the
next run, so no other process is needed for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import FromClause, Text, case, exists, func, select, update
from sqlalchemy.sql.base import Executable

from runlane.domain.events import EventType
from runlane.domain.ids import lock_key
from runlane.domain.run import RunHook, Status
from runlane.store.queue.events import append
from runlane.store.queue.limits import queued_status, wait_for_limits
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import has_bits, lit, now_us
from runlane.store.sql.schema import runs
from runlane.store.sql.statement import Statement


@dataclass(frozen=True, slots=True)
class ReleasedRun:
    """A run whose status has changed as a consequence of another change, such as the release of its ordering key."""

    run_id: str
    lane: str
    status: Status
    last_seq: int


def _release_next(batch: FromClause) -> Executable:
    waiting = runs.alias("waiting")
    holder = runs.alias("holder")
    first = (
        select(func.min(waiting.c.key_no))
        .where(waiting.c.ordering_key == batch.c.key, waiting.c.status == lit(Status.BLOCKED))
        .scalar_subquery()
    )
    heads = select(batch.c.key.label("key"), first.label("key_no")).select_from(batch).subquery("heads")
    return (
        update(runs)
        .where(
            runs.c.ordering_key == heads.c.key,
            runs.c.key_no == heads.c.key_no,
            runs.c.status == lit(Status.BLOCKED),
            ~exists().where(holder.c.ordering_key == heads.c.key, holder.c.holds_key),
        )
        .values(
            holds_key=True,
            status=ready_status(),
            last_seq=runs.c.last_seq + lit(1),
        )
        .returning(
            runs.c.id, runs.c.lane, runs.c.status, runs.c.last_seq, runs.c.attempt, runs.c.hooks, runs.c.ordering_key,
            runs.c.holds_key,
        )
    )  # fmt: skip


def ready_status(*, waits_for_runs: bool = True):
    """Return the status of a run with its key: by the runs that it starts after, its hold, due time and limits."""
    blocked = [(has_bits(runs.c.hooks, RunHook.WAITS_FOR_RUNS), lit(Status.BLOCKED))] if waits_for_runs else []
    return case(
        *blocked,
        (runs.c.hold, lit(Status.AWAITING_APPROVAL)),
        (runs.c.due_at > now_us(), lit(Status.SCHEDULED)),
        else_=queued_status(),
    )


_RELEASE_NEXT = Statement(
    "release_next", _release_next, {"key": Text()}, purpose="Give an ordering key to the next run that waits for it."
)


def key_locks(keys: Iterable[str | None]) -> list[int]:
    """Return the lock numbers of these ordering keys."""
    return [lock_key("key", key) for key in set(keys) if key is not None]


async def release_next(session: Session, keys: Iterable[str]) -> list[ReleasedRun]:
    """Assign each free key to the next run. The caller holds the locks of the keys."""
    wanted = sorted(set(keys))
    if not wanted:
        return []
    rows = await session.fetch(_RELEASE_NEXT, [(key,) for key in wanted])
    await wait_for_limits(session, rows)
    await append(
        session,
        [
            (
                row["id"],
                row["last_seq"],
                row["attempt"],
                EventType.KEY_FREE.value,
                None,
                f'{{"status":"{row["status"]}"}}',
            )
            for row in rows
        ],
    )
    return [ReleasedRun(row["id"], row["lane"], Status(row["status"]), row["last_seq"]) for row in rows]
