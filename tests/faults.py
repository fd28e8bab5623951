"""A database that simulates network failures at the moments that a test chooses."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import repeat
from typing import Any, TypeVar, cast

import asyncpg

from runlane.errors import Unavailable
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.database import CommitInDoubt, Database, Duplicate, Session, ignore_freed
from runlane.store.sql.statement import Dialect, Row, Statement

T = TypeVar("T")


class Fault(StrEnum):
    """The fault of one transaction."""

    NONE = "none"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    LOST_ANSWER = "lost answer"
    LOST_COMMIT = "lost commit"


class _Rollback(Exception):
    pass


class FaultyDatabase:
    """Forwards transactions with the faults of its plan. After the end of the plan there are no faults."""

    def __init__(self, database: Database, plan: Iterable[Fault] = ()) -> None:
        self._database = database
        self.dialect: Dialect = database.dialect
        self.steady_since = float("-inf")
        self.on_freed = ignore_freed
        self.duplicates = database.duplicates
        self._plan: Iterator[Fault] = iter(plan)
        self._own_marks: dict[str, bool] = {}
        self.seen: list[Fault] = []
        self.commit_checks = 0
        # While it is False, the database does not answer whether a transaction committed.
        self.decides = True

    def set_plan(self, plan: Iterable[Fault]) -> None:
        """Set the faults of the following transactions."""
        self._plan = iter(plan)

    async def transact(self, work: Callable[[Session], Awaitable[T]]) -> T:
        fault = next(self._plan, Fault.NONE)
        self.seen.append(fault)
        if fault is Fault.REFUSED:
            raise Unavailable("The database is not available.")
        sessions: list[Session] = []

        async def intercepted(session: Session) -> T:
            sessions.append(session)
            value = await work(session)
            if fault in (Fault.TIMEOUT, Fault.LOST_COMMIT):
                raise _Rollback
            return value

        try:
            value = await self._database.transact(intercepted)
        except _Rollback:
            if fault is Fault.TIMEOUT:
                raise Unavailable("The database does not respond.") from None
            raise CommitInDoubt(self._mark(sessions[-1], committed=False)) from None
        if fault is Fault.LOST_ANSWER:
            raise CommitInDoubt(self._mark(sessions[-1], committed=True))
        return value

    async def execute_single(
        self, compound: CompoundWrite, members: Sequence[Sequence[Any]], /, **params: Any
    ) -> Sequence[Row]:
        try:
            return await self.transact(lambda session: session.write(compound, members, **params))
        except CommitInDoubt as doubt:
            raise Unavailable("The database does not respond.") from doubt
        except (sqlite3.IntegrityError, asyncpg.UniqueViolationError) as error:
            raise Duplicate from error

    async def query(self, statement: Statement, /, **params: Any) -> Sequence[Row]:
        return await self.transact(lambda session: session.fetch(statement, None, **params))

    async def was_committed(self, mark: str) -> bool:
        self.commit_checks += 1
        if not self.decides:
            raise Unavailable("The database is away.")
        if mark in self._own_marks:
            return self._own_marks[mark]
        return await self._database.was_committed(mark)

    async def close(self) -> None:
        await self._database.close()

    def forget(self) -> None:
        self._database.forget()

    def _mark(self, session: Session, *, committed: bool) -> str | None:
        if session.dialect == "postgresql":
            return cast("str | None", cast("Any", session).mark)
        # Commits of SQLite are never in doubt; here they are, so their outcomes are stored here.
        mark = f"mark-{len(self._own_marks)}"
        self._own_marks[mark] = committed
        return mark


def always(fault: Fault) -> Iterator[Fault]:
    return repeat(fault)


def random_faults(seed: int, share: float, kinds: Iterable[Fault] = tuple(Fault)) -> Iterator[Fault]:
    """Return an endless plan in which this share of the transactions has one of these faults."""
    generator = random.Random(seed)
    faults = [kind for kind in kinds if kind is not Fault.NONE]
    while True:
        yield generator.choice(faults) if generator.random() < share else Fault.NONE
