"""The open connections of an app: database, committer (batched writes), bus and secrets, once per event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast
from weakref import WeakKeyDictionary

import structlog

from runlane.access.secrets import SecretVault
from runlane.bus import Bus
from runlane.bus.choice import make_bus
from runlane.bus.hint_sender import HintSender
from runlane.domain.hints import Topic
from runlane.domain.run import Accepted
from runlane.errors import ConfigurationError
from runlane.memory.opener import MemoryOpener
from runlane.settings import Settings, redact_settings, unknown_variables
from runlane.store.queue.accept import NewRun
from runlane.store.queue.admitter import Admitter
from runlane.store.queue.committer import Committer
from runlane.store.queue.dependencies import check_parents
from runlane.store.queue.lanes import declare_lanes
from runlane.store.queue.run_changes import RunChange
from runlane.store.sql.database import Database
from runlane.store.sql.migrate import open_ready
from runlane.webhooks.keys import seal_run_secret

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Resources:
    """The open resources of an app, for one event loop."""

    settings: Settings
    database: Database
    committer: Committer
    admitter: Admitter
    bus: Bus
    hints: HintSender
    vault: SecretVault
    memory_opener: MemoryOpener
    _lanes_of_code: Callable[[], set[str]]
    _declared: set[str]

    async def accept(self, new_runs: Sequence[NewRun]) -> list[Accepted]:
        """Store runs, sharing a commit with concurrent calls; raise the first rejection."""
        if not new_runs:
            return []
        await self._declare({run.lane for run in new_runs})
        await check_parents(self.database, new_runs)
        if any(run.webhook is not None for run in new_runs):
            new_runs = [await self.seal_webhook(run) for run in new_runs]
        verdicts = await self.committer.accept(new_runs, self.settings.database_timeout_seconds)
        for verdict in verdicts:
            if isinstance(verdict, Exception):
                raise verdict
        accepted = cast("list[Accepted]", verdicts)
        for replaced in {item.replaced_run_id for item in accepted} - {None}:
            self.bus.signal_cancel(cast("str", replaced))
        if self.bus.on_hint is not None:
            self.bus.hint(Topic.RUNS, None, *(item.run_id for item in accepted))
        return accepted

    async def seal_webhook(self, run: NewRun) -> NewRun:
        """Encrypt the secret of a run's webhook, if it has one. Raises NoSecretKey without an encryption key."""
        webhook = run.webhook
        if webhook is None or webhook.secret is None:
            return run
        sealed = await asyncio.to_thread(seal_run_secret, self.vault.keyring, run.id, run.tenant, webhook.secret)
        return run._replace(webhook=replace(webhook, secret=None, sealed=sealed))

    async def _declare(self, lanes: set[str]) -> None:
        """Create the lanes of tasks that were registered after the app connected. A sync creates the others."""
        undeclared = lanes - self._declared
        if undeclared and (undeclared := undeclared & self._lanes_of_code()):
            await declare_lanes(self.database, undeclared)
            self._declared |= undeclared

    def publish_change(self, change: RunChange) -> RunChange:
        """Notify workers and readers of a change."""
        self.bus.ring(change.ready_lanes)
        self.bus.publish(change.notices)
        if change.due_seconds is not None:
            self.bus.report_timer(change.due_seconds)
        return change


class ResourcePool:
    """The connection of each event loop, opened at its first use."""

    def __init__(self, settings: Callable[[], Settings], lanes: Callable[[], set[str]]) -> None:
        self._settings = settings
        self._lanes = lanes
        self._open: WeakKeyDictionary[asyncio.AbstractEventLoop, Resources] = WeakKeyDictionary()
        self._opening: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._open)

    def check_closed(self) -> None:
        """Raise ConfigurationError if a connection is open or being opened: it has the settings of its start."""
        self._forget_closed_loops()
        connecting = any(lock.locked() for loop, lock in self._opening.items() if not loop.is_closed())
        if self._open or connecting:
            raise ConfigurationError(
                f"The app is connected to {self._settings().shown_database}, so it cannot be configured. Call "
                "app.close() first, in the event loop that connected it (app.blocking(app.close()) after blocking "
                "calls)."
            )

    async def here(self) -> Resources:
        """Return this loop's connection. A new one creates the lanes, and on the embedded file the schema."""
        loop = asyncio.get_running_loop()
        connection = self._open.get(loop)
        if connection is None:
            self._forget_closed_loops()
            async with self._opening.setdefault(loop, asyncio.Lock()):
                connection = self._open.get(loop)
                if connection is None:
                    connection = self._open[loop] = await _connect(self._settings(), self._lanes)
        return connection

    async def close(self) -> None:
        """Close this loop's connection. Safe to call twice."""
        connection = self._open.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.memory_opener.close()
            await connection.committer.stop()
            await connection.admitter.stop()
            connection.hints.stop()
            await connection.bus.stop()
            await connection.database.close()

    def _forget_closed_loops(self) -> None:
        """Release the resources of an event loop that asyncio.run() closed without notice."""
        for loop, connection in list(self._open.items()):
            if loop.is_closed():
                del self._open[loop]
                self._opening.pop(loop, None)
                connection.memory_opener.forget()
                connection.database.forget()


_reported: set[str] = set()


def report_unknown_settings(report: Callable[[str, str], None]) -> None:
    """Report each variable that looks like a setting and is unknown, once per process."""
    for name, hint in unknown_variables(os.environ):
        if name not in _reported:
            _reported.add(name)
            report(name, hint)


def _warn(name: str, hint: str) -> None:
    log.warning("unknown_setting", name=name, problem=f"{name} is not a known setting and is ignored{hint}.")


async def _connect(settings: Settings, lanes_of_code: Callable[[], set[str]]) -> Resources:
    report_unknown_settings(_warn)
    redact_settings(settings)
    database = await open_ready(settings)
    try:
        lanes = lanes_of_code()
        await declare_lanes(database, lanes)
        bus = make_bus(settings)
        await bus.start()
        hints = HintSender(bus)
        committer = Committer(database, bus.ring, bus.publish, bus.report_timer)
        await committer.start()
        admitter = Admitter(database, bus.ring, bus.publish, bus.signal_cancel)
        admitter.start()
    except BaseException:
        await database.close()
        raise
    vault = SecretVault(database, settings)
    return Resources(
        settings,
        database,
        committer,
        admitter,
        bus,
        hints,
        vault,
        MemoryOpener(settings, database, vault.values, bus, partial(bus.hint, Topic.MEMORY)),
        lanes_of_code,
        lanes,
    )
