"""The services of a server process, which the routes use. They are started and stopped together."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

import structlog
from fastapi import FastAPI
from starlette.requests import HTTPConnection

from runlane.access.authentication import Authenticator
from runlane.access.remembered_keys import RememberedKeys
from runlane.access.stream_revocation import StreamRevocation
from runlane.api.agent_auth.module import AuthModule, load_auth_module
from runlane.api.chat_stream import ChatCursor, ChatFollower
from runlane.api.demand_cache import DemandCache
from runlane.api.key_quota import KeyQuota, KeyTurns, SearchLimited, StreamLimited
from runlane.api.live import LiveFollower, LiveHub
from runlane.api.sign_in_limit import SignInLimit
from runlane.api.tail import Follower, Tail
from runlane.api.tail_page import Encoding
from runlane.api.write_probe import WriteProbe
from runlane.app import App
from runlane.domain.access import Permission, Principal
from runlane.domain.assistant import Assistant
from runlane.errors import Unavailable
from runlane.maintenance.service import PeriodicService
from runlane.resources import Resources
from runlane.store.sql.database import Database
from runlane.store.sql.shared_reads import SharedReads
from runlane.store.threads.start_committer import StartCommitter
from runlane.store.threads.thread_runs import RunResult, read_results
from runlane.submit.graphs import AssistantName, assistant_reads
from runlane.worker.worker import Worker

if TYPE_CHECKING:
    from runlane.api.mcp.gateway import McpGateway
    from runlane.api.memory_forwarding import MemoryForwarder

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Services:
    """The services that routes use. `access` is a RequestAccess; `worker` is set if this process also executes runs."""

    app: App
    access: str
    connection: Resources
    tail: Tail
    live: LiveHub
    authenticator: Authenticator
    revocation: StreamRevocation
    streams: KeyQuota
    searches: KeyTurns
    writes: WriteProbe
    thread_starts: StartCommitter
    assistants: SharedReads[AssistantName, Assistant]
    results: SharedReads[str, RunResult]
    maintenance: list[PeriodicService] = field(default_factory=list[PeriodicService])
    worker: Worker | None = None
    demand: DemandCache = field(default_factory=DemandCache)
    sign_ins: SignInLimit = field(default_factory=SignInLimit)
    auth_module: AuthModule | None = None
    mcp: McpGateway | None = None
    forwarder: MemoryForwarder | None = None
    stopping: bool = False

    @property
    def database(self) -> Database:
        return self.connection.database

    @property
    def without_keys(self) -> bool:
        """Whether the server is open: it requires no key and listens on loopback only."""
        return self.access == "open on loopback"

    async def follow(self, principal: Principal, run_id: str, after: int, encoding: Encoding | None = None) -> Follower:
        """Return a reader of a run's events, which ends when its key is revoked. The caller closes it."""
        release = self.streams.take(principal)
        try:
            follower = await self.tail.follow(run_id, after, encoding)
        except BaseException:
            release()
            raise
        unguard = self.revocation.guard(principal, Permission.RUNS_READ, follower.revoke)
        follower.when_closed(partial(_both, release, unguard))
        return follower

    def follow_new(self, principal: Principal, run_id: str, encoding: Encoding | None = None) -> Follower:
        """Return a reader of a run that this request has accepted, after the event of its acceptance.

        The caller closes it.
        """
        release = self.streams.take(principal)
        follower = self.tail.follow_new(run_id, encoding)
        unguard = self.revocation.guard(principal, Permission.RUNS_READ, follower.revoke)
        follower.when_closed(partial(_both, release, unguard))
        return follower

    async def follow_chat(
        self, principal: Principal, session_id: str, after: ChatCursor, last_turn: int, *, follow: bool
    ) -> ChatFollower:
        """Return a reader of a conversation, which ends when its key is revoked. The caller closes it."""
        release = self.streams.take(principal)
        reader = ChatFollower(self.database, self.tail, self.connection.bus, session_id, after, follow)
        reader.when_closed(release)
        try:
            await reader.open(last_turn)
        except BaseException:
            reader.close()
            raise
        unguard = self.revocation.guard(principal, Permission.RUNS_READ, reader.revoke)
        reader.when_closed(partial(_both, release, unguard))
        return reader

    def follow_live(self, principal: Principal, after: str | None) -> LiveFollower:
        """Return a reader of hints, which ends when its key is revoked. The caller closes it."""
        release = self.streams.take(principal)
        follower = self.live.follow(principal, after)
        unguard = self.revocation.guard(principal, Permission.RUNS_READ, follower.revoke)
        follower.when_closed(partial(_both, release, unguard))
        return follower

    def end_streams(self) -> None:
        """End every stream and long poll, so that their readers reconnect to another process."""
        self.stopping = True
        self.tail.shut_all()
        self.live.shut_all()


def _both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The worker of a process that also executes runs."""

    lanes: Collection[str] | None = None
    concurrency: int | None = None
    log_runs: bool = False


async def start_parts(app: App, access: str, options: WorkerOptions | None) -> Services:
    """Connect and start the services."""
    auth = app.agent_server.auth
    auth_module = None if auth is None else load_auth_module(auth)
    connection = await app.connect()
    database = connection.database
    remembered = RememberedKeys(app.settings.memory_outage_in_force)
    parts = Services(
        app,
        access,
        connection,
        Tail(database, connection.bus),
        LiveHub(database, connection.bus),
        Authenticator(database, remembered),
        StreamRevocation(database, remembered),
        streams=KeyQuota(app.settings.api_max_streams_per_key, StreamLimited),
        searches=KeyTurns(app.settings.api_max_searches_per_key, SearchLimited),
        writes=WriteProbe(database),
        thread_starts=StartCommitter(database, connection.bus.ring),
        assistants=assistant_reads(database),
        results=SharedReads(partial(read_results, database)),
        auth_module=auth_module,
    )
    try:
        await parts.tail.start()
        await parts.revocation.start()
        if app.settings.paused:
            return parts
        await parts.writes.start()
        await connection.memory_opener.start()
        parts.maintenance = await app.maintenance_services(triggers=options is not None)
        if options is not None:
            parts.worker = await app.worker(options.lanes, options.concurrency)
            parts.worker.log_runs = options.log_runs
            await parts.worker.start()
        for service in parts.maintenance:
            service.start()
    except BaseException:
        await stop_parts(parts)
        raise
    return parts


async def stop_parts(parts: Services) -> None:
    """End streams first, then drain the worker, then stop the services that a draining worker needs."""
    parts.end_streams()
    if parts.mcp is not None:
        await parts.mcp.stop()
    if parts.forwarder is not None:
        await parts.forwarder.close()
    await parts.tail.stop()
    await parts.live.stop()
    await parts.revocation.stop()
    await parts.writes.stop()
    if parts.worker is not None:
        await parts.worker.stop()
    for service in parts.maintenance:
        await service.stop()
    await parts.authenticator.close()
    try:
        await parts.app.close()
    except Unavailable as error:
        log.warning("close_failed", error=str(error))


def keep_parts(api: FastAPI, parts: Services) -> None:
    """Attach the services to the application."""
    api.state.parts = parts


def parts_of(request: HTTPConnection) -> Services:
    """Return the services of the process that received this request or socket."""
    return cast("Services", request.app.state.parts)
