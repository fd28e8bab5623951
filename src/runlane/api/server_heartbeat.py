"""The heartbeat of a server process: it renews the row in the table of servers, with current figures."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

from runlane.api.services import Services
from runlane.domain.ids import new_id
from runlane.domain.timestamps import format_timestamp
from runlane.errors import RunlaneError
from runlane.maintenance.service import PeriodicService
from runlane.observability import metrics
from runlane.observability.slow_statements import SlowStatement
from runlane.store.access.servers import remove_server, renew_server
from runlane.version import VERSION

EVERY_SECONDS: Final = 10.0


class ServerHeartbeat(PeriodicService):
    """Renews the row every few seconds, and deletes it when the process stops."""

    def __init__(self, parts: Services) -> None:
        super().__init__("server-heartbeat", EVERY_SECONDS, self._renew)
        self._parts = parts
        self._id = new_id("srv")
        self._hostname = socket.gethostname()[:200]
        self._renewed = False

    @asynccontextmanager
    async def beating(self) -> AsyncGenerator[None]:
        """Renew the row inside the block, from its beginning, unless this process is read-only."""
        if not self._parts.app.settings.paused:
            self.start()
            self.wake()
        try:
            yield
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Stop, and delete the row. If the database is unreachable, another process deletes the row later."""
        await super().stop()
        if self._renewed:
            with contextlib.suppress(RunlaneError):
                await remove_server(self._parts.database, self._id)

    async def renew(self) -> None:
        """Store the current figures."""
        self._renewed = True
        await renew_server(self._parts.database, self._id, self._hostname, os.getpid(), VERSION, self._figures())

    async def _renew(self) -> bool:
        await self.renew()
        return False

    def _figures(self) -> dict[str, Any]:
        parts = self._parts
        # The peak so far, in kilobytes; on macOS in bytes.
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 * 1024 if sys.platform == "darwin" else 1024)
        return {
            "followers": parts.tail.followers,
            "pages": parts.live.followers,
            "memory_mb": round(used, 1),
            "bus": parts.connection.bus.kind,
            "connected": parts.connection.bus.reaches_others,
            "worker": parts.worker is not None,
            "slow_statements": [_slow(one) for one in metrics.SLOW_STATEMENTS.slowest()],
        }


def _slow(statement: SlowStatement) -> dict[str, Any]:
    at = format_timestamp(int(statement.at * 1_000_000))
    return {"name": statement.name, "seconds": round(statement.seconds, 3), "at": at, "count": statement.count}
