"""Bulk jobs in the database: created with their items, taken by one process at a time, stopped, counted, deleted.

A job has a lease, so that one process works on it at a time, and a fence, which each item's transaction checks. The
lease only coordinates the work: no run is changed twice, because the transaction that changes it also settles its item.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Float,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from runlane.domain.bulk import BulkActionName, BulkJob, BulkJobPage, BulkState, ItemState
from runlane.domain.text import dump_json
from runlane.errors import NotFound
from runlane.store.access.audit import append_audit
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member, now_once, now_us, optional
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import bulk_items, bulk_jobs
from runlane.store.sql.statement import Row, Statement

LEASE_SECONDS: Final = 5.0
_SECOND_US: Final = 1_000_000
_ITEMS_DELETED_AT_ONCE: Final = 5_000
# The audit log names a tenant in each entry; jobs of all tenants are the platform's.
_PLATFORM: Final = "default"


class JobNotFound(NotFound):
    """The job does not exist, or the caller may not see it."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f'No bulk job "{job_id}" exists. List them: GET /api/v2/bulk')


@dataclass(frozen=True, slots=True)
class NewJob:
    """A checked request to change many runs."""

    id: str
    tenant: str | None
    action: BulkActionName
    options: Mapping[str, Any]
    selection: Mapping[str, Any]
    rate: float | None
    actor: str


@dataclass(frozen=True, slots=True)
class TakenJob:
    """A job that this process works on. A higher `fence` in the database means that another process has taken it."""

    id: str
    fence: int
    action: BulkActionName
    options: Mapping[str, Any]
    total: int
    rate: float | None
    actor: str


_by_id = bulk_jobs.c.id == bindparam("id")
_is_running = bulk_jobs.c.state == lit(BulkState.RUNNING)
_CREATE = Statement(
    "create_bulk_job",
    insert(bulk_jobs).values(
        id=bindparam("id"),
        tenant=bindparam("tenant", type_=Text()),
        action=bindparam("action"),
        options=bindparam("options"),
        selection=bindparam("selection"),
        state=lit(BulkState.RUNNING),
        total=bindparam("total", type_=Integer()),
        rate=bindparam("rate", type_=Float()),
        created_by=bindparam("actor"),
        created_at=now_us(),
        next_at=now_us(),
        lease_until=lit(0),
        fence=lit(0),
    ),
    purpose="Create a bulk job.",
)
_lease_end = now_us() + cast(bindparam("lease_seconds", type_=Float()) * _SECOND_US, BigInteger)
_due = (_is_running, bulk_jobs.c.next_at <= now_us(), bulk_jobs.c.lease_until <= now_us())
_first_due = (
    select(bulk_jobs.c.id).where(*_due).order_by(bulk_jobs.c.next_at).limit(lit(1)).with_for_update(skip_locked=True)
)
_take: dict[str, Any] = {"owner": bindparam("owner"), "fence": bulk_jobs.c.fence + lit(1), "lease_until": _lease_end}
_TAKE_DUE = Statement(
    "take_due_bulk_job",
    update(bulk_jobs).where(bulk_jobs.c.id.in_(_first_due)).values(**_take).returning(bulk_jobs),
    purpose="Take the bulk job that has waited longest.",
)
_TAKE = Statement(
    "take_bulk_job",
    update(bulk_jobs).where(_by_id, *_due).values(**_take).returning(bulk_jobs),
    purpose="Take one bulk job, if no other process works on it.",
)
_mine = (_by_id, _is_running, bulk_jobs.c.fence == bindparam("fence", type_=Integer()))
# A shared lock: a stop waits for the items that are being settled, and no item is settled after it.
_HOLD = Statement(
    "hold_bulk_job",
    select(bulk_jobs.c.id).where(*_mine).with_for_update(read=True),
    purpose="Check that a process may still work on a bulk job.",
)
_RELEASE = Statement(
    "release_bulk_job",
    update(bulk_jobs)
    .where(*_mine)
    .values(
        owner=None,
        lease_until=lit(0),
        next_at=now_us() + cast(bindparam("pause_seconds", type_=Float()) * _SECOND_US, BigInteger),
    )
    .returning(bulk_jobs.c.id),
    purpose="Leave a bulk job to any process, after a pause.",
)
_no_pending = ~exists().where(bulk_items.c.job_id == bulk_jobs.c.id, bulk_items.c.state == lit(ItemState.PENDING))
_ended = {"ended_at": now_us(), "owner": None, "lease_until": lit(0)}
_COMPLETE = Statement(
    "complete_bulk_job",
    update(bulk_jobs)
    .where(*_mine, _no_pending)
    .values(**_ended, state=lit(BulkState.COMPLETED))
    .returning(bulk_jobs.c.id),
    purpose="End a bulk job that has no runs left.",
)
_STOP = Statement(
    "stop_bulk_job",
    update(bulk_jobs)
    .where(_by_id, _is_running)
    .values(**_ended, state=lit(BulkState.STOPPED), stopped_by=bindparam("actor"))
    .returning(bulk_jobs.c.id, bulk_jobs.c.tenant),
    purpose="Stop a bulk job; no further run is changed.",
)


def _count(state: ItemState) -> Any:
    return (
        select(func.count())
        .where(bulk_items.c.job_id == bulk_jobs.c.id, bulk_items.c.state == lit(state))
        .scalar_subquery()
    )


_STORE_COUNTS = Statement(
    "store_bulk_counts",
    update(bulk_jobs).where(_by_id).values(changed=_count(ItemState.CHANGED), refused=_count(ItemState.REFUSED)),
    purpose="Store the final counts of a bulk job.",
)
_COUNTS = Statement(
    "count_bulk_items",
    select(bulk_items.c.job_id, bulk_items.c.state, func.count().label("count"))
    .where(member(bulk_items.c.job_id, "ids"))
    .group_by(bulk_items.c.job_id, bulk_items.c.state),
    purpose="Count the items of bulk jobs by state.",
)
_READ = Statement("read_bulk_job", select(bulk_jobs).where(_by_id), purpose="Read a bulk job.")
_before = bindparam("before", type_=Text())
_LIST = Statement(
    "list_bulk_jobs",
    select(bulk_jobs)
    .where(
        optional("tenant", bulk_jobs.c.tenant),
        optional("state", bulk_jobs.c.state),
        or_(cast(_before, Text).is_(None), bulk_jobs.c.id < _before),
    )
    .order_by(bulk_jobs.c.id.desc())
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read a page of bulk jobs, newest first.",
)
_due_at = case((bulk_jobs.c.lease_until > bulk_jobs.c.next_at, bulk_jobs.c.lease_until), else_=bulk_jobs.c.next_at)
_NEXT = Statement(
    "next_bulk_job",
    select((func.min(_due_at) - now_us()).label("wait")).where(_is_running),
    purpose="Find out when the next bulk job is due.",
)
IS_DUE: Final = exists().where(_is_running, bulk_jobs.c.next_at <= now_once(), bulk_jobs.c.lease_until <= now_once())
_OVERDUE = Statement(
    "count_overdue_bulk_jobs",
    select(func.count().label("count")).where(
        _is_running,
        and_(
            bulk_jobs.c.next_at < now_us() - lit(60 * _SECOND_US),
            bulk_jobs.c.lease_until < now_us() - lit(60 * _SECOND_US),
        ),
    ),
    purpose="Count the bulk jobs that no process works on.",
)
_age = cast(bindparam("keep_seconds", type_=Float()) * _SECOND_US, BigInteger)
_OLD = Statement(
    "old_bulk_job",
    select(bulk_jobs.c.id)
    .where(bulk_jobs.c.ended_at.is_not(None), bulk_jobs.c.ended_at < now_us() - _age)
    .order_by(bulk_jobs.c.id)
    .limit(lit(1)),
    purpose="Find a bulk job past its retention.",
)
_of_job = bulk_items.c.job_id == bindparam("id")
_first_no = select(func.min(bulk_items.c.no)).where(_of_job).scalar_subquery()
_DELETE_ITEMS = Statement(
    "delete_bulk_items",
    delete(bulk_items).where(_of_job, bulk_items.c.no < _first_no + lit(_ITEMS_DELETED_AT_ONCE)),
    purpose="Delete some items of an old bulk job.",
)
_DELETE = Statement(
    "delete_bulk_job",
    delete(bulk_jobs).where(_by_id, ~exists().where(bulk_items.c.job_id == bulk_jobs.c.id)),
    purpose="Delete a bulk job without items.",
)


async def create_job(session: Session, job: NewJob, total: int) -> None:
    """Store a job, whose items the same transaction stores."""
    await session.fetch(
        _CREATE,
        id=job.id,
        tenant=job.tenant,
        action=job.action.value,
        options=dump_json(dict(job.options)),
        selection=dump_json(dict(job.selection)),
        total=total,
        rate=job.rate,
        actor=job.actor,
    )
    new = {"action": job.action.value, "total": total, "options": dict(job.options)}
    await _audit(session, job.actor, job.tenant, "create", job.id, new)


async def take_job(database: Database, owner: str, job_id: str | None = None) -> TakenJob | None:
    """Take a due job, or this one; None if there is none or another process works on it."""
    given = {"owner": owner, "lease_seconds": LEASE_SECONDS}

    async def work(session: Session) -> Sequence[Row]:
        if job_id is None:
            return await session.fetch(_TAKE_DUE, **given)
        return await session.fetch(_TAKE, id=job_id, **given)

    rows = await database.transact(work)
    if not rows:
        return None
    row = rows[0]
    return from_row(TakenJob, row, json=("options",), action=BulkActionName(row["action"]), actor=row["created_by"])


async def hold_job(session: Session, job: TakenJob) -> bool:
    """Return whether this process may still work on the job; a stop waits for this transaction."""
    return bool(await session.fetch(_HOLD, id=job.id, fence=job.fence))


async def leave_job(database: Database, job: TakenJob, pause_seconds: float) -> bool:
    """Complete the job if nothing is left, else leave it to any process after a pause. Return whether it has ended."""

    async def work(session: Session) -> bool:
        if await session.fetch(_COMPLETE, id=job.id, fence=job.fence):
            await session.fetch(_STORE_COUNTS, id=job.id)
            return True
        return not await session.fetch(_RELEASE, id=job.id, fence=job.fence, pause_seconds=pause_seconds)

    return await database.transact(work)


async def stop_job(database: Database, job_id: str, *, actor: str) -> BulkJob:
    """Stop a job. When this returns, no further run is changed. Repeating is harmless."""

    async def work(session: Session) -> None:
        for row in await session.fetch(_STOP, id=job_id, actor=actor):
            # A separate statement, because it must see the items for which the stop has waited.
            await session.fetch(_STORE_COUNTS, id=job_id)
            await _audit(session, actor, row["tenant"], "stop", job_id, {"state": BulkState.STOPPED.value})

    await database.transact(work)
    return await read_job(database, job_id)


async def read_job(database: Database, job_id: str) -> BulkJob:
    """Return a job with its exact progress."""

    async def work(session: Session) -> BulkJob:
        rows = await session.fetch(_READ, id=job_id)
        if not rows:
            raise JobNotFound(job_id)
        return (await _jobs(session, rows))[0]

    return await database.transact(work)


async def list_jobs(
    database: Database,
    *,
    tenant: str | None = None,
    state: BulkState | None = None,
    before: str | None = None,
    limit: int = 50,
) -> BulkJobPage:
    """Return a page of jobs, newest first; `before` is the last id of the previous page."""

    async def work(session: Session) -> BulkJobPage:
        rows = await session.fetch(
            _LIST, tenant=tenant, state=None if state is None else state.value, before=before, limit=limit
        )
        jobs = await _jobs(session, rows)
        return BulkJobPage(tuple(jobs), jobs[-1].id if len(jobs) == limit else None)

    return await database.transact(work)


async def next_job_seconds(database: Database) -> float | None:
    """Return the time until a job is due; None if no job runs."""
    wait = (await database.query(_NEXT))[0]["wait"]
    return None if wait is None else max(0.0, wait / _SECOND_US)


async def count_overdue_jobs(database: Database) -> int:
    """Return the number of jobs that no process has worked on for a minute."""
    return (await database.query(_OVERDUE))[0]["count"]


async def delete_old_job(session: Session, keep_seconds: float) -> bool:
    """Delete some of a job that ended longer ago than that; return whether there may be more."""
    rows = await session.fetch(_OLD, keep_seconds=keep_seconds)
    for row in rows:
        await session.fetch(_DELETE_ITEMS, id=row["id"])
        await session.fetch(_DELETE, id=row["id"])
    return bool(rows)


async def _jobs(session: Session, rows: Sequence[Row]) -> list[BulkJob]:
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    running = [row["id"] for row in rows if row["state"] == BulkState.RUNNING]
    for row in await session.fetch(_COUNTS, ids=session.texts(running)) if running else ():
        counts[row["job_id"]][row["state"]] = row["count"]
    return [
        from_row(
            BulkJob,
            row,
            json=("options", "selection"),
            action=BulkActionName(row["action"]),
            state=BulkState(row["state"]),
            changed=counts[row["id"]].get(ItemState.CHANGED, 0) if row["changed"] is None else row["changed"],
            refused=counts[row["id"]].get(ItemState.REFUSED, 0) if row["refused"] is None else row["refused"],
        )
        for row in rows
    ]


async def _audit(
    session: Session, actor: str, tenant: str | None, verb: str, job_id: str, new: Mapping[str, Any]
) -> None:
    await append_audit(session, actor=actor, tenant=tenant or _PLATFORM, action=f"bulk.{verb}", subject=job_id, new=new)
