"""Replay: evaluate stored events for a trigger that is new, was changed, or failed."""

from __future__ import annotations

from typing import Final

from runlane.definitions.schema.trigger import Trigger
from runlane.definitions.versions import restore
from runlane.domain.tenant_event import TriggerReplay
from runlane.domain.text import dump_json
from runlane.store.definitions import find_definition
from runlane.store.events.outcomes import replay_events
from runlane.store.sql.database import Database

MAX_REPLAYED: Final = 1000


async def replay_trigger(
    database: Database,
    tenant: str,
    name: str,
    *,
    from_us: int,
    until_us: int | None,
    after: str | None,
    limit: int,
    dry_run: bool,
    actor: str,
) -> TriggerReplay:
    """Evaluate events from a time on for a trigger, except those that have started a run for it.

    At most `limit` events are examined; `after` continues where the previous call ended.
    """
    found = await find_definition(database, tenant, "trigger", name)
    trigger = restore("trigger", dump_json(found.body))
    assert isinstance(trigger, Trigger)  # noqa: S101 - the kind determines the class
    events, before, following = await replay_events(
        database,
        tenant,
        trigger,
        from_us=from_us,
        until_us=until_us,
        after=after or "",
        limit=limit,
        dry_run=dry_run,
        actor=actor,
    )
    return TriggerReplay(name, dry_run, tuple(events), before, following)
