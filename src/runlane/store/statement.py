"""Statements: SQLAlchemy Core as the compiler, compiled once per dialect and run on the raw driver.

A statement that serves many members at once is built over `batch`, a table made of its parameters: arrays
through unnest() on Postgres, one JSON text through json_each() on SQLite. So one declaration serves both, and a
thousand members cost one round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import orjson
from sqlalchemy import FromClause, column, func, literal_column, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.sql import bindparam
from sqlalchemy.sql.base import Executable
from sqlalchemy.types import Text, TypeEngine

Dialect = Literal["postgresql", "sqlite"]
Row = Mapping[str, Any]

_DIALECTS: dict[Dialect, Any] = {
    "postgresql": PGDialect_asyncpg(),
    "sqlite": sqlite.dialect(paramstyle="qmark"),
}


# The parameter that carries a whole batch on SQLite; on Postgres each column is an array of its own.
BATCH_PARAMETER = "batch_json"


@dataclass(frozen=True, slots=True)
class Compiled:
    """SQL text of one dialect, the names of its parameters in order, and the values the compiler filled in."""

    sql: str
    names: tuple[str, ...]
    filled: Mapping[str, Any]


class Statement:
    """One named statement. `name` is what logs, probes and tests call it."""

    __slots__ = ("_build", "_columns", "_compiled", "name")

    def __init__(
        self,
        name: str,
        build: Executable | Callable[[FromClause], Executable],
        columns: Mapping[str, TypeEngine[Any]] | None = None,
    ) -> None:
        self.name = name
        self._build = build
        self._columns = dict(columns or {})
        self._compiled: dict[Dialect, Compiled] = {}

    def compiled(self, dialect: Dialect) -> Compiled:
        """The text for a dialect, made at first use and kept."""
        found = self._compiled.get(dialect)
        if found is None:
            found = self._compiled[dialect] = self._compile(dialect)
        return found

    def bind(self, dialect: Dialect, params: Mapping[str, Any], members: Sequence[Sequence[Any]] | None) -> list[Any]:
        """The driver's positional arguments for these parameters and batch members."""
        return bind(self.compiled(dialect), dialect, self._columns, params, members)

    def _compile(self, dialect: Dialect) -> Compiled:
        build = self._build
        if self._columns:
            statement = cast("Callable[[FromClause], Executable]", build)(batch_table(dialect, self._columns))
        else:
            statement = cast("Executable", build)
        return compile_for(dialect, statement, self.name)


def compile_for(dialect: Dialect, statement: Executable, name: str) -> Compiled:
    """The text of a Core statement for a dialect."""
    compiled = cast("Any", statement).compile(dialect=_DIALECTS[dialect])
    if cast("dict[str, Any]", compiled.literal_execute_params):
        raise TypeError(f"statement {name} has parameters that only an engine can expand")
    names = tuple(cast("list[str]", compiled.positiontup or []))
    binds = cast("dict[str, Any]", compiled.binds)
    filled = {name: binds[name].value for name in names if not binds[name].required}
    return Compiled(str(compiled), names, filled)


def bind(
    compiled: Compiled,
    dialect: Dialect,
    columns: Mapping[str, TypeEngine[Any]],
    params: Mapping[str, Any],
    members: Sequence[Sequence[Any]] | None,
) -> list[Any]:
    """The positional arguments for a compiled text."""
    if members is None:
        return [params[name] if name in params else compiled.filled[name] for name in compiled.names]
    values = {**compiled.filled, **params}
    if dialect == "sqlite":
        values[BATCH_PARAMETER] = orjson.dumps(members).decode()
    else:
        values.update(zip(columns, map(list, zip(*members, strict=True)), strict=True))
    return [values[name] for name in compiled.names]


def text_list(dialect: Dialect, values: Sequence[str]) -> Any:
    """The bound value for a `member` parameter."""
    return orjson.dumps(list(values)).decode() if dialect == "sqlite" else list(values)


def batch_table(dialect: Dialect, columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
    if dialect == "postgresql":
        arrays = [bindparam(name, type_=ARRAY(kind)) for name, kind in columns.items()]
        table = func.unnest(*arrays).table_valued(*(column(name, kind) for name, kind in columns.items()))
        return table.render_derived(name="batch")
    return named_batch("batch", BATCH_PARAMETER, columns)


def named_batch(name: str, parameter: str, columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
    """A table made of one JSON parameter, for SQLite."""
    values = [
        literal_column(f"json_extract(value, '$[{position}]')", kind).label(label)
        for position, (label, kind) in enumerate(columns.items())
    ]
    source = func.json_each(bindparam(parameter, type_=Text())).table_valued("value", name=f"{name}_members")
    return select(*values).select_from(source).subquery(name)
