"""The liveness lock, which is released as soon as the worker process dies, for any reason.

On Postgres it is a session advisory lock on the connection that also renews the lease; the server releases it when the
socket closes. On SQLite it is a lock on a file beside the database; the kernel releases it with the process. Behind
PgBouncer in transaction mode a client has no session, so there is no lock and only the lease counts.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import text

from runlane.domain.ids import lock_key
from runlane.private_files import make_folder
from runlane.settings import Settings
from runlane.store.sql.database import Database, Session, open_database, read
from runlane.store.sql.statement import Statement

_TAKE = Statement(
    "take_liveness_lock",
    text("select pg_try_advisory_lock(:key) as got"),
    purpose="Take the session lock that shows that a worker process is alive.",
)


class LivenessConnection(Protocol):
    """A worker's own connection to the database, which holds its liveness lock while it is open."""

    @property
    def database(self) -> Database: ...

    @property
    def has_lock(self) -> bool:
        """Whether the reaper may use the lock."""
        ...

    async def hold(self) -> None:
        """Take the lock if it is not held: the server may have closed the previous connection only now."""
        ...

    async def close(self) -> None:
        """Release the lock and disconnect."""
        ...


async def open_line(settings: Settings, worker_id: str) -> LivenessConnection:
    """Connect and take the worker's lock, before the worker's row exists and the reaper can read it."""
    if settings.sqlite_path is not None:
        lock = _FileLock(_lock_file(settings.sqlite_path, worker_id))
        lock.take()
        try:
            database = await open_database(settings)
        except BaseException:
            lock.drop()
            raise
        return _FileLine(database, lock)
    from runlane.store.sql.postgres import PostgresDatabase

    line = _SessionLine(lock_key("alive", worker_id), settings.lease_seconds, has_lock=not settings.pgbouncer)
    line.database = await PostgresDatabase.open(settings, 1, on_connect=line.connected)
    await line.hold()
    return line


async def lock_is_free(session: Session, settings: Settings, worker_id: str) -> bool:
    """Return whether the worker's lock is free."""
    if settings.sqlite_path is None:
        return await session.try_lock(lock_key("alive", worker_id))
    lock = _FileLock(_lock_file(settings.sqlite_path, worker_id))
    if not lock.try_take():
        return False
    lock.drop()
    return True


def remove_lock_files(settings: Settings, workers: Iterable[str]) -> None:
    """Remove the lock files of workers that are lost. That of a process which still runs stays until its end."""
    if settings.sqlite_path is not None:
        for worker_id in workers:
            lock = _FileLock(_lock_file(settings.sqlite_path, worker_id))
            if lock.try_take():
                lock.drop()


class _SessionLine:
    database: Database

    def __init__(self, key: int, lease_seconds: float, *, has_lock: bool) -> None:
        self.has_lock = has_lock
        self._key = key
        self._lease_seconds = lease_seconds
        self._held = False

    async def connected(self, connection: Any) -> None:
        """Reset the lock, which belongs to its connection."""
        self._held = False
        if self.has_lock:
            # An interpreter that is blocked during a heartbeat has until the end of its lease. If the server ended the
            # idle session earlier, the lock would be released and the worker would be considered dead.
            from runlane.store.sql.postgres import limit_transactions

            milliseconds = int(self._lease_seconds * 1000)
            await connection.execute(f"set idle_in_transaction_session_timeout = {milliseconds}")
            await limit_transactions(connection, milliseconds)

    async def hold(self) -> None:
        if self.has_lock and not self._held:
            # The lock is tried without waiting: after a broken connection, the server may keep the old session of this
            # worker, and its lock, for a while. The lock is then still held, and the next heartbeat retries.
            rows = await read(self.database, _TAKE, key=self._key)
            self._held = bool(rows[0]["got"])

    async def close(self) -> None:
        await self.database.close()


class _FileLine:
    has_lock = True

    def __init__(self, database: Database, lock: _FileLock) -> None:
        self.database = database
        self._lock = lock

    async def hold(self) -> None:
        return None

    async def close(self) -> None:
        await self.database.close()
        self._lock.drop()


class _FileLock:
    """flock on a file per worker: not inherited by programs that a task starts, released with the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def take(self) -> None:
        make_folder(self._path.parent)
        if not self.try_take():
            raise RuntimeError(f"The lock file {self._path} of a new worker is taken.")

    def try_take(self) -> bool:
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            return True  # the whole folder was deleted, so no lock in it is held
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._file = file
        return True

    def drop(self) -> None:
        if self._file is not None:
            # Unlinked while still locked, so that a file about to be deleted never counts as that of a live worker.
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


def _lock_file(database: Path, worker_id: str) -> Path:
    return database.parent / f"{database.name}.workers" / worker_id
