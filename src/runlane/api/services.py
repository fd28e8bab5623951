"""The parts of a serving process, started and stopped together, and found by the routes that use them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import structlog
from fastapi import FastAPI, Request

from runlane.access.authentication import Authenticator
from runlane.access.stream_revocation import StreamRevocation
from runlane.api.chat_stream import ChatCursor, ChatFollower
from runlane.api.key_quota import KeyQuota, SearchLimited, StreamLimited
from runlane.api.tail import Follower, Tail
from runlane.api.write_probe import WriteProbe
from runlane.app import App
from runlane.domain.access import Permission, Principal
from runlane.errors import Unavailable
from runlane.maintenance.service import PeriodicService
from runlane.resources import Resources
from runlane.store.sql.database import Database
from runlane.worker.worker import Worker

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Services:
    """What routes use. `access` is a value of `door.Access`; a worker is there only if this process executes too."""

    app: App
    access: str
    connection: Resources
    tail: Tail
    gate: Authenticator
    sentry: StreamRevocation
    streams: KeyQuota
    searches: KeyQuota
    writes: WriteProbe
    duties: list[PeriodicService] = field(default_factory=list[PeriodicService])
    worker: Worker | None = None
    stopping: bool = False

    @property
    def database(self) -> Database:
        """The open database."""
        return self.connection.database

    async def follow(self, principal: Principal, run_id: str, after: int) -> Follower:
        """A reader of a run's events, for as long as its key allows that. The caller closes it."""
        release = self.streams.take(principal)
        try:
            follower = await self.tail.follow(run_id, after)
        except BaseException:
            release()
            raise
        unguard = self.sentry.guard(principal, Permission.RUNS_READ, follower.expel)
        follower.when_closed(partial(_both, release, unguard))
        return follower

    async def talk(
        self, principal: Principal, session_id: str, after: ChatCursor, last_turn: int, *, follow: bool
    ) -> ChatFollower:
        """A reader of a conversation, for as long as its key allows that. The caller closes it."""
        release = self.streams.take(principal)
        reader = ChatFollower(self.database, self.tail, self.connection.bus, session_id, after, follow)
        reader.when_closed(release)
        try:
            await reader.open(last_turn)
        except BaseException:
            reader.close()
            raise
        unguard = self.sentry.guard(principal, Permission.RUNS_READ, reader.expel)
        reader.when_closed(partial(_both, release, unguard))
        return reader

    def end_streams(self) -> None:
        """Let every stream and long poll end now, so that their readers come back elsewhere."""
        self.stopping = True
        self.tail.shut_all()


def _both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """That a serving process executes runs as well, and which."""

    lanes: Collection[str] | None = None
    concurrency: int | None = None
    narrate: bool = False


async def start_parts(app: App, access: str, wish: WorkerOptions | None) -> Services:
    """Connect and begin."""
    connection = await app.connect()
    database = connection.database
    parts = Services(
        app,
        access,
        connection,
        Tail(database, connection.bus),
        Authenticator(database),
        StreamRevocation(database),
        streams=KeyQuota(app.settings.api_max_streams_per_key, StreamLimited),
        searches=KeyQuota(app.settings.api_max_searches_per_key, SearchLimited),
        writes=WriteProbe(database),
    )
    try:
        await parts.tail.start()
        await parts.sentry.start()
        await parts.writes.start()
        parts.duties = await app.duties()
        if wish is not None:
            parts.worker = await app.worker(wish.lanes, wish.concurrency)
            parts.worker.narrate = wish.narrate
            await parts.worker.start()
        for duty in parts.duties:
            duty.start()
    except BaseException:
        await stop_parts(parts)
        raise
    return parts


async def stop_parts(parts: Services) -> None:
    """End streams first, then drain, then everything that a draining worker needs."""
    parts.end_streams()
    await parts.tail.stop()
    await parts.sentry.stop()
    await parts.writes.stop()
    if parts.worker is not None:
        await parts.worker.stop()
    for duty in parts.duties:
        await duty.stop()
    await parts.gate.close()
    try:
        await parts.app.close()
    except Unavailable as error:
        log.warning("close_failed", error=str(error))


def keep_parts(api: FastAPI, parts: Services) -> None:
    """Make the parts known to the routes."""
    api.state.parts = parts


def parts_of(request: Request) -> Services:
    """The parts of the process that got this request."""
    return cast("Services", request.app.state.parts)
