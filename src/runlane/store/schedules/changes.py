"""Changes of schedules by people and by syncs. Each is one transaction, and is in the audit log.

Every change increases `version`, and a change of the times also increases `generation`: slots before an edit are
decided by the earlier times, and the new times begin after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Column, Text, bindparam, delete, select, update

from runlane.domain.firing import Firing, FiringKind, FiringOutcome
from runlane.domain.graph import thread_key, thread_ordering_key
from runlane.domain.ids import lock_key, new_id
from runlane.domain.schedule import DEFAULT_MAX_SCHEDULES, DEFAULT_MIN_PERIOD_SECONDS, ScheduleSettings, ScheduleTiming
from runlane.domain.schedule_rules import check_timing, judge_span
from runlane.domain.schedule_times import spread_seed
from runlane.domain.tenant import scoped_key
from runlane.domain.text import dump_json
from runlane.domain.time_zones import ZONES_VERSION
from runlane.errors import Conflict, ScheduleLimited, VersionMismatch
from runlane.store.access.audit import append_audit
from runlane.store.access.quota_warnings import warn_of_quota
from runlane.store.access.tenants import FIND_TENANT, unknown_tenant
from runlane.store.schedules.firing_statements import PUT_FIRINGS, firing_row
from runlane.store.schedules.messages import report_firings
from runlane.store.schedules.rows import COUNT, StoredSchedule
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import now_us, upsert
from runlane.store.sql.schema import schedule_firings, schedules, tenants
from runlane.store.sql.statement import Statement

CHAT_KEY: Final = "chat:"
_RETRY_SECONDS: Final = 60.0
_TIMING: Final = frozenset(ScheduleTiming.model_fields)
_s = schedules.c
_uid = bindparam("the_uid", type_=Text())


def _bound(*names: str) -> dict[str, Any]:
    columns: dict[str, Column[Any]] = {name: _s[name] for name in names}
    return {name: bindparam(f"new_{name}", type_=column.type) for name, column in columns.items()}


_WRITTEN: Final = (
    "settings", "template", "ordering_key", "paused_counts", "zone_version", "source", "version", "generation",
    "cursor_at", "next_at", "next_due_at", "updated_by", "assistant_id", "thread", "metadata",
    "ends_at",
)  # fmt: skip
_INSERT = Statement(
    "create_schedule",
    upsert(schedules)
    .values(
        uid=_uid,
        **_bound("tenant", "id", *_WRITTEN, "anchor_at", "created_by"),
        created_at=now_us(),
        updated_at=now_us(),
    )
    .on_conflict_do_nothing(index_elements=["tenant", "id"])
    .returning(_s.uid),
    purpose="Add a schedule.",
)
_UPDATE = Statement(
    "set_schedule",
    update(schedules).where(_s.uid == _uid).values(**_bound(*_WRITTEN), updated_at=now_us()),
    purpose="Change a schedule.",
)
_PAUSE = Statement(
    "pause_schedule",
    update(schedules)
    .where(_s.uid == _uid)
    .values(
        paused_at=now_us(),
        paused_by=bindparam("by", type_=Text()),
        paused_reason=bindparam("reason", type_=Text()),
        next_due_at=None,
        version=_s.version + 1,
        updated_at=now_us(),
        updated_by=bindparam("by", type_=Text()),
    ),
    purpose="Pause a schedule.",
)
_RESUME = Statement(
    "resume_schedule",
    update(schedules)
    .where(_s.uid == _uid)
    .values(
        paused_at=None,
        paused_by=None,
        paused_reason=None,
        version=_s.version + 1,
        updated_at=now_us(),
        updated_by=bindparam("by", type_=Text()),
    ),
    purpose="Resume a schedule.",
)
_DELETE = Statement("delete_schedule", delete(schedules).where(_s.uid == _uid), purpose="Delete a schedule.")
_DELETE_FIRINGS = Statement(
    "delete_firings",
    delete(schedule_firings).where(schedule_firings.c.schedule_uid == _uid),
    purpose="Delete the firings of a deleted schedule.",
)
_RULES = Statement(
    "schedule_rules",
    select(tenants.c.max_schedules, tenants.c.min_schedule_seconds, now_us().label("now")).where(
        tenants.c.id == bindparam("tenant", type_=Text())
    ),
    purpose="Read the limits of a tenant's schedules.",
)


@dataclass(frozen=True, slots=True)
class ScheduleLimits:
    """The limits of a tenant's schedules, and the time of the database."""

    max_schedules: int
    min_period_seconds: float
    now_us: int


async def read_limits(database: Database, tenant: str) -> ScheduleLimits:
    """Return the limits of a tenant."""
    return await database.transact(lambda session: limits_in(session, tenant))


async def limits_in(session: Session, tenant: str) -> ScheduleLimits:
    """Return the limits of a tenant, within a transaction."""
    rows = await session.fetch(_RULES, tenant=tenant)
    if not rows:
        raise await unknown_tenant(session, tenant)
    row = rows[0]
    period = row["min_schedule_seconds"]
    return ScheduleLimits(
        DEFAULT_MAX_SCHEDULES if row["max_schedules"] is None else row["max_schedules"],
        DEFAULT_MIN_PERIOD_SECONDS if period is None else float(period),
        row["now"],
    )


def draft(
    tenant: str,
    settings: ScheduleSettings,
    limits: ScheduleLimits,
    *,
    actor: str,
    source: str,
    template: Mapping[str, Any] | None = None,
    known: StoredSchedule | None = None,
) -> StoredSchedule:
    """Return the schedule as it would be stored, after checking its times. `known` is the one that it replaces."""
    now = limits.now_us
    anchor = now if known is None else known.anchor_at_us
    times, first = check_timing(settings, anchor_us=anchor, now_us=now, min_period_seconds=limits.min_period_seconds)
    same_times = known is not None and _timing(known.settings) == _timing(settings)
    generation = 1 if known is None else known.generation + (not same_times)
    keeps = known is not None and same_times and known.next_at_us is not None
    seed = spread_seed(settings.id, generation)
    next_at = known.next_at_us if known is not None and keeps else first
    assert next_at is not None  # noqa: S101 - at least one of the two is set
    ended = settings.max_firings is not None and known is not None and known.fired >= settings.max_firings
    return StoredSchedule(
        uid=new_id("sched") if known is None else known.uid,
        tenant=tenant,
        text=settings.model_dump_json(exclude_defaults=True),
        settings=settings,
        template=template or _kept_template(settings, known),
        ordering_key=_lock_name(tenant, settings),
        zone_version=ZONES_VERSION,
        source=source,
        version=1 if known is None else known.version + 1,
        generation=generation,
        anchor_at_us=anchor,
        cursor_at_us=known.cursor_at_us if known is not None and keeps else now,
        last_slot_us=None if known is None else known.last_slot_us,
        next_at_us=None if ended else next_at,
        next_due_at_us=None if ended else times.slot_time(next_at, seed).due_us,
        fired=0 if known is None else known.fired,
        paused_at_us=None if known is None else known.paused_at_us,
        paused_by=None if known is None else known.paused_by,
        paused_reason=None if known is None else known.paused_reason,
        created_at_us=now if known is None else known.created_at_us,
        created_by=actor if known is None else known.created_by,
        updated_at_us=now,
        updated_by=actor,
        now_us=now,
        limited=known is not None and known.limited,
    )


def _kept_template(settings: ScheduleSettings, known: StoredSchedule | None) -> Mapping[str, Any] | None:
    return known.template if known is not None and known.settings.target == settings.target else None


def _timing(settings: ScheduleSettings) -> dict[str, Any]:
    return settings.model_dump(include=set(_TIMING))


def _lock_name(tenant: str, settings: ScheduleSettings) -> str | None:
    """Return the ordering key of its runs as it is stored."""
    if settings.target.session_id is not None:
        return scoped_key(tenant, f"{CHAT_KEY}{settings.target.session_id}")
    if settings.target.thread_id is not None:
        return thread_ordering_key(tenant, settings.target.thread_id)
    return None if settings.ordering_key is None else scoped_key(tenant, settings.ordering_key)


async def insert_schedule(session: Session, fresh: StoredSchedule, most: int) -> None:
    """Store a new schedule. Conflict if the id exists, ScheduleLimited at the tenant's limit."""
    await session.lock(exclusive=[lock_key("schedules", fresh.tenant)])
    if not await session.fetch(FIND_TENANT, tenant=fresh.tenant):
        raise await unknown_tenant(session, fresh.tenant)
    count = (await session.fetch(COUNT, tenant=fresh.tenant))[0]["count"]
    if count >= most:
        raise ScheduleLimited(
            f'Tenant "{fresh.tenant}" has {count} schedules of at most {most}. Delete one, or have a platform admin '
            "raise max_schedules of the tenant.",
            _RETRY_SECONDS,
        )
    await warn_of_quota(session, fresh.tenant, "schedules", most, count, count + 1)
    parameters = _parameters(fresh) | {
        "new_tenant": fresh.tenant,
        "new_id": fresh.id,
        "new_anchor_at": fresh.anchor_at_us,
        "new_created_by": fresh.created_by,
    }
    if not await session.fetch(_INSERT, the_uid=fresh.uid, **parameters):
        raise Conflict(f'The schedule "{fresh.id}" exists. Change it: runlane schedules set {fresh.id}')
    await _audit(session, fresh, "schedule.create", new=fresh)


async def update_schedule(session: Session, known: StoredSchedule, fresh: StoredSchedule) -> None:
    """Store a changed schedule. The caller has locked the row, which is `known`."""
    if fresh.generation != known.generation:
        await _close_generation(session, known)
    await session.fetch(_UPDATE, the_uid=fresh.uid, **_parameters(fresh))
    await _audit(session, fresh, "schedule.set", old=known, new=fresh)


async def _close_generation(session: Session, known: StoredSchedule) -> None:
    """Record slots that were due before the edit and not decided: the new times do not apply to them."""
    if known.paused_at_us is not None:
        return
    judged = judge_span(
        known.times, known.seed, cursor_us=known.cursor_at_us, now_us=known.now_us, catch_up="none", reason="edited"
    )
    firings = [
        Firing(
            missed.first_us, missed.first_us, known.now_us, FiringKind.TICK, FiringOutcome.MISSED, missed.reason,
            None, None, missed.last_us, missed.count,
        )
        for missed in judged.missed
    ]  # fmt: skip
    await session.fetch(PUT_FIRINGS, [firing_row(known.uid, firing, None) for firing in firings])
    await report_firings(session, [(known, firings)])


def _parameters(fresh: StoredSchedule) -> dict[str, Any]:
    return {
        "new_settings": fresh.text,
        "new_template": None if fresh.template is None else dump_json(fresh.template),
        "new_ordering_key": fresh.ordering_key,
        "new_paused_counts": fresh.settings.paused_counts,
        "new_zone_version": fresh.zone_version,
        "new_source": fresh.source,
        "new_version": fresh.version,
        "new_generation": fresh.generation,
        "new_cursor_at": fresh.cursor_at_us,
        "new_next_at": fresh.next_at_us,
        "new_next_due_at": None if fresh.paused_at_us is not None else fresh.next_due_at_us,
        "new_updated_by": fresh.updated_by,
        **_cron_columns(fresh),
    }


def _cron_columns(fresh: StoredSchedule) -> dict[str, Any]:
    """Return the columns by which crons are found; null for other schedules."""
    target = fresh.settings.target
    is_cron = target.kind == "assistant"
    thread = None if target.thread_id is None else thread_key(fresh.tenant, target.thread_id)
    return {
        "new_assistant_id": target.name if is_cron else None,
        "new_thread": thread,
        "new_metadata": dump_json(fresh.settings.input.get("metadata", {})) if is_cron else None,
        "new_ends_at": fresh.settings.ends_at if is_cron else None,
    }


async def delete_in(session: Session, known: StoredSchedule, actor: str) -> None:
    """Delete a schedule and its firings; its runs stay. The caller has locked the row."""
    await session.fetch(_DELETE_FIRINGS, the_uid=known.uid)
    await session.fetch(_DELETE, the_uid=known.uid)
    await _audit(session, replace(known, updated_by=actor), "schedule.delete", old=known)


async def pause_in(session: Session, known: StoredSchedule, reason: str, actor: str) -> None:
    """Pause a schedule. The caller has locked the row."""
    await session.fetch(_PAUSE, the_uid=known.uid, by=actor, reason=reason)
    await append_audit(
        session, actor=actor, tenant=known.tenant, action="schedule.pause", subject=known.id, new={"reason": reason}
    )


async def resume_in(session: Session, known: StoredSchedule, actor: str, catch_up: str) -> None:
    """Resume a schedule. The caller has locked the row."""
    await session.fetch(_RESUME, the_uid=known.uid, by=actor)
    old = {"paused_by": known.paused_by, "reason": known.paused_reason}
    await append_audit(
        session,
        actor=actor,
        tenant=known.tenant,
        action="schedule.resume",
        subject=known.id,
        old=old,
        new={"catch_up": catch_up},
    )


def check_version(known: StoredSchedule, expected: int | None) -> None:
    """Raise VersionMismatch unless the schedule has this version; None is any."""
    if expected is not None and known.version != expected:
        raise VersionMismatch(
            f'The schedule "{known.id}" has version {known.version}, not {expected}: it was changed meanwhile. Read it '
            "again, and send its version as If-Match."
        )


async def _audit(
    session: Session,
    about: StoredSchedule,
    action: str,
    *,
    old: StoredSchedule | None = None,
    new: StoredSchedule | None = None,
) -> None:
    await append_audit(
        session,
        actor=about.updated_by,
        tenant=about.tenant,
        action=action,
        subject=about.id,
        old=None if old is None else _audited(old),
        new=None if new is None else _audited(new),
    )


def _audited(schedule: StoredSchedule) -> Mapping[str, Any]:
    # The input may be large and confidential; the version shows that it has changed.
    settings = schedule.settings.model_dump(mode="json", exclude_defaults=True, exclude={"input", "message"})
    return {**settings, "version": schedule.version, "source": schedule.source}
