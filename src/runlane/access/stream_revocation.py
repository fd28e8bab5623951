"""Stream revocation: close streams whose API key is no longer valid, or whose browser session has ended.

Requests are authenticated when they arrive, but a stream or a long poll outlives that check. So the keys of all open
streams are checked again every two seconds, in one statement. If a key could not be checked for half a minute, its
streams are closed as well; their readers reconnect and are authenticated again. The keys that are remembered for an
outage of the database are checked in the same statement.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from runlane.access.policy import LOCAL, require
from runlane.access.remembered_keys import RememberedKeys
from runlane.access.stream_tokens import StreamPrincipal
from runlane.domain.access import Permission, Principal, UserPrincipal
from runlane.errors import Forbidden, RunlaneError, Unauthorized, Unavailable
from runlane.observability.outage import outage
from runlane.store.access.browser_sessions import live_sessions
from runlane.store.access.keys import find_principals
from runlane.store.sql.database import Database

log = structlog.get_logger(__name__)

CHECK_SECONDS = 2.0
UNCHECKED_SECONDS = 30.0
# Users of an auth module have no key that can be checked, so their streams end after this time and they reconnect.
USER_STREAM_SECONDS = 900.0


@dataclass(eq=False, slots=True)
class _GuardedStream:
    """An open stream: its principal, its permission, the function that ends it, and when its key was last valid."""

    principal: Principal
    permission: Permission
    revoke: Callable[[RunlaneError], None]
    checked_at: float


class StreamRevocation:
    """Checks the keys of open streams. Call start() and stop() once, and guard() for each stream or long poll."""

    def __init__(self, database: Database, remembered: RememberedKeys | None = None) -> None:
        self._database = database
        self._remembered = remembered or RememberedKeys()
        self._streams: set[_GuardedStream] = set()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to check the guarded streams."""
        self._task = asyncio.create_task(self._loop(), name="runlane-revocation")

    async def stop(self) -> None:
        """Stop. Safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def guard(
        self, principal: Principal, permission: Permission, revoke: Callable[[RunlaneError], None]
    ) -> Callable[[], None]:
        """Call `revoke` when the principal's key no longer has the permission.

        Return the function that ends the guard.
        """
        if isinstance(principal, UserPrincipal):
            ending = asyncio.get_running_loop().call_later(USER_STREAM_SECONDS, revoke, _reconnect(principal))
            return ending.cancel
        ending = None
        if isinstance(principal, StreamPrincipal) and principal.stream is not None:
            left = max(0.0, principal.stream.expires_at - time.time())
            ending = asyncio.get_running_loop().call_later(left, revoke, Unauthorized())
        stream = _GuardedStream(principal, permission, revoke, time.monotonic())
        # The local principal has no key that could be revoked.
        if principal.key_id != LOCAL.key_id:
            self._streams.add(stream)

        def unguard() -> None:
            self._streams.discard(stream)
            if ending is not None:
                ending.cancel()

        return unguard

    async def _loop(self) -> None:
        """Check at intervals. After an error, retry in the next pass; close streams that stay unchecked too long."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if not self._streams and not self._remembered.key_ids():
                continue
            try:
                await self.run_once()
            except Unavailable as error:
                outage.failed("a check of keys", str(error))
                self._revoke_unchecked()
            except Exception:
                log.exception("revocation_check_failed")
                self._revoke_unchecked()

    async def run_once(self) -> None:
        """Look up every key once."""
        started_at, asked_at = time.monotonic(), self._remembered.now()
        streams = list(self._streams)
        key_ids = {stream.principal.key_id for stream in streams} | self._remembered.key_ids()
        found = await find_principals(self._database, sorted(key_ids))
        self._remembered.update(key_ids, found, asked_at)
        sessions = sorted({stream.principal.session_id for stream in streams if stream.principal.session_id})
        alive = await live_sessions(self._database, sessions) if sessions else set[str]()
        for stream in streams:
            session_id = stream.principal.session_id
            ended = session_id is not None and session_id not in alive
            refusal = _refusal(None if ended else found.get(stream.principal.key_id), stream.permission)
            if refusal is None:
                stream.checked_at = started_at
            else:
                self._revoke(stream, refusal)

    def _revoke_unchecked(self) -> None:
        oldest = time.monotonic() - UNCHECKED_SECONDS
        for stream in [stream for stream in self._streams if stream.checked_at < oldest]:
            self._revoke(stream, Unavailable("The API key cannot be checked at the moment. Retry later."))

    def _revoke(self, stream: _GuardedStream, why: RunlaneError) -> None:
        self._streams.discard(stream)
        log.info("stream_revoked", key=stream.principal.key_id, reason=why.code)
        stream.revoke(why)


def _reconnect(principal: UserPrincipal) -> RunlaneError:
    return Unavailable(
        f"The stream of {principal.name!r} ends after {USER_STREAM_SECONDS:g} s. Reconnect, to be authenticated again."
    )


def _refusal(principal: Principal | None, permission: Permission) -> RunlaneError | None:
    if principal is None:
        return Unauthorized()
    try:
        require(principal, permission)
    except Forbidden as refusal:
        return refusal
    return None
