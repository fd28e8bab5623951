"""Stream revocation: close streams whose API key is no longer valid.

Requests are authenticated when they arrive, but a stream or a long poll outlives that check. So the keys of all open
streams are checked again every two seconds, in one statement. It fails closed: a stream whose key could not be checked
for half a minute is closed too; its reader reconnects and is authenticated again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from runlane.access.policy import LOCAL, require
from runlane.domain.access import Permission, Principal
from runlane.errors import Forbidden, RunlaneError, Unauthorized, Unavailable
from runlane.observability.outage import outage
from runlane.store.access.keys import find_principals
from runlane.store.sql.database import Database

log = structlog.get_logger(__name__)

ROUND_SECONDS = 2.0
UNCHECKED_SECONDS = 30.0


@dataclass(eq=False, slots=True)
class _Post:
    """Something open: whose it is, what it needs, how to end it, and when its key was good for the last time."""

    principal: Principal
    permission: Permission
    expel: Callable[[RunlaneError], None]
    checked_at: float


class StreamRevocation:
    """start() and stop(); guard() for everything that stays open."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._posts: set[_Post] = set()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look after what is guarded."""
        self._task = asyncio.create_task(self._loop(), name="runlane-sentry")

    async def stop(self) -> None:
        """End. Safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def guard(
        self, principal: Principal, permission: Permission, expel: Callable[[RunlaneError], None]
    ) -> Callable[[], None]:
        """Call `expel` once the principal's key no longer allows this; the answer ends that."""
        post = _Post(principal, permission, expel, time.monotonic())
        # The local user has no key that could be revoked.
        if principal is not LOCAL:
            self._posts.add(post)
        return lambda: self._posts.discard(post)

    async def _loop(self) -> None:
        """Policy for errors: look again in the next round, and let nothing stay open for long unchecked."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            if not self._posts:
                continue
            try:
                await self.round()
            except Unavailable as error:
                outage.failed("a check of keys", str(error))
                self._expel_unchecked()
            except Exception:
                log.exception("sentry_failed")
                self._expel_unchecked()

    async def round(self) -> None:
        """Look every key up once."""
        asked_at = time.monotonic()
        posts = list(self._posts)
        found = await find_principals(self._database, sorted({post.principal.key_id for post in posts}))
        for post in posts:
            refusal = _refusal(found.get(post.principal.key_id), post.permission)
            if refusal is None:
                post.checked_at = asked_at
            else:
                self._expel(post, refusal)

    def _expel_unchecked(self) -> None:
        oldest = time.monotonic() - UNCHECKED_SECONDS
        for post in [post for post in self._posts if post.checked_at < oldest]:
            self._expel(post, Unavailable("Whether the API key is still valid cannot be checked right now."))

    def _expel(self, post: _Post, why: RunlaneError) -> None:
        self._posts.discard(post)
        log.info("expelled", key=post.principal.key_id, reason=why.code)
        post.expel(why)


def _refusal(principal: Principal | None, permission: Permission) -> RunlaneError | None:
    if principal is None:
        return Unauthorized()
    try:
        require(principal, permission)
    except Forbidden as refusal:
        return refusal
    return None
