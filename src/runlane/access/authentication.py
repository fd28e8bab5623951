"""Authentication: find the principal of an API key or a browser session in the database for every request.

Nothing is cached between requests, so every process rejects a revoked key at once. The lookup is one statement on a
unique index, which begins after the request has arrived. Concurrent requests with the same key share it. After any
error the request is rejected. There is one exception: while the database is unavailable, `identify_or_recall` accepts a
key that was found a short time before. Only requests for the contents of memories use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from runlane.access.lookup_outage import LookupOutage
from runlane.access.remembered_keys import RememberedKeys
from runlane.domain.access import Principal
from runlane.errors import RunlaneError, Unauthorized, Unavailable
from runlane.store.access.browser_sessions import find_session, touch_session
from runlane.store.access.keys import FoundKey, find_principal, touch_key
from runlane.store.sql.database import Database
from runlane.store.sql.shared_reads import SharedReads, one_by_one

log = structlog.get_logger(__name__)

# The maximum number of concurrent updates of last use. Beyond it, a later request makes the update.
_MAX_NOTES = 4
# A database that answers no lookup for this many intervals counts as unavailable. The intervals are counted, because a
# process that was stopped for some seconds has not waited.
_SILENT_INTERVALS: Final = 8
_INTERVAL_SECONDS: Final = 0.25
# During an outage, one request at a time waits this long for an answer.
_OUTAGE_INTERVAL_SECONDS: Final = 0.05


class Authenticator:
    """Finds principals by their keys. `close()` waits until the last uses of keys are stored."""

    def __init__(self, database: Database, remembered: RememberedKeys | None = None) -> None:
        self._database = database
        self.remembered = remembered or RememberedKeys()
        self._outage = LookupOutage()
        # Keys that were accepted in this outage, each of which is logged once.
        self._recalled: set[str] = set()
        self._notes: dict[str, asyncio.Task[None]] = {}
        self._keys = SharedReads(one_by_one(self._find))

    async def identify(self, raw_key: str | None) -> Principal:
        """Return the principal. Raise Unauthorized for a missing or invalid key, Unavailable without a database."""
        if raw_key is None:
            raise Unauthorized
        return await self._accept(self._keys.get(raw_key))

    async def _accept(self, lookup: Awaitable[FoundKey | None]) -> Principal:
        try:
            found = await lookup
        except RunlaneError:
            raise
        except Exception as error:
            log.exception("access_check_failed")
            raise Unavailable("The API key cannot be checked at the moment. Retry later.") from error
        if found is None:
            raise Unauthorized
        if found.stale:
            self._note_use(found.principal.key_id, touch_key)
        return found.principal

    async def identify_or_recall(self, raw_key: str | None) -> tuple[Principal, bool]:
        """Return the principal as `identify` does; while the database is unavailable, that of a remembered key.

        The second value is whether the key was not checked.
        """
        if raw_key is None or self.remembered.recall(raw_key) is None:
            return await self.identify(raw_key), False
        lookup = await self._lookup_in_time(raw_key)
        if lookup is None or isinstance(lookup.exception(), Unavailable):
            # It is recalled after the lookup: another answer may have rejected the key meanwhile.
            principal = self.remembered.recall(raw_key)
            if principal is not None:
                self._note_recall(principal.key_id)
                return principal, True
        return await self._accept(lookup or self._keys.get(raw_key)), False

    async def identify_session(self, token: str) -> Principal:
        """Return the principal of a browser session. Raise as `identify` does."""
        try:
            found = await find_session(self._database, token)
        except RunlaneError:
            raise
        except Exception as error:
            log.exception("access_check_failed")
            raise Unavailable("The browser session cannot be checked at the moment. Retry later.") from error
        if found is None:
            raise Unauthorized
        if found.stale:
            self._note_use(found.id, touch_session)
        return found.principal

    async def close(self) -> None:
        """Wait for pending updates of last use. Safe to call twice."""
        await asyncio.gather(*self._notes.values())

    async def _find(self, raw_key: str) -> FoundKey | None:
        asked_at = self.remembered.now()
        with self._outage.observed():
            found = await find_principal(self._database, raw_key)
        self._recalled.clear()
        if found is None:
            self.remembered.reject(raw_key)
        else:
            self.remembered.remember(raw_key, found.principal, asked_at)
        return found

    async def _lookup_in_time(self, raw_key: str) -> asyncio.Future[FoundKey | None] | None:
        """Look a key up. Return None if the database is unavailable without an error."""
        outage = self._outage
        if outage.is_on and outage.lookups:
            # The lookup that is in progress will find the end of the outage.
            return None
        lookup = asyncio.ensure_future(self._keys.get(raw_key))
        try:
            silent, answers = 0, outage.answers
            while silent < _SILENT_INTERVALS:
                was_on = outage.is_on
                await asyncio.wait([lookup], timeout=_OUTAGE_INTERVAL_SECONDS if was_on else _INTERVAL_SECONDS)
                if lookup.done():
                    return lookup
                if was_on:
                    return None
                silent = silent + 1 if outage.answers == answers else 0
                answers = outage.answers
            outage.failed()
            return None
        finally:
            # The shared read continues, and records its answer.
            lookup.cancel()

    def _note_recall(self, key_id: str) -> None:
        if key_id not in self._recalled:
            self._recalled.add(key_id)
            log.warning("key_accepted_unchecked", key=key_id)

    def _note_use(self, name: str, touch: Callable[[Database, str], Awaitable[None]]) -> None:
        if name not in self._notes and len(self._notes) < _MAX_NOTES:
            self._notes[name] = asyncio.create_task(self._touch(name, touch), name="runlane-key-use")

    async def _touch(self, name: str, touch: Callable[[Database, str], Awaitable[None]]) -> None:
        # The last use is informational, so a request must neither wait for the update nor fail because of it.
        try:
            await touch(self._database, name)
        except Exception as error:  # noqa: BLE001 - the next request of this key retries
            log.warning("key_use_not_stored", key=name, error=str(error))
        finally:
            self._notes.pop(name, None)
