"""Crons among the schedules: find, count, and delete them with their thread or assistant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Integer, Text, bindparam, case, cast, delete, func, or_, select

from runlane.domain.access_rule import AccessRule, rule_text
from runlane.domain.cron import Cron
from runlane.domain.graph import thread_key
from runlane.domain.text import dump_json
from runlane.errors import NotFound
from runlane.store.schedules.rows import COLUMNS, FIND, StoredSchedule, stored
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import json_contains, lit, member, optional, visible_by
from runlane.store.sql.page_bytes import is_cut, within_bytes
from runlane.store.sql.schema import schedule_firings, schedules
from runlane.store.sql.statement import Statement

_s = schedules.c
# The id of a cron is that of its schedule.
SORT_COLUMNS: Final[Mapping[str, ColumnElement[Any]]] = {
    "cron_id": _s.id,
    "assistant_id": _s.assistant_id,
    "thread_id": _s.thread,
    "created_at": _s.created_at,
    "updated_at": _s.updated_at,
    "next_run_date": _s.next_at,
    "end_time": _s.ends_at,
}


@dataclass(frozen=True, slots=True)
class CronFilter:
    """Selects crons: all given conditions must hold."""

    assistant_id: str | None = None
    thread_id: str | None = None
    enabled: bool | None = None
    metadata: Mapping[str, Any] | None = None
    rule: AccessRule | None = None


_tenant, _metadata = bindparam("tenant", type_=Text()), bindparam("metadata", type_=Text())
_enabled = bindparam("enabled", type_=Integer())
_found = (
    _s.tenant == _tenant,
    _s.assistant_id.is_not(None),
    optional("assistant_id", _s.assistant_id),
    optional("thread", _s.thread),
    or_(
        cast(_enabled, Integer).is_(None),
        case((_s.paused_at.is_(None), lit(1)), else_=lit(0)) == cast(_enabled, Integer),
    ),
    or_(cast(_metadata, Text).is_(None), json_contains(_s.metadata, _metadata)),
    visible_by(_s.metadata),
)
_SEARCH = {
    (column, descending): Statement(
        f"search_crons_by_{column}{'_down' if descending else ''}",
        within_bytes(
            select(*COLUMNS),
            *_found,
            keys=[_s.uid],
            # Those without a value come last in either order.
            order=[(case((order.is_(None), lit(1)), else_=lit(0)), False), (order, descending), (_s.id, descending)],
            large=[_s.settings, _s.metadata],
            limit=bindparam("limit", type_=Integer()),
            offset=bindparam("offset", type_=Integer()),
        ),
        purpose=f"Find crons, in the order of {column}.",
    )
    for column, order in SORT_COLUMNS.items()
    for descending in (False, True)
}
_COUNT = Statement(
    "count_crons",
    select(func.count().label("number")).select_from(schedules).where(*_found),
    purpose="Count the crons that a search finds.",
)
_of_thread = member(_s.thread, "threads")
_of_assistant = (_s.tenant == _tenant, _s.assistant_id == bindparam("assistant_id", type_=Text()))


def _delete_with(name: str, *which: ColumnElement[bool]) -> list[Statement]:
    uids = select(_s.uid).where(*which)
    return [
        Statement(
            f"delete_firings_of_crons_of_{name}",
            delete(schedule_firings).where(schedule_firings.c.schedule_uid.in_(uids)),
            purpose="Delete the firings of crons that are deleted.",
        ),
        Statement(
            f"delete_crons_of_{name}", delete(schedules).where(*which), purpose=f"Delete the crons of a deleted {name}."
        ),
    ]


_OF_THREADS = Statement(
    "crons_of_threads", select(_s.uid).where(_of_thread).limit(lit(1)), purpose="Check whether threads have crons."
)
_DELETE_OF_THREADS: Final = _delete_with("thread", _of_thread)
_DELETE_OF_ASSISTANT: Final = _delete_with("assistant", *_of_assistant)


async def find_cron(database: Database, tenant: str, cron_id: str, rule: AccessRule | None = None) -> StoredSchedule:
    """Return the schedule of a cron. A cron that the rule does not allow does not exist for the caller."""
    rows = await database.query(FIND, tenant=tenant, id=cron_id)
    found = stored(rows[0]) if rows and rows[0]["assistant_id"] is not None else None
    if found is None or (rule is not None and not rule.allows(found.settings.input["metadata"])):
        raise NotFound(f'The cron "{cron_id[:100]}" does not exist. See POST /runs/crons/search')
    return found


async def search_crons(
    database: Database,
    tenant: str,
    wanted: CronFilter,
    *,
    sort_by: str = "created_at",
    descending: bool = True,
    limit: int = 10,
    offset: int = 0,
) -> tuple[list[StoredSchedule], bool]:
    """Return a page of the schedules of crons, and whether more follow."""
    given = _parameters(tenant, wanted)
    rows = await database.query(_SEARCH[sort_by, descending], limit=limit + 1, offset=offset, **given)
    return [stored(row) for row in rows[:limit]], len(rows) > limit or is_cut(rows)


async def count_crons(database: Database, tenant: str, wanted: CronFilter) -> int:
    """Return how many crons a search finds."""
    return (await database.query(_COUNT, **_parameters(tenant, wanted)))[0]["number"]


async def delete_crons_of_threads(session: Session, keys: Sequence[str]) -> None:
    """Delete the crons of deleted threads."""
    bound = session.texts(keys)
    # Most threads have no crons, and threads of single runs are deleted with every run.
    if await session.fetch(_OF_THREADS, threads=bound):
        for statement in _DELETE_OF_THREADS:
            await session.fetch(statement, threads=bound)


async def delete_crons_of_assistant(session: Session, tenant: str, assistant_id: str) -> None:
    """Delete the crons of a deleted assistant."""
    for statement in _DELETE_OF_ASSISTANT:
        await session.fetch(statement, tenant=tenant, assistant_id=assistant_id)


def cron_value(found: StoredSchedule) -> Cron:
    """Return a cron as clients see it."""
    settings, given = found.settings, found.settings.input
    payload = dict(given["payload"])
    if "input" in given["request"]:
        payload["input"] = given["request"]["input"]
    return Cron(
        id=found.id,
        assistant_id=settings.target.name,
        thread_id=settings.target.thread_id,
        user_id=found.created_by,
        end_time_us=settings.ends_at,
        schedule=settings.spec[0].cron or "",
        timezone=payload.get("timezone"),
        payload=payload,
        next_run_date_us=found.next_at_us,
        metadata=given["metadata"],
        on_run_completed=None if settings.target.thread_id else ("delete" if given["deletes"] else "keep"),
        enabled=found.paused_at_us is None,
        created_at_us=found.created_at_us,
        updated_at_us=found.updated_at_us,
    )


def _parameters(tenant: str, wanted: CronFilter) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "assistant_id": wanted.assistant_id,
        "thread": None if wanted.thread_id is None else thread_key(tenant, wanted.thread_id),
        "enabled": None if wanted.enabled is None else int(wanted.enabled),
        "metadata": None if wanted.metadata is None else dump_json(wanted.metadata),
        "rule": rule_text(wanted.rule),
    }
