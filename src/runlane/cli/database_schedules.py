"""Schedules in a database, with the methods of the client, so that commands work on both."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from runlane.cli.backend import audit_actor
from runlane.domain.firing import Firing
from runlane.domain.schedule import (
    Backfill,
    CatchUp,
    Overlap,
    Schedule,
    SchedulePreview,
    UpcomingSlot,
    moment_us,
)
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.errors import InvalidRequest
from runlane.submit.schedules import Schedules, parse_schedule, parse_timing

_PAGE = 1000


class DatabaseSchedules:
    """The schedules of the tenant that a command names."""

    def __init__(self, verbs: Schedules) -> None:
        self._verbs = verbs

    async def list(self, *, tenant: str | None = None) -> AsyncGenerator[Schedule]:
        after: str | None = None
        while page := await self._verbs.list(_named(tenant), after=after, limit=_PAGE):
            for schedule in page:
                yield schedule
            after = page[-1].id

    async def get(self, schedule_id: str, *, tenant: str | None = None) -> Schedule:
        return await self._verbs.get(_named(tenant), schedule_id)

    async def create(self, settings: Mapping[str, Any], *, tenant: str | None = None) -> Schedule:
        return await self._verbs.create(_named(tenant), parse_schedule(settings), actor=audit_actor())

    async def set(
        self, schedule_id: str, fields: Mapping[str, Any], *, version: int | None = None, tenant: str | None = None
    ) -> Schedule:
        return await self._verbs.patch(_named(tenant), schedule_id, fields, actor=audit_actor(), version=version)

    async def delete(self, schedule_id: str, *, version: int | None = None, tenant: str | None = None) -> Schedule:
        return await self._verbs.delete(_named(tenant), schedule_id, actor=audit_actor(), version=version)

    async def pause(self, schedule_id: str, reason: str, *, tenant: str | None = None) -> Schedule:
        return await self._verbs.pause(_named(tenant), schedule_id, reason, actor=audit_actor())

    async def resume(
        self, schedule_id: str, *, catch_up: CatchUp = "none", tenant: str | None = None
    ) -> tuple[Schedule, Sequence[Firing]]:
        return await self._verbs.resume(_named(tenant), schedule_id, actor=audit_actor(), catch_up=catch_up)

    async def trigger(
        self,
        schedule_id: str,
        *,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        overlap: Overlap = "allow",
        tenant: str | None = None,
    ) -> Firing:
        return await self._verbs.trigger(_named(tenant), schedule_id, actor=audit_actor(), input=input, overlap=overlap)

    async def backfill(
        self,
        schedule_id: str,
        from_at: str,
        to_at: str,
        *,
        overlap: Overlap = "queue_all",
        dry_run: bool = False,
        tenant: str | None = None,
    ) -> Backfill:
        return await self._verbs.backfill(
            _named(tenant),
            schedule_id,
            _moment(from_at),
            _moment(to_at),
            actor=audit_actor(),
            overlap=overlap,
            dry_run=dry_run,
        )

    async def next(self, schedule_id: str, count: int = 10, *, tenant: str | None = None) -> Sequence[UpcomingSlot]:
        return await self._verbs.next(_named(tenant), schedule_id, count)

    async def firings(
        self, schedule_id: str, *, before: str | None = None, limit: int = 50, tenant: str | None = None
    ) -> Sequence[Firing]:
        before_us = None if before is None else _moment(before)
        return await self._verbs.firings(_named(tenant), schedule_id, before_us=before_us, limit=limit)

    async def preview(
        self, timing: Mapping[str, Any], count: int = 10, *, tenant: str | None = None
    ) -> SchedulePreview:
        return await self._verbs.preview(_named(tenant), parse_timing(timing), count)


def _named(tenant: str | None) -> str:
    return tenant or DEFAULT_TENANT


def _moment(text: str) -> int:
    try:
        return moment_us(text)
    except ValueError as error:
        raise InvalidRequest(f"{text!r} {error}.") from None
