"""Buffered slots, which start in the transaction that ends the last open run of their schedule.

That transaction holds the locks of the ordering keys of the runs that it ends, and no others. Where the next run needs
another lock (its schedule has a new ordering key, or its tenant has limits, which are counted under the tenant's lock),
the schedule becomes due instead, and the schedules service starts the slot with all locks. Rows are locked in one
order: runs before schedules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import BigInteger, FromClause, Text, case, exists, func, or_, select, update
from sqlalchemy.sql.base import Executable

from runlane.domain.firing import MAX_BUFFERED, FiringKind, FiringOutcome
from runlane.domain.run import Accepted, RunHook, Status
from runlane.store.access.tenants import FREE
from runlane.store.queue.ordering import ReleasedRun
from runlane.store.schedules.messages import report_refused
from runlane.store.schedules.starting import PreparedRun, StartFailure, start_runs
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import by_key_only, lit, member, now_us
from runlane.store.sql.schema import runs, schedule_firings, schedules, tenants
from runlane.store.sql.statement import Row, Statement

_FIRST_SEQ: Final = 1
_f = schedule_firings.c
_OF_RUNS = Statement(
    "schedules_of_runs",
    select(_f.schedule_uid).where(member(_f.run_id, "run_ids"), _f.open).distinct(),
    purpose="Find the schedules that have started these runs.",
)
_LOCK = Statement(
    "lock_schedules",
    select(schedules.c.uid).where(member(schedules.c.uid, "uids")).order_by(schedules.c.uid).with_for_update(),
    purpose="Lock schedules while their buffered slots start.",
)
_CLOSE_RUNS = Statement(
    "close_firings_of_runs",
    update(schedule_firings).where(member(_f.run_id, "run_ids"), _f.open).values(open=False),
    purpose="Note that the runs of firings have ended.",
)
_other, _running = schedule_firings.alias("other"), runs.alias("running")
_is_open = exists().where(
    _other.c.schedule_uid == schedules.c.uid,
    _other.c.open,
    _running.c.id == _other.c.run_id,
    _running.c.ended_at.is_(None),
    or_(schedules.c.paused_counts, by_key_only(_running.c.status) != lit(Status.PAUSED)),
)
_first = select(func.min(_f.slot)).where(_f.schedule_uid == schedules.c.uid, _f.outcome == lit(FiringOutcome.BUFFERED))
_HEADS = Statement(
    "first_buffered_slots",
    select(
        schedules.c.uid,
        schedules.c.tenant,
        schedules.c.id,
        _f.slot,
        _f.kind,
        _f.prepared,
        select(FREE).where(tenants.c.id == schedules.c.tenant).scalar_subquery().label("free"),
    )
    .select_from(schedules.join(schedule_firings, _f.schedule_uid == schedules.c.uid))
    .where(
        member(schedules.c.uid, "uids"),
        schedules.c.paused_at.is_(None),
        _f.outcome == lit(FiringOutcome.BUFFERED),
        _f.slot == _first.correlate(schedules).scalar_subquery(),
        ~_is_open,
    )
    .order_by(schedules.c.uid),
    purpose="Read the first buffered slot of schedules without an open run.",
)


def _settle(batch: FromClause) -> Executable:
    b = batch.c
    return (
        update(schedule_firings)
        .where(_f.schedule_uid == b.uid, _f.slot == b.slot, _f.outcome == lit(FiringOutcome.BUFFERED))
        .values(
            outcome=b.outcome,
            reason=b.reason,
            detail=b.detail,
            run_id=b.run_id,
            open=b.run_id.is_not(None),
            prepared=None,
            decided_at=now_us(),
        )
    )


SETTLE_BUFFERED = Statement(
    "settle_buffered_slots",
    _settle,
    {"uid": Text(), "slot": BigInteger(), "outcome": Text(), "reason": Text(), "detail": Text(), "run_id": Text()},
    purpose="Record the outcome of buffered slots.",
)
_MAKE_DUE = Statement(
    "make_schedules_due",
    update(schedules)
    .where(member(schedules.c.uid, "uids"), schedules.c.paused_at.is_(None))
    .values(next_due_at=now_us()),
    purpose="Let the schedules service start the buffered slots of schedules.",
)
# A slot counts when it is buffered, so the bound of the schedule may have been reached; the service decides again.
_UNCOUNT = Statement(
    "uncount_refused_slots",
    update(schedules)
    .where(member(schedules.c.uid, "uids"))
    .values(
        fired=schedules.c.fired - lit(1),
        next_due_at=case((schedules.c.paused_at.is_(None), now_us()), else_=schedules.c.next_due_at),
    ),
    purpose="Do not count buffered slots whose runs were refused.",
)


async def settle_schedules(session: Session, ended: Sequence[Row]) -> list[ReleasedRun]:
    """Start the slots that waited for these runs, which end in this transaction; return the runs that became ready."""
    run_ids = sorted(row["id"] for row in ended if row["hooks"] & RunHook.SCHEDULE)
    if not run_ids:
        return []
    ids = session.texts(run_ids)
    uids = sorted(row["schedule_uid"] for row in await session.fetch(_OF_RUNS, run_ids=ids))
    if not uids:
        return []
    await session.fetch(_LOCK, uids=session.texts(uids))
    await session.fetch(_CLOSE_RUNS, run_ids=ids)
    held = {row["ordering_key"] for row in ended if row["ordering_key"]}
    return await start_buffered(session, uids, held)


async def start_buffered(
    session: Session, uids: Iterable[str], held: Collection[str] | None = None
) -> list[ReleasedRun]:
    """Start the first buffered slot of each of these schedules that has no open run. The caller has locked their rows.

    `held` are the ordering keys whose locks this transaction holds; None if it holds all locks that may be needed.
    """
    waiting = set(uids)
    released: list[ReleasedRun] = []
    # A slot whose run is refused is recorded, and the next slot is tried.
    for _ in range(MAX_BUFFERED + 1):
        if not waiting:
            break
        heads = await session.fetch(_HEADS, uids=session.texts(sorted(waiting)))
        prepared = {row["uid"]: PreparedRun.of_text(row["prepared"]) for row in heads}
        later = {row["uid"] for row in heads if not _may_start(row, prepared[row["uid"]], held)}
        if later:
            await session.fetch(_MAKE_DUE, uids=session.texts(sorted(later)))
        now = [row for row in heads if row["uid"] not in later]
        released += await _start(session, now, prepared)
        waiting = {row["uid"] for row in now}
    return released


def _may_start(row: Row, prepared: PreparedRun, held: Collection[str] | None) -> bool:
    if held is None:
        return True
    # Keys of flow control are locked before the rows of runs, but this transaction has already locked such rows.
    return (
        bool(row["free"])
        and prepared.run.flow is None
        and (prepared.run.ordering_key is None or prepared.run.ordering_key in held)
    )


async def _start(session: Session, heads: Sequence[Row], prepared: Mapping[str, PreparedRun]) -> list[ReleasedRun]:
    if not heads:
        return []
    released: list[ReleasedRun] = []
    settled: list[tuple[Any, ...]] = []
    refused: list[tuple[Row, StartFailure]] = []
    for row, verdict in zip(heads, await start_runs(session, [prepared[row["uid"]] for row in heads]), strict=True):
        if isinstance(verdict, Accepted):
            settled.append((row["uid"], row["slot"], FiringOutcome.STARTED.value, None, None, verdict.run_id))
            released.append(ReleasedRun(verdict.run_id, verdict.lane, verdict.status, _FIRST_SEQ))
        else:
            failed = FiringOutcome.FAILED_TO_START
            settled.append((row["uid"], row["slot"], failed.value, verdict.code, verdict.detail, None))
            refused.append((row, verdict))
    await session.fetch(SETTLE_BUFFERED, settled)
    await report_refused(session, refused)
    if uncounted := sorted(row["uid"] for row, _ in refused if row["kind"] == FiringKind.TICK):
        await session.fetch(_UNCOUNT, uids=session.texts(uncounted))
    return released
