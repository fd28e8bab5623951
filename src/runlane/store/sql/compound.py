"""Compound writes: a change and the writes that depend on it, declared once.

The head changes rows and returns those it changed; the links write what belongs to exactly those rows. On Postgres a
compound write is one statement, so it costs one round trip. On SQLite, which has no writing CTEs but also no round
trips, the parts run one after another and each link gets the returned rows. In both cases a link cannot write
anything for rows that the head did not change: where the head has the fence, the whole compound write has it.
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
    bind_single,
    compile_for,
    named_batch,
    single_table,
)

Columns = Mapping[str, TypeEngine[Any]]
# A link is built over the batch (None without one) and the rows that the head returned.
Link = Callable[[FromClause | None, FromClause], Executable]
Head = Executable | Callable[[FromClause], Executable]


class CompoundWrite:
    """A head, its links, and the rows that the caller gets.

    `returns` names what the head returns, in order. `carries` names batch columns that the links need in addition; they
    belong to the member with the same `key`. (A join would do the same, but our connections only use nested loops.)
    `final` selects the rows that the caller gets; without it these are the head's. `admit` transforms the batch over
    which head and links are built; as a materialized CTE it is evaluated once on Postgres. `as_arrays`: the statement
    uses a column of the batch as an array, so a batch of one member is not sent as plain values.
    """

    __slots__ = (
        "_admit", "_as_arrays", "_carries", "_columns", "_compiled", "_final", "_head", "_key", "_links", "_parts",
        "_returns", "_single", "name", "purpose",
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
        as_arrays: bool = False,
        purpose: str = "",
    ) -> None:
        self.name = name
        self.purpose = purpose
        self._head = head
        self._columns = dict(columns or {})
        self._returns = dict(returns)
        self._links = tuple(links)
        self._key = tuple(key)
        self._carries = tuple(carries)
        self._final = final
        self._admit = admit
        self._as_arrays = as_arrays
        self._compiled: Compiled | None = None
        self._single: Compiled | None = None
        self._parts: tuple[Statement, tuple[Compiled, ...], Compiled | None] | None = None

    def compiled(self) -> Compiled:
        """Return the statement for Postgres."""
        if self._compiled is None:
            self._compiled = self._compile(batch_table("postgresql", self._columns) if self._columns else None)
        return self._compiled

    def single(self) -> Compiled:
        """Return the statement for Postgres when the batch has one member."""
        if self._single is None:
            self._single = self._compile(single_table(self._columns))
        return self._single

    def bound(self, params: Mapping[str, Any], members: Sequence[Sequence[Any]] | None) -> tuple[str, list[Any]]:
        """Return the SQL of the statement for Postgres, and its positional arguments."""
        if members is not None and len(members) == 1 and not self._as_arrays:
            return bind_single(self.single(), self._columns, params, members[0])
        compiled = self.compiled()
        return compiled.sql, bind(compiled, "postgresql", self._columns, params, members)

    def texts(self, dialect: Dialect) -> dict[str, str]:
        """Return every SQL string that may be sent, by its use."""
        if dialect == "postgresql":
            texts = {"": self.compiled().sql}
            return {**texts, "one member": self.single().sql} if self._columns and not self._as_arrays else texts
        head, links, final = self.parts()
        texts = {"": head.compiled("sqlite").sql}
        texts |= {f"link {number}": link.sql for number, link in enumerate(links, 1)}
        return {**texts, "final": final.sql} if final else texts

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
        """Return the statements for SQLite: the head, the links over its rows, the final read over its rows."""
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
        """Return the arguments of a link or of the final read on SQLite; `changed` is the head's rows as JSON."""
        uses_batch = members if BATCH_PARAMETER in part.names else None
        return bind(part, "sqlite", self._columns, {**params, "changed_json": changed}, uses_batch)

    def changed(self, rows: Sequence[Row], members: Sequence[Sequence[Any]] | None) -> list[list[Any]]:
        """Return the head's rows with their carried columns as lists: RETURNING of SQLite can name only one table."""
        if not self._carries or members is None:
            return [[row[name] for name in self._returns] for row in rows]
        positions = {name: position for position, name in enumerate(self._columns)}
        by_key = {tuple(member[positions[name]] for name in self._key): member for member in members}
        carried = [positions[name] for name in self._carries]
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
