"""Waiting runs: an event of the tenant resumes every run whose wait it matches.

Each run is answered in its own transaction, by the rule of all answers: the first one counts. A process that dies in
between leaves the rest to the next one, which finds the answered waits closed. A run uses an event once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final, cast

import structlog

from runlane.domain.tenant_event import TenantEvent
from runlane.domain.text import load_json
from runlane.errors import Unavailable, WrongState
from runlane.resources import Resources
from runlane.store.events.waiting import OpenMatch, earlier_events, mark_searched, unsearched_waits, waits_for
from runlane.store.orchestration.resume import answer_by_event
from runlane.store.sql.statement import Row

log = structlog.get_logger(__name__)

_MISSING = object()
# The time for new waits in one pass, so that those with many earlier events do not delay triggers.
_SEARCH_SECONDS: Final = 1.0


class WaitingRuns:
    """Resumes runs that wait for events of their tenant."""

    def __init__(self, connection: Resources) -> None:
        self._connection = connection

    async def resume(self, event: TenantEvent) -> int:
        """Resume the runs whose open wait the event matches; return how many.

        Raise WrongState after the others if a run has too much unread, so that it is tried again later.
        """
        count = 0
        last: OpenMatch | None = None
        refused: WrongState | None = None
        while page := await waits_for(self._connection.database, event, last):
            for wait in page:
                if matches(wait.match, event.data):
                    try:
                        count += await self._answer(wait.run_id, wait.path, event)
                    except WrongState as error:
                        refused = error
            last = page[-1]
        if refused is not None:
            raise refused
        return count

    async def search(self) -> bool:
        """Compare some new waits with the events before them; return whether there may be more."""
        database = self._connection.database
        waits, more = await unsearched_waits(database)
        begun = time.monotonic()
        for wait in waits:
            try:
                await self._search(wait)
            except Unavailable:
                raise
            except Exception:
                # A wait that cannot be searched must not stop the others, of any tenant.
                log.exception("wait_not_searched", run_id=wait["run_id"], path=wait["path"], tenant=wait["tenant"])
            await mark_searched(database, wait)
            if time.monotonic() - begun > _SEARCH_SECONDS:
                return True
        return more

    async def _search(self, wait: Row) -> None:
        """Answer a wait with the first event before it that it matches."""
        match = load_json(wait["match"])
        async with aclosing(earlier_events(self._connection.database, wait)) as events:
            async for event in events:
                if matches(match, event.data) and await self._answer(wait["run_id"], wait["path"], event):
                    return

    async def _answer(self, run_id: str, path: str, event: TenantEvent) -> bool:
        change = await answer_by_event(self._connection.database, run_id, path, event.id, event.data)
        if change is not None:
            self._connection.publish_change(change)
        return change is not None


def matches(match: Mapping[str, Any], data: Any) -> bool:
    """Return whether the data has these values, each by its key or dotted path."""
    return all(_value_at(data, path) == wanted for path, wanted in match.items())


def _value_at(data: Any, path: str) -> Any:
    table = _table(data)
    if path in table:
        return table[path]
    value: Any = data
    for part in path.split("."):
        value = _table(value).get(part, _MISSING)
    return value


def _table(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
