"""Child runs: which run started which as a tool, so that cancellations reach children and results reach parents.

A row is written through the fence before its run is started, and refers to it by idempotency key. Cancelling a run
marks its rows in the same transaction; the child canceller cancels the runs that they name, once the parent has ended
as cancelled. A child that was not started by then never will be: its key is taken. A parent that suspends just when a
child ends is woken by the transaction that suspends it, every other parent by the worker that ended the child.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import BigInteger, FromClause, Integer, Text, bindparam, exists, literal, select, true, update
from sqlalchemy.sql.base import Executable

from runlane.domain.run import ChildRun, Status
from runlane.store.queue.limits import queued_status, wait_for_limits
from runlane.store.sql.database import Database, Session, read
from runlane.store.sql.expressions import by_key_only, lit, member, now_us, upsert
from runlane.store.sql.schema import idempotency_keys, run_children, runs
from runlane.store.sql.statement import Row, Statement

AT_ONCE = 200
# The number of children in the response for a run.
MAX_SHOWN = 100
# No request has this fingerprint, so a late start with the key is rejected.
_NEVER = "cancelled before it was started"

_child = runs.alias("child")
_named = idempotency_keys.c.key == run_children.c.key
_parent_id = bindparam("run_id", type_=Text())
_key = bindparam("key", type_=Text())


def _announce() -> Statement:
    # The run is locked: a cancellation either finds the row or is found here.
    may_start = (
        select(_key, runs.c.id, bindparam("path", type_=Text()), now_us())
        .where(
            runs.c.id == _parent_id,
            runs.c.attempt == bindparam("attempt", type_=Integer()),
            by_key_only(runs.c.status) == lit(Status.RUNNING),
            runs.c.cancel_requested_at.is_(None),
        )
        .with_for_update(read=True)
    )
    statement = upsert(run_children).from_select(["key", "run_id", "path", "begun_at"], may_start)
    return Statement(
        "announce_child",
        statement.on_conflict_do_update(index_elements=["key"], set_={"seen_at": None, "cancel_at": None}).returning(
            run_children.c.key
        ),
        purpose="Note that an attempt is about to start a child run, through the fence.",
    )


_ANNOUNCE = _announce()
_SEEN = Statement(
    "mark_child_seen",
    update(run_children).where(run_children.c.key == _key).values(seen_at=now_us()),
    purpose="Note that the parent has read the result of a child run.",
)
MARK_CHILDREN = Statement(
    "mark_children",
    update(run_children)
    .where(run_children.c.run_id == _parent_id, run_children.c.seen_at.is_(None))
    .values(cancel_at=now_us()),
    purpose="Mark the children of a cancelled run for cancellation.",
)
_has_ended = exists().where(_named, _child.c.id == idempotency_keys.c.run_id, _child.c.ended_at.is_not(None))
# Each child wakes its parent once. After that, the parent does not wait for this child and must be able to suspend.
_TAKE_ENDED = Statement(
    "take_ended_children",
    update(run_children)
    .where(member(run_children.c.run_id, "ids"), run_children.c.seen_at.is_(None), _has_ended)
    .values(seen_at=now_us())
    .returning(run_children.c.run_id),
    purpose="Note that the parents of ended child runs are about to resume.",
)
_paused = (by_key_only(runs.c.status) == lit(Status.PAUSED), runs.c.due_at.is_not(None))
_WAKE = Statement(
    "wake_parents",
    update(runs)
    .where(member(runs.c.id, "ids"), *_paused)
    .values(status=queued_status(), due_at=None)
    .returning(runs.c.id, runs.c.lane, runs.c.status, runs.c.hooks, runs.c.ordering_key, runs.c.holds_key),
    purpose="Requeue suspended runs whose children have ended.",
)
# Used in the transaction that pauses the runs, which has not freed the slots of their limits yet.
_WAKE_AT_ONCE = Statement(
    "wake_parents_at_once",
    update(runs)
    .where(member(runs.c.id, "ids"), *_paused)
    .values(status=lit(Status.QUEUED), due_at=None)
    .returning(runs.c.id),
    purpose="Requeue runs that suspend although a child has ended.",
)
_PARENTS_OF = Statement(
    "parents_of_children",
    select(run_children.c.run_id)
    .select_from(idempotency_keys.join(run_children, _named))
    .where(member(idempotency_keys.c.run_id, "ids"), run_children.c.seen_at.is_(None)),
    purpose="Find the parents of ended child runs.",
)
_MARKED = Statement(
    "marked_children",
    select(
        run_children.c.key,
        run_children.c.cancel_at,
        run_children.c.run_id.label("parent_id"),
        runs.c.status,
        _child.c.id.label("child_id"),
        _child.c.ended_at,
        _child.c.cancel_requested_at,
    )
    .select_from(
        run_children.join(runs, runs.c.id == run_children.c.run_id)
        .outerjoin(idempotency_keys, _named)
        .outerjoin(_child, _child.c.id == idempotency_keys.c.run_id)
    )
    .where(run_children.c.cancel_at.is_not(None), runs.c.ended_at.is_not(None))
    .order_by(run_children.c.cancel_at)
    .limit(lit(AT_ONCE)),
    purpose="Read child runs that are marked for cancellation.",
)
_ANY_MARKED = Statement(
    "any_marked_children",
    select(run_children.c.key).where(run_children.c.cancel_at.is_not(None)).limit(lit(1)),
    purpose="Check whether a child run is marked for cancellation.",
)


def _unmark(batch: FromClause) -> Executable:
    b = batch.c
    # A child that was marked again meanwhile stays marked.
    same = (run_children.c.key == b.key, run_children.c.cancel_at == b.marked_at)
    return update(run_children).where(*same).values(cancel_at=None)


def _take_keys(batch: FromClause) -> Executable:
    b = batch.c
    return (
        upsert(idempotency_keys)
        .from_select(
            ["key", "fingerprint", "run_id", "created_at"],
            select(b.key, literal(_NEVER, Text()), b.run_id, now_us()).select_from(batch).where(true()),
        )
        .on_conflict_do_nothing(index_elements=["key"])
    )


_UNMARK = Statement(
    "unmark_children",
    _unmark,
    {"key": Text(), "marked_at": BigInteger()},
    purpose="Clear the mark of child runs whose cancellation was requested.",
)
_TAKE_KEYS = Statement(
    "take_keys_of_children",
    _take_keys,
    {"key": Text(), "run_id": Text()},
    purpose="Take the idempotency keys of child runs that were not started, so that they never start.",
)
_OF_RUN = Statement(
    "children_of_run",
    select(_child.c.id, _child.c.target, _child.c.status, run_children.c.path)
    .select_from(run_children.join(idempotency_keys, _named).join(_child, _child.c.id == idempotency_keys.c.run_id))
    .where(run_children.c.run_id == _parent_id, _child.c.id != run_children.c.run_id)
    .order_by(run_children.c.begun_at, run_children.c.key)
    .limit(lit(MAX_SHOWN)),
    purpose="Read the child runs of a run.",
)


async def announce_child(database: Database, run_id: str, attempt: int, key: str, path: str) -> bool:
    """Note that a child run is about to be started under this key; return False if the fence rejects it."""
    return bool(await read(database, _ANNOUNCE, run_id=run_id, attempt=attempt, key=key, path=path))


async def child_is_seen(database: Database, key: str) -> None:
    """Note that the parent has read the end of the run."""
    await read(database, _SEEN, key=key)


async def read_children(database: Database, run_id: str) -> list[ChildRun]:
    """Return the first runs that a run has started, in order."""
    rows = await database.query(_OF_RUN, run_id=run_id)
    return [ChildRun(row["id"], row["target"], Status(row["status"]), row["path"]) for row in rows]


async def wake_parents(database: Database, child_ids: Sequence[str]) -> list[str]:
    """Requeue the parents that wait for these ended runs; return the lanes in which they are ready."""

    async def work(session: Session) -> Sequence[Row]:
        rows = await session.fetch(_PARENTS_OF, ids=session.texts(child_ids))
        parents = sorted({row["run_id"] for row in rows})
        if not parents:
            return []
        woken = await session.fetch(_WAKE, ids=session.texts(parents))
        await wait_for_limits(session, woken)
        return woken

    return [row["lane"] for row in await database.transact(work)]


async def wake_paused_too_late(session: Session, run_ids: Sequence[str]) -> list[str]:
    """Requeue the runs that were paused in this transaction and wait for a child that has ended."""
    rows = await session.fetch(_TAKE_ENDED, ids=session.texts(run_ids))
    parents = sorted({row["run_id"] for row in rows})
    return [row["id"] for row in await session.fetch(_WAKE_AT_ONCE, ids=session.texts(parents))] if parents else []


async def any_marked(database: Database) -> bool:
    """Return whether a cancelled run may have left children."""
    return bool(await database.query(_ANY_MARKED))


async def children_to_cancel(session: Session) -> tuple[list[str], bool]:
    """Return some open runs whose parents were cancelled, and whether there may be more.

    A row keeps its mark until its run has ended or its cancellation is stored, so a crash in between loses nothing.
    """
    rows = await session.fetch(_MARKED)
    # A parent that has ended otherwise was cancelled too late, and its children continue.
    cancelled = [row for row in rows if row["status"] == Status.CANCELLED]
    missing = [row for row in cancelled if row["child_id"] is None]
    known = [row for row in cancelled if row["child_id"] is not None]
    open_ = [row for row in known if row["ended_at"] is None and row["cancel_requested_at"] is None]
    left = {row["key"] for row in (*missing, *open_)}
    settled = [row for row in rows if row["key"] not in left]
    await session.fetch(_TAKE_KEYS, sorted((row["key"], row["parent_id"]) for row in missing))
    await session.fetch(_UNMARK, sorted((row["key"], row["cancel_at"]) for row in settled))
    return [row["child_id"] for row in open_], bool(left or len(rows) == AT_ONCE)
