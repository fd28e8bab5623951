"""A session of Postgres: the statements and locks of one transaction on one connection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any, cast

from sqlalchemy import text

from runlane.observability import metrics
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.statement import Dialect, Row, Statement, text_list

# The conditions call the function for each number and are never true, so no rows are sent back.
_LOCK = Statement(
    "lock",
    text("select key from unnest(cast(:keys as bigint[])) as wanted(key) where pg_advisory_xact_lock(key) is null"),
    purpose="Wait for exclusive advisory locks in one order.",
)
_LOCK_MIXED = Statement(
    "lock_mixed",
    text(
        "select key from unnest(cast(:keys as bigint[]), cast(:exclusive as boolean[])) as wanted(key, exclusive) "
        "where (case when exclusive then pg_advisory_xact_lock(key) else pg_advisory_xact_lock_shared(key) end) is null"
    ),
    purpose="Wait for exclusive and shared advisory locks in one order.",
)
_TRY_LOCK = Statement(
    "try_lock", text("select pg_try_advisory_xact_lock(:key) as got"), purpose="Take an advisory lock if it is free."
)


class PostgresSession:
    """One transaction on one connection. `begin`, if given, opens it before the first statement."""

    dialect: Dialect = "postgresql"

    def __init__(self, connection: Any, begin: str | None = None) -> None:
        self._connection = connection
        self._begin = begin
        self._marked: Sequence[Row] = ()
        self.freed: set[str] = set()

    @property
    def mark(self) -> str | None:
        """The number of the transaction and the events that it wrote, from the rows that had a mark."""
        if not self._marked:
            return None
        events = [(row.get("id") or row["run_id"], row.get("last_seq", 1)) for row in self._marked]
        return " ".join([self._marked[0]["mark"], *(f"{run_id}:{seq}" for run_id, seq in events)])

    async def fetch(
        self, statement: Statement, members: Sequence[Sequence[Any]] | None = None, /, **params: Any
    ) -> Sequence[Row]:
        if members is not None and not members:
            return []
        return await self._fetch(statement.name, *statement.bound("postgresql", params, members))

    async def write(
        self, compound: CompoundWrite, members: Sequence[Sequence[Any]] | None = None, /, **params: Any
    ) -> Sequence[Row]:
        if members is not None and not members:
            return []
        return await self._fetch(compound.name, *compound.bound(params, members))

    @property
    def is_open(self) -> bool:
        """Whether a statement was sent, so that there is something to commit."""
        return self._begin is None

    async def _fetch(self, name: str, sql: str, arguments: list[Any]) -> Sequence[Row]:
        if self._begin is not None:
            await self._open()
        began = perf_counter()
        rows = cast("list[Row]", await self._connection.fetch(sql, *arguments))
        metrics.observe_statement(name, perf_counter() - began)
        if rows and not self._marked and "mark" in rows[0]:
            self._marked = rows
        return rows

    async def lock(self, exclusive: Iterable[int] = (), shared: Iterable[int] = ()) -> None:
        wanted = dict.fromkeys(shared, False) | dict.fromkeys(exclusive, True)
        if not wanted:
            return
        keys = sorted(wanted)
        exclusive_flags = [wanted[key] for key in keys]
        if self._begin is not None:
            await self._open(_lock_text(keys, exclusive_flags))
        elif all(exclusive_flags):
            await self.fetch(_LOCK, keys=keys)
        else:
            await self.fetch(_LOCK_MIXED, keys=keys, exclusive=exclusive_flags)

    async def _open(self, first: str = "") -> None:
        """Begin the transaction, with its first statement in the same round trip."""
        begin, self._begin = self._begin, None
        await self._connection.execute(f"{begin}; {first}")

    async def try_lock(self, key: int) -> bool:
        return bool((await self.fetch(_TRY_LOCK, key=key))[0]["got"])

    def texts(self, values: Sequence[str]) -> Any:
        return text_list("postgresql", values)


def _lock_text(keys: Sequence[int], exclusive: Sequence[bool]) -> str:
    """Return the lock statement with its values in the text: a message with parameters cannot begin a transaction."""
    statement = _LOCK if all(exclusive) else _LOCK_MIXED
    numbers, flags = ",".join(map(str, keys)), ",".join("t" if flag else "f" for flag in exclusive)
    return statement.compiled("postgresql").sql.replace("$1", f"'{{{numbers}}}'").replace("$2", f"'{{{flags}}}'")
