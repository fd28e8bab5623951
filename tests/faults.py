"""A database that fails in the ways a network makes it fail, at the moments a test chooses."""

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
from runlane.store.sql.database import CommitInDoubt, Database, Duplicate, Session
from runlane.store.sql.statement import Dialect, Row, Statement

T = TypeVar("T")


class Fault(StrEnum):
    """What happens to one transaction."""

    NONE = "none"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    LOST_ANSWER = "lost answer"
    LOST_COMMIT = "lost commit"


class _Undo(Exception):
    pass


class FaultyDatabase:
    """Passes transactions on, except those that its plan spoils. Used up plans spoil nothing more."""

    def __init__(self, database: Database, plan: Iterable[Fault] = ()) -> None:
        self._database = database
        self.dialect: Dialect = database.dialect
        self.steady_since = float("-inf")
        self._plan: Iterator[Fault] = iter(plan)
        self._own_marks: dict[str, bool] = {}
        self.seen: list[Fault] = []
        self.questions = 0

    def spoil(self, plan: Iterable[Fault]) -> None:
        """What happens to the transactions from now on."""
        self._plan = iter(plan)

    async def transact(self, work: Callable[[Session], Awaitable[T]]) -> T:
        fault = next(self._plan, Fault.NONE)
        self.seen.append(fault)
        if fault is Fault.REFUSED:
            raise Unavailable("The database is away.")
        sessions: list[Session] = []

        async def watched(session: Session) -> T:
            sessions.append(session)
            value = await work(session)
            if fault in (Fault.TIMEOUT, Fault.LOST_COMMIT):
                raise _Undo
            return value

        try:
            value = await self._database.transact(watched)
        except _Undo:
            if fault is Fault.TIMEOUT:
                raise Unavailable("The database does not answer.") from None
            raise CommitInDoubt(self._mark(sessions[-1], committed=False)) from None
        if fault is Fault.LOST_ANSWER:
            raise CommitInDoubt(self._mark(sessions[-1], committed=True))
        return value

    async def execute_single(self, compound: CompoundWrite, members: Sequence[Sequence[Any]]) -> Sequence[Row]:
        try:
            return await self.transact(lambda session: session.write(compound, members))
        except CommitInDoubt as doubt:
            raise Unavailable("The database does not answer.") from doubt
        except (sqlite3.IntegrityError, asyncpg.UniqueViolationError) as error:
            raise Duplicate from error

    async def query(self, statement: Statement, /, **params: Any) -> Sequence[Row]:
        return await self.transact(lambda session: session.fetch(statement, None, **params))

    async def was_committed(self, mark: str) -> bool:
        self.questions += 1
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
        # SQLite's commits are never in doubt; here they are, so the answers are kept here too.
        mark = f"mark-{len(self._own_marks)}"
        self._own_marks[mark] = committed
        return mark


def always(fault: Fault) -> Iterator[Fault]:
    return repeat(fault)


def now_and_then(seed: int, share: float, kinds: Iterable[Fault] = tuple(Fault)) -> Iterator[Fault]:
    """An endless plan in which this share of the transactions fails in one of these ways."""
    choice = random.Random(seed)
    wanted = [kind for kind in kinds if kind is not Fault.NONE]
    while True:
        yield choice.choice(wanted) if choice.random() < share else Fault.NONE
