"""Sending events to the triggers and waiting runs of a tenant: a part of App."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from runlane.domain.maintenance import MaintenanceService
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.tenant_event import MAX_EVENTS, EventReceipt, NewEvent, new_event
from runlane.domain.text import shown
from runlane.errors import InvalidRequest

if TYPE_CHECKING:
    from runlane.resources import Resources
    from runlane.settings import Settings
    from runlane.store.sql.database import Database


_FIELDS: Final = ("name", "data", "id", "key")


class EventSender:
    """The calls of an App that store events."""

    @property
    def settings(self) -> Settings:
        """Return the settings in force."""
        raise NotImplementedError

    async def connect(self) -> Resources:
        """Open the connections."""
        raise NotImplementedError

    async def broadcast(
        self,
        name: str,
        data: Any = None,
        *,
        id: str | None = None,  # noqa: A002 - the word of the API
        key: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> EventReceipt:
        """Store an event for the triggers and waiting runs of a tenant. One with the same `id` is stored once."""
        return (await self.broadcast_many([{"name": name, "data": data, "id": id, "key": key}], tenant=tenant))[0]

    async def broadcast_many(
        self, events: Sequence[Mapping[str, Any]], *, tenant: str = DEFAULT_TENANT, source: str = "api"
    ) -> Sequence[EventReceipt]:
        """Store up to 100 events, all or none. Each has a `name`, and optionally `data`, `id` and `key`."""
        checked = [_checked(event) for event in events]
        connection = await self.connect()
        receipts = await send_events(connection.database, self.settings, tenant, checked, source)
        connection.bus.report_work({MaintenanceService.TRIGGERS})
        return receipts


def _checked(event: Mapping[str, Any]) -> NewEvent:
    if not isinstance(cast("object", event), Mapping):
        raise InvalidRequest(f"Events must be a list of objects, each with a name; one is {shown(event)}.")
    if unknown := event.keys() - _FIELDS:
        raise InvalidRequest(f"{', '.join(sorted(unknown))} is not a field of an event. Fields: {', '.join(_FIELDS)}.")
    return new_event(event.get("name"), event.get("data"), event.get("id"), event.get("key"))


async def send_events(
    database: Database, settings: Settings, tenant: str, events: Sequence[NewEvent], source: str
) -> list[EventReceipt]:
    """Store events, all of them or none, within the bounds of the settings."""
    from runlane.store.events.sending import EventLimits, store_events

    if not 1 <= len(events) <= MAX_EVENTS:
        raise InvalidRequest(f"{len(events)} events were given; send 1 to {MAX_EVENTS} at once.")
    limits = EventLimits(settings.event_id_hours * 3600, settings.events_per_minute)
    return await database.transact(lambda session: store_events(session, tenant, events, source=source, limits=limits))
