"""Schedules over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from runlane.client.http import PREFIX, Http, part
from runlane.client.wire import parse
from runlane.domain.firing import Firing
from runlane.domain.schedule import Backfill, CatchUp, Overlap, Schedule, SchedulePreview, UpcomingSlot

_PAGE = 1000


class ScheduleCalls:
    """The schedules of the key's tenant. Platform admins may name another tenant."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(self, *, firings: int = 0, tenant: str | None = None) -> AsyncGenerator[Schedule]:
        """Yield the schedules by id, each with up to `firings` (at most 20) of its latest firings."""
        query = {"tenant": tenant, "limit": _PAGE, "firings": firings or None}
        return self._http.pages(Schedule, f"{PREFIX}/schedules", "schedules", query)

    async def get(self, schedule_id: str, *, tenant: str | None = None) -> Schedule:
        """Return one schedule."""
        return parse(Schedule, await self._http.read(_path(schedule_id), {"tenant": tenant}))

    async def create(self, settings: Mapping[str, Any], *, tenant: str | None = None) -> Schedule:
        """Create a schedule. `settings` are those of `POST /api/v2/schedules`."""
        return parse(Schedule, await self._http.change("POST", _url("", tenant), settings))

    async def put(
        self, settings: Mapping[str, Any], *, version: int | None = None, tenant: str | None = None
    ) -> Schedule:
        """Replace all settings of a schedule. Raise VersionMismatch if it does not have the expected version."""
        path = _url(f"/{part(settings['id'])}", tenant)
        return parse(Schedule, await self._http.change("PUT", path, settings, if_match=version))

    async def set(
        self,
        schedule_id: str,
        fields: Mapping[str, Any],
        *,
        version: int | None = None,
        tenant: str | None = None,
    ) -> Schedule:
        """Change some settings of a schedule. None restores a default."""
        path = _url(f"/{part(schedule_id)}", tenant)
        return parse(Schedule, await self._http.change("PATCH", path, fields, if_match=version))

    async def delete(self, schedule_id: str, *, version: int | None = None, tenant: str | None = None) -> Schedule:
        """Delete a schedule and its firings. Its runs are kept."""
        path = _url(f"/{part(schedule_id)}", tenant)
        return parse(Schedule, await self._http.change("DELETE", path, if_match=version))

    async def pause(self, schedule_id: str, reason: str, *, tenant: str | None = None) -> Schedule:
        """Pause a schedule: no slot starts a run until it is resumed."""
        return parse(Schedule, await self._do(schedule_id, "pause", {"reason": reason}, tenant))

    async def resume(
        self, schedule_id: str, *, catch_up: CatchUp = "none", tenant: str | None = None
    ) -> tuple[Schedule, Sequence[Firing]]:
        """Resume a schedule. Return it with the slots during the pause that `catch_up` has started."""
        answer = await self._do(schedule_id, "resume", {"catch_up": catch_up}, tenant)
        return parse(Schedule, answer["schedule"]), [parse(Firing, firing) for firing in answer["firings"]]

    async def trigger(
        self,
        schedule_id: str,
        *,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        overlap: Overlap = "allow",
        tenant: str | None = None,
    ) -> Firing:
        """Start a run of a schedule now. The firing names the run, or the reason why none started."""
        body: dict[str, Any] = {"overlap": overlap} | ({} if input is None else {"input": dict(input)})
        return parse(Firing, await self._do(schedule_id, "trigger", body, tenant))

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
        """Decide again about past slots that started no run. Times are RFC 3339 with an offset."""
        body = {"from": from_at, "to": to_at, "overlap": overlap, "dry_run": dry_run}
        return parse(Backfill, await self._do(schedule_id, "backfill", body, tenant))

    async def next(self, schedule_id: str, count: int = 10, *, tenant: str | None = None) -> Sequence[UpcomingSlot]:
        """Return the next slots of a schedule."""
        query = {"count": count, "tenant": tenant}
        return await self._http.read_list(UpcomingSlot, f"{_path(schedule_id)}/next", "next", query)

    async def firings(
        self, schedule_id: str, *, before: str | None = None, limit: int = 50, tenant: str | None = None
    ) -> Sequence[Firing]:
        """Return the decisions about slots, newest first. `before` is the last slot of the previous page."""
        query = {"cursor": before, "limit": limit, "tenant": tenant}
        return await self._http.read_list(Firing, f"{_path(schedule_id)}/firings", "firings", query)

    async def preview(
        self, timing: Mapping[str, Any], count: int = 10, *, tenant: str | None = None
    ) -> SchedulePreview:
        """Return a description of times in words and their next slots. Nothing is stored."""
        body = {**timing, "count": count}
        return parse(SchedulePreview, await self._http.change("POST", _url("/preview", tenant), body))

    async def _do(self, schedule_id: str, verb: str, body: Mapping[str, Any], tenant: str | None) -> Any:
        return await self._http.change("POST", _url(f"/{part(schedule_id)}/{verb}", tenant), body)


def _path(schedule_id: str) -> str:
    return f"{PREFIX}/schedules/{part(schedule_id)}"


def _url(rest: str, tenant: str | None) -> str:
    query = "" if tenant is None else f"?{urlencode({'tenant': tenant})}"
    return f"{PREFIX}/schedules{rest}{query}"
