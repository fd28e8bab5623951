"""Authentication: find the principal of an API key or a browser session in the database for every request.

Nothing is cached between requests, so every process rejects a revoked key at once. The lookup is one statement on a
unique index, which begins after the request has arrived. Concurrent requests with the same key share it. After any
error the request is rejected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from runlane.domain.access import Principal
from runlane.errors import RunlaneError, Unauthorized, Unavailable
from runlane.store.access.browser_sessions import find_session, touch_session
from runlane.store.access.keys import FoundKey, find_principal, touch_key
from runlane.store.sql.database import Database
from runlane.store.sql.shared_reads import SharedReads, one_by_one

log = structlog.get_logger(__name__)

# The maximum number of concurrent updates of last use. Beyond it, a later request makes the update.
_MAX_NOTES = 4


class Authenticator:
    """Finds principals by their keys. `close()` waits until the last uses of keys are stored."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._notes: dict[str, asyncio.Task[None]] = {}
        self._keys = SharedReads(one_by_one(self._find))

    async def identify(self, raw_key: str | None) -> Principal:
        """Return the principal. Raise Unauthorized for a missing or invalid key, Unavailable without a database."""
        if raw_key is None:
            raise Unauthorized
        try:
            found = await self._keys.get(raw_key)
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
        return await find_principal(self._database, raw_key)

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
