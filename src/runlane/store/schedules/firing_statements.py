"""The statements of the transaction that decides about slots."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    FromClause,
    Integer,
    SmallInteger,
    Text,
    bindparam,
    case,
    func,
    select,
    true,
    update,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.sql.base import Executable

from runlane.domain.firing import Firing, FiringOutcome
from runlane.domain.run import RunHook
from runlane.store.schedules.buffer import SETTLE_BUFFERED
from runlane.store.sql.expressions import lit, member, now_us, upsert
from runlane.store.sql.schema import runs, schedule_firings, schedules
from runlane.store.sql.statement import Statement

__all__ = [
    "ADVANCE", "BUFFERED", "CLOSE", "DECIDED", "DECIDED_BETWEEN", "HOOK_RUNS", "LOCK", "LOCK_RUNS", "MISSED", "OPEN",
    "PUT_FIRINGS", "SETTLE_BUFFERED", "TRY_LOCK", "firing_row",
]  # fmt: skip

_f, _s = schedule_firings.c, schedules.c
_locked = select(_s.uid, _s.version, _s.cursor_at, now_us().label("now")).where(member(_s.uid, "uids")).order_by(_s.uid)
LOCK = Statement(
    "lock_schedules_to_fire", _locked.with_for_update(), purpose="Lock schedules while their slots are decided."
)
TRY_LOCK = Statement(
    "try_lock_schedules_to_fire",
    _locked.with_for_update(skip_locked=True),
    purpose="Lock due schedules that no other process is deciding about.",
)
OPEN = Statement(
    "open_firings",
    select(_f.schedule_uid, _f.slot, _f.run_id, runs.c.status, runs.c.ended_at, runs.c.ordering_key)
    .select_from(schedule_firings.outerjoin(runs, runs.c.id == _f.run_id))
    .where(member(_f.schedule_uid, "uids"), _f.open)
    .order_by(_f.schedule_uid, _f.slot),
    purpose="Read the runs of schedules that may not have ended.",
)
LOCK_RUNS = Statement(
    "lock_open_runs",
    select(runs.c.id).where(member(runs.c.id, "ids")).order_by(runs.c.id).with_for_update(),
    purpose="Lock runs that a newer slot of their schedule cancels.",
)
CLOSE = Statement(
    "close_firings",
    lambda batch: (
        update(schedule_firings).where(_f.schedule_uid == batch.c.uid, _f.slot == batch.c.slot).values(open=False)
    ),
    {"uid": Text(), "slot": BigInteger()},
    purpose="Note that the runs of some firings have ended.",
)
BUFFERED = Statement(
    "buffered_slots",
    select(_f.schedule_uid, _f.slot, _f.kind)
    .where(member(_f.schedule_uid, "uids"), _f.outcome == lit(FiringOutcome.BUFFERED))
    .order_by(_f.schedule_uid, _f.slot),
    purpose="Read the buffered slots of schedules.",
)
DECIDED = Statement(
    "decided_slots",
    lambda batch: (
        select(_f.schedule_uid.label("uid"), _f.slot, _f.outcome)
        .select_from(batch)
        .join(schedule_firings, (_f.schedule_uid == batch.c.uid) & (_f.slot == batch.c.slot))
    ),
    {"uid": Text(), "slot": BigInteger()},
    purpose="Read which of some slots are decided.",
)
DECIDED_BETWEEN = Statement(
    "decided_slots_between",
    select(_f.slot).where(
        _f.schedule_uid == bindparam("uid", type_=Text()),
        _f.slot > bindparam("after", type_=BigInteger()),
        _f.slot <= bindparam("until", type_=BigInteger()),
    ),
    purpose="Read which slots of a span of missed ones are decided.",
)
MISSED = Statement(
    "missed_firings",
    select(schedule_firings).where(
        _f.schedule_uid == bindparam("uid", type_=Text()),
        _f.outcome == lit(FiringOutcome.MISSED),
        _f.slot <= bindparam("last", type_=BigInteger()),
        func.coalesce(_f.last_slot, _f.slot) >= bindparam("first", type_=BigInteger()),
    ),
    purpose="Read the missed firings of a schedule that overlap a span of time.",
)
_COLUMNS: Final = {
    "schedule_uid": Text(),
    "slot": BigInteger(),
    "due_at": BigInteger(),
    "decided_at": BigInteger(),
    "kind": Text(),
    "outcome": Text(),
    "reason": Text(),
    "detail": Text(),
    "run_id": Text(),
    "open": Boolean(),
    "prepared": Text(),
    "last_slot": BigInteger(),
    "count": Integer(),
}


def _put(batch: FromClause) -> Executable:
    statement = upsert(schedule_firings).from_select(
        list(_COLUMNS), select(*(batch.c[name] for name in _COLUMNS)).select_from(batch).where(true())
    )
    changed = {name: statement.excluded[name] for name in list(_COLUMNS)[2:]}
    return statement.on_conflict_do_update(index_elements=["schedule_uid", "slot"], set_=changed)


PUT_FIRINGS = Statement("put_firings", _put, _COLUMNS, purpose="Record the decisions about slots.")
HOOK_RUNS = Statement(
    "hook_open_runs",
    update(runs)
    .where(
        member(runs.c.id, "ids"),
        runs.c.ended_at.is_(None),
        runs.c.hooks.op("&")(lit(RunHook.SCHEDULE.value)) == lit(0),
    )
    .values(hooks=sql_cast(runs.c.hooks.op("|")(lit(RunHook.SCHEDULE.value)), SmallInteger)),
    purpose="Let the end of open runs start the buffered slots of their schedule.",
)


def _advance(batch: FromClause) -> Executable:
    b = batch.c
    return (
        update(schedules)
        .where(_s.uid == b.uid)
        .values(
            cursor_at=b.cursor_at,
            last_slot=case((b.cursor_at == _s.cursor_at, _s.last_slot), else_=b.cursor_at),
            next_at=b.next_at,
            next_due_at=b.next_due_at,
            fired=_s.fired + b.fired,
            template=func.coalesce(b.template, _s.template),
        )
    )


ADVANCE = Statement(
    "advance_schedules",
    _advance,
    {
        "uid": Text(),
        "cursor_at": BigInteger(),
        "next_at": BigInteger(),
        "next_due_at": BigInteger(),
        "fired": Integer(),
        "template": Text(),
    },
    purpose="Move schedules to their next slot.",
)


def firing_row(uid: str, firing: Firing, prepared: str | None) -> tuple[object, ...]:
    """Return a firing as a member of PUT_FIRINGS."""
    return (
        uid,
        firing.slot_us,
        firing.due_at_us,
        firing.decided_at_us,
        firing.kind.value,
        firing.outcome.value,
        firing.reason,
        firing.detail,
        firing.run_id,
        firing.outcome is FiringOutcome.STARTED,
        prepared,
        firing.last_slot_us,
        firing.count,
    )
