"""The rows of schedules, and the reads of schedules and firings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import BigInteger, FromClause, Integer, Select, Text, bindparam, cast, func, or_, select

from runlane.domain.firing import Firing, FiringKind, FiringOutcome
from runlane.domain.run import Status
from runlane.domain.schedule import Schedule, ScheduleSettings
from runlane.domain.schedule_times import ScheduleTimes, describe_times, spread_seed
from runlane.domain.text import load_json
from runlane.errors import NotFound, nearest
from runlane.store.access.tenants import FREE
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_us
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import runs, schedule_firings, schedules, tenants
from runlane.store.sql.statement import Row, Statement

_PARSED: Final = 4096
_KNOWN_NAMES: Final = 500
# A time before every slot.
_FIRST_MOMENT: Final = -(2**62)


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule as it is stored; `text` is its settings as JSON.

    With `limited`, runs of its tenant are counted. `now_us` is the time of the read.
    """

    uid: str
    tenant: str
    text: str
    settings: ScheduleSettings
    template: Mapping[str, Any] | None
    ordering_key: str | None
    zone_version: str
    source: str
    version: int
    generation: int
    anchor_at_us: int
    cursor_at_us: int
    last_slot_us: int | None
    next_at_us: int | None
    next_due_at_us: int | None
    fired: int
    paused_at_us: int | None
    paused_by: str | None
    paused_reason: str | None
    created_at_us: int
    created_by: str
    updated_at_us: int
    updated_by: str
    now_us: int
    limited: bool

    @property
    def id(self) -> str:
        """The name that its tenant has chosen."""
        return self.settings.id

    @property
    def seed(self) -> str:
        """The value from which the offset of its spread is computed."""
        return spread_seed(self.id, self.generation)

    @property
    def times(self) -> ScheduleTimes:
        """The slots of the schedule."""
        return times_of(self.text, self.anchor_at_us)

    @property
    def may_fire(self) -> int | None:
        """The number of slots that may still start a run; None without a bound."""
        most = self.settings.max_firings
        return None if most is None else max(0, most - self.fired)


@lru_cache(_PARSED)
def parse_settings(text: str) -> ScheduleSettings:
    """Return the settings in a row."""
    return ScheduleSettings.model_validate_json(text)


@lru_cache(_PARSED)
def times_of(settings: str, anchor_us: int) -> ScheduleTimes:
    """Return the slots of stored settings."""
    return ScheduleTimes(parse_settings(settings), anchor_us)


# The columns of a StoredSchedule.
COLUMNS: Final = (
    schedules,
    now_us().label("now"),
    select(~FREE).where(tenants.c.id == schedules.c.tenant).scalar_subquery().label("limited"),
)
_tenant, _id = bindparam("tenant", type_=Text()), bindparam("id", type_=Text())
_own = (schedules.c.tenant == _tenant, schedules.c.id == _id)
FIND = Statement("find_schedule", select(*COLUMNS).where(*_own), purpose="Read a schedule.")
LOCK = Statement(
    "lock_schedule",
    select(*COLUMNS).where(*_own).with_for_update(of=schedules),
    purpose="Lock a schedule while it is changed.",
)
_after = bindparam("after", type_=Text())
_LIST = Statement(
    "list_schedules",
    select(*COLUMNS)
    .where(
        or_(cast(_tenant, Text).is_(None), schedules.c.tenant == _tenant),
        or_(cast(_after, Text).is_(None), schedules.c.id > _after),
    )
    .order_by(schedules.c.id, schedules.c.tenant)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read a page of schedules, by id.",
)
_NAMES = Statement(
    "schedule_names",
    select(schedules.c.id).where(schedules.c.tenant == _tenant).order_by(schedules.c.id).limit(lit(_KNOWN_NAMES)),
    purpose="Read the ids of schedules, for suggestions in errors.",
)
COUNT = Statement(
    "count_schedules",
    select(func.count().label("count")).where(schedules.c.tenant == _tenant),
    purpose="Count the schedules of a tenant.",
)
_before = bindparam("before", type_=BigInteger())
# Other firings name the run that was open.
_own_run = (runs.c.id == schedule_firings.c.run_id) & (schedule_firings.c.outcome == lit(FiringOutcome.STARTED))
_FIRINGS = Statement(
    "list_firings",
    select(schedule_firings, runs.c.status.label("run_status"))
    .select_from(schedule_firings.outerjoin(runs, _own_run))
    .where(
        schedule_firings.c.schedule_uid == bindparam("uid", type_=Text()),
        or_(cast(_before, BigInteger).is_(None), schedule_firings.c.slot < _before),
    )
    .order_by(schedule_firings.c.slot.desc())
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read a page of the firings of a schedule, newest first.",
)


def _latest(batch: FromClause) -> Select[Any]:
    """Return the latest firings of some schedules: those from the slot of the oldest wanted firing on."""
    newer = schedule_firings.alias("newer")
    floor = (
        select(newer.c.slot)
        .where(newer.c.schedule_uid == batch.c.uid)
        .order_by(newer.c.slot.desc())
        .limit(lit(1))
        .offset(bindparam("skipped", type_=Integer()))
        .correlate(batch)
        .scalar_subquery()
    )
    floors = select(batch.c.uid, func.coalesce(floor, lit(_FIRST_MOMENT)).label("floor")).subquery("floors")
    in_floor = (schedule_firings.c.schedule_uid == floors.c.uid) & (schedule_firings.c.slot >= floors.c.floor)
    found = floors.join(schedule_firings, in_floor).outerjoin(runs, _own_run)
    # The caller sorts the rows: for an order here, Postgres might read all firings by their index.
    return select(schedule_firings, runs.c.status.label("run_status")).select_from(found)


LATEST_FIRINGS = Statement(
    "latest_firings",
    _latest,
    {"uid": Text()},
    purpose="Read the latest firings of several schedules, with the status of their runs.",
)


def stored(row: Row) -> StoredSchedule:
    """Return the schedule of a row."""
    template = row["template"]
    return from_row(
        StoredSchedule,
        row,
        text=row["settings"],
        settings=parse_settings(row["settings"]),
        template=None if template is None else load_json(template),
        limited=bool(row["limited"]),
    )


def schedule_value(found: StoredSchedule, warnings: tuple[str, ...] = ()) -> Schedule:
    """Return a schedule as clients see it."""
    settings = found.settings
    status = "paused" if found.paused_at_us is not None else "ended" if found.next_at_us is None else "active"
    return Schedule(
        id=found.id,
        tenant=found.tenant,
        name=settings.name or found.id,
        status=status,
        settings=settings.model_dump(mode="json", exclude_defaults=True),
        target=settings.target.model_dump(mode="json"),
        description=describe_times(settings),
        overlap=settings.overlap,
        catch_up=settings.catch_up,
        next_slot_us=found.next_at_us,
        next_due_at_us=found.next_due_at_us,
        paused_at_us=found.paused_at_us,
        paused_by=found.paused_by,
        paused_reason=found.paused_reason,
        fired=found.fired,
        version=found.version,
        generation=found.generation,
        source=found.source,
        created_at_us=found.created_at_us,
        created_by=found.created_by,
        updated_at_us=found.updated_at_us,
        updated_by=found.updated_by,
        warnings=warnings,
    )


def firing_value(row: Row) -> Firing:
    """Return the firing of a row."""
    status = dict(row).get("run_status")
    return from_row(
        Firing,
        row,
        kind=FiringKind(row["kind"]),
        outcome=FiringOutcome(row["outcome"]),
        run_status=None if status is None else Status(status),
    )


async def find_schedule(database: Database, tenant: str, schedule_id: str) -> StoredSchedule:
    """Return a schedule. NotFound if the tenant has none of this id."""
    rows = await database.query(FIND, tenant=tenant, id=schedule_id)
    if not rows:
        known = [row["id"] for row in await database.query(_NAMES, tenant=tenant)]
        raise unknown_schedule(schedule_id, known)
    return stored(rows[0])


async def lock_schedule(session: Session, tenant: str, schedule_id: str) -> StoredSchedule:
    """Return a schedule, locked until the transaction ends."""
    rows = await session.fetch(LOCK, tenant=tenant, id=schedule_id)
    if not rows:
        known = [row["id"] for row in await session.fetch(_NAMES, tenant=tenant)]
        raise unknown_schedule(schedule_id, known)
    return stored(rows[0])


def unknown_schedule(schedule_id: str, known: list[str]) -> NotFound:
    """Return the error for a schedule that does not exist, with a similar name."""
    return NotFound(f'No schedule "{schedule_id}" exists{nearest(schedule_id, known)}. See: runlane schedules list')


async def list_schedules(
    database: Database, tenant: str | None, *, after: str | None = None, limit: int = 100
) -> list[StoredSchedule]:
    """Return schedules by id, of one tenant or of all; `after` is the last id of the previous page."""
    rows = await database.query(_LIST, tenant=tenant, after=after, limit=limit)
    return [stored(row) for row in rows]


async def list_firings(database: Database, uid: str, *, before_us: int | None = None, limit: int = 50) -> list[Firing]:
    """Return the firings of a schedule, newest first; `before_us` is the last slot of the previous page."""
    return [firing_value(row) for row in await database.query(_FIRINGS, uid=uid, before=before_us, limit=limit)]


async def latest_firings(database: Database, uids: Sequence[str], count: int) -> dict[str, list[Firing]]:
    """Return up to `count` firings of each schedule, newest first."""

    async def work(session: Session) -> dict[str, list[Firing]]:
        found: dict[str, list[Firing]] = {}
        rows = await session.fetch(LATEST_FIRINGS, [(uid,) for uid in uids], skipped=count - 1)
        for row in sorted(rows, key=lambda row: row["slot"], reverse=True):
            found.setdefault(row["schedule_uid"], []).append(firing_value(row))
        return found

    return await database.transact(work) if uids else {}
