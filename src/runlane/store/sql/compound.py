"""Chains: a change and what hangs on it, declared once.

The head changes rows and returns those it changed; the links write what belongs to exactly those rows. On Postgres the
whole chain is one statement, so it costs one round trip. On SQLite, which has no writing CTEs but also no round
trips, the parts run one after another and the returned rows are handed on. Either way a link cannot touch
anything that the head did not win: where the head has the fence, the whole chain has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from sqlalchemy import FromClause, Select, select
from sqlalchemy.sql.base import Executable
from sqlalchemy.types import TypeEngine

from runlane.store.sql.statement import (
    BATCH_PARAMETER,
    Compiled,
    Dialect,
    Row,
    Statement,
    batch_table,
    bind,
    compile_for,
    fill_single,
    named_batch,
    single_table,
)

Columns = Mapping[str, TypeEngine[Any]]
# A link is built over the chain's batch (None without one) and the rows that the head returned.
Link = Callable[[FromClause | None, FromClause], Executable]
Head = Executable | Callable[[FromClause], Executable]


class CompoundWrite:
    """A head, its links, and what the caller gets.

    `returns` names what the head returns, in order. `carries` names batch columns that the links need beside it; they
    belong to the member with the same `key`. (A join would say the same, but our connections only do nested loops.)
    `final` reads what the caller gets; without it the caller gets the head's rows. `admit` makes of the batch what the
    head and the links are built over; as a materialized CTE it is worked out once on Postgres.
    """

    __slots__ = (
        "_admit", "_carries", "_columns", "_compiled", "_final", "_head", "_key", "_links", "_parts", "_returns",
        "_single", "name",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        head: Head,
        *,
        columns: Columns | None = None,
        returns: Columns,
        links: Sequence[Link],
        key: Sequence[str] = (),
        carries: Sequence[str] = (),
        final: Callable[[FromClause], Select[Any]] | None = None,
        admit: Callable[[FromClause], FromClause] = lambda batch: batch,
    ) -> None:
        self.name = name
        self._head = head
        self._columns = dict(columns or {})
        self._returns = dict(returns)
        self._links = tuple(links)
        self._key = tuple(key)
        self._carries = tuple(carries)
        self._final = final
        self._admit = admit
        self._compiled: Compiled | None = None
        self._single: Compiled | None = None
        self._parts: tuple[Statement, tuple[Compiled, ...], Compiled | None] | None = None

    def compiled(self) -> Compiled:
        """The one statement for Postgres."""
        if self._compiled is None:
            self._compiled = self._compile(batch_table("postgresql", self._columns) if self._columns else None)
        return self._compiled

    def single(self) -> Compiled:
        """The one statement for Postgres when the batch has one member."""
        if self._single is None:
            self._single = self._compile(single_table(self._columns))
        return self._single

    def filled_in(self, params: Mapping[str, Any], members: Sequence[Sequence[Any]] | None) -> tuple[str, list[Any]]:
        """The text of the one statement for Postgres, and its arguments."""
        if members is not None and len(members) == 1:
            return fill_single(self.single(), self._columns, params, members[0])
        compiled = self.compiled()
        return compiled.sql, bind(compiled, "postgresql", self._columns, params, members)

    def postgres_texts(self) -> list[str]:
        """Every text that Postgres may get."""
        return [self.compiled().sql, *([self.single().sql] if self._columns else [])]

    def _compile(self, table: FromClause | None) -> Compiled:
        batch = self._admit(table) if table is not None else None
        head = cast("Any", self._built_head(batch))
        if batch is not None and self._carries:
            head = head.returning(*(batch.c[name] for name in self._carries))
        source = head.cte("changed")
        links = [cast("Any", link(batch, source)).cte(f"link_{number}") for number, link in enumerate(self._links, 1)]
        last = self._final(source) if self._final else select(source)
        return compile_for("postgresql", last.add_cte(*links), self.name)

    def parts(self) -> tuple[Statement, tuple[Compiled, ...], Compiled | None]:
        """The statements for SQLite: the head, the links over its rows, the last read over its rows."""
        if self._parts is None:
            batch = self._admit(batch_table("sqlite", self._columns)) if self._columns else None
            head = Statement(self.name, self._admitted_head(), self._columns)
            carried = {name: self._columns[name] for name in self._carries}
            source = named_batch("changed", "changed_json", {**self._returns, **carried})
            links = tuple(compile_for("sqlite", link(batch, source), self.name) for link in self._links)
            final = compile_for("sqlite", self._final(source), self.name) if self._final else None
            self._parts = (head, links, final)
        return self._parts

    def bind_part(
        self, part: Compiled, params: Mapping[str, Any], members: Sequence[Sequence[Any]] | None, changed: str
    ) -> list[Any]:
        """The arguments of a link or of the last read on SQLite; `changed` is the head's rows as JSON."""
        uses_batch = members if BATCH_PARAMETER in part.names else None
        return bind(part, "sqlite", self._columns, {**params, "changed_json": changed}, uses_batch)

    def changed(self, rows: Sequence[Row], members: Sequence[Sequence[Any]] | None) -> list[list[Any]]:
        """The head's rows with what they carry, as lists; for SQLite, whose RETURNING knows one table only."""
        if not self._carries or members is None:
            return [[row[name] for name in self._returns] for row in rows]
        place = {name: position for position, name in enumerate(self._columns)}
        by_key = {tuple(member[place[name]] for name in self._key): member for member in members}
        carried = [place[name] for name in self._carries]
        changed: list[list[Any]] = []
        for row in rows:
            member = by_key[tuple(row[name] for name in self._key)]
            changed.append([*(row[name] for name in self._returns), *(member[position] for position in carried)])
        return changed

    def _admitted_head(self) -> Head:
        head, admit = self._head, self._admit
        if not self._columns or not callable(head):
            return head
        return lambda table: head(admit(table))

    def _built_head(self, batch: FromClause | None) -> Executable:
        return self._head(batch) if callable(self._head) and batch is not None else cast("Executable", self._head)


def texts_of(chain: CompoundWrite) -> dict[Dialect, list[str]]:
    """Every text that the chain may send, by dialect; for tests."""
    head, links, final = chain.parts()
    sqlite = [head.compiled("sqlite").sql, *(link.sql for link in links), *([final.sql] if final else [])]
    return {"postgresql": chain.postgres_texts(), "sqlite": sqlite}
