"""Events of tenants over HTTP: send and read them, read the outcomes of triggers, and replay them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from runlane.client.http import PREFIX, Http, part
from runlane.client.wire import parse
from runlane.domain.tenant_event import EventReceipt, TenantEvent, TriggerOutcome, TriggerReplay

_PAGE = 1000


class EventCalls:
    """Calls for events and triggers. Platform admins may name another tenant."""

    _http: Http

    async def broadcast(
        self,
        name: str,
        data: Any = None,
        *,
        id: str | None = None,  # noqa: A002 - the word of the API
        key: str | None = None,
        tenant: str | None = None,
    ) -> EventReceipt:
        """Store an event for the triggers and waiting runs of a tenant. Events with the same `id` are stored once."""
        return (await self.broadcast_many([{"name": name, "data": data, "id": id, "key": key}], tenant=tenant))[0]

    async def broadcast_many(
        self, events: Sequence[Mapping[str, Any]], *, tenant: str | None = None
    ) -> Sequence[EventReceipt]:
        """Store up to 100 events, all or none. Each has a `name`, and optionally `data`, `id` and `key`."""
        body = {"events": [dict(event) for event in events], "tenant": tenant}
        answer = await self._http.change("POST", f"{PREFIX}/events", body)
        return [parse(EventReceipt, receipt) for receipt in answer["events"]]

    def stored_events(
        self, *, name: str | None = None, key: str | None = None, before: str | None = None, tenant: str | None = None
    ) -> AsyncGenerator[TenantEvent]:
        """Yield the stored events, newest first.

        With `before`, the id of an event, yield only events older than that.
        """
        query = {"name": name, "key": key, "cursor": before, "tenant": tenant, "limit": _PAGE}
        return self._http.pages(TenantEvent, f"{PREFIX}/events", "events", query)

    async def stored_event(self, event_id: str, *, tenant: str | None = None) -> TenantEvent:
        """Return a stored event."""
        return parse(TenantEvent, await self._http.read(f"{PREFIX}/events/{part(event_id)}", {"tenant": tenant}))

    async def event_outcomes(self, event_id: str, *, tenant: str | None = None) -> Sequence[TriggerOutcome]:
        """Return the outcomes of an event by trigger."""
        path = f"{PREFIX}/events/{part(event_id)}/outcomes"
        return await self._http.read_list(TriggerOutcome, path, "outcomes", {"tenant": tenant})

    def trigger_outcomes(
        self, trigger: str, *, outcome: str | None = None, tenant: str | None = None
    ) -> AsyncGenerator[TriggerOutcome]:
        """Yield the outcomes of a trigger, newest event first."""
        query = {"outcome": outcome, "tenant": tenant, "limit": _PAGE}
        return self._http.pages(TriggerOutcome, f"{PREFIX}/triggers/{part(trigger)}/outcomes", "outcomes", query)

    async def replay_trigger(
        self,
        trigger: str,
        since: str,
        *,
        until: str | None = None,
        after: str | None = None,
        limit: int = _PAGE,
        dry_run: bool = False,
        tenant: str | None = None,
    ) -> TriggerReplay:
        """Evaluate stored events from a time on for a trigger, except events that already started a run for it."""
        body = {
            "from": since, "until": until, "after": after, "limit": limit, "dry_run": dry_run, "tenant": tenant,
        }  # fmt: skip
        return parse(TriggerReplay, await self._http.change("POST", f"{PREFIX}/triggers/{part(trigger)}/replay", body))
