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
from sqlalchemy import BigInteger, FromClause, column, func, literal_column, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import bindparam
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import Text, TypeEngine

Dialect = Literal["postgresql", "sqlite"]
Row = Mapping[str, Any]

_DIALECTS: dict[Dialect, Any] = {
    "postgresql": PGDialect_asyncpg(),
    "sqlite": sqlite.dialect(paramstyle="qmark"),
}


class now_us(FunctionElement[int]):  # noqa: N801 - reads as a SQL function in statements
    """Microseconds since the epoch by the database's clock, at the moment the statement runs."""

    type = BigInteger()
    inherit_cache = True
    name = "now_us"


@compiles(now_us, "postgresql")
def _now_us_postgres(element: now_us, compiler: SQLCompiler, **kw: Any) -> str:
    # clock_timestamp(), not now(): now() stands still at the start of the transaction.
    return "(extract(epoch from clock_timestamp()) * 1000000)::bigint"


@compiles(now_us, "sqlite")
def _now_us_sqlite(element: now_us, compiler: SQLCompiler, **kw: Any) -> str:
    # Registered on every connection: SQLite's own clock functions stop at milliseconds.
    return "now_us()"


class database_started_us(FunctionElement[int]):  # noqa: N801
    """When the database server started; long ago where there is no server."""

    type = BigInteger()
    inherit_cache = True
    name = "database_started_us"


@compiles(database_started_us, "postgresql")
def _started_postgres(element: database_started_us, compiler: SQLCompiler, **kw: Any) -> str:
    return "(extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint"


@compiles(database_started_us, "sqlite")
def _started_sqlite(element: database_started_us, compiler: SQLCompiler, **kw: Any) -> str:
    return "0"


class transaction_mark(FunctionElement[str]):  # noqa: N801
    """What tells later whether this transaction committed; null where a commit is never in doubt."""

    type = Text()
    inherit_cache = True
    name = "transaction_mark"


@compiles(transaction_mark, "postgresql")
def _mark_postgres(element: transaction_mark, compiler: SQLCompiler, **kw: Any) -> str:
    return "pg_current_xact_id()::text"


@compiles(transaction_mark, "sqlite")
def _mark_sqlite(element: transaction_mark, compiler: SQLCompiler, **kw: Any) -> str:
    return "null"


MARK = transaction_mark().label("mark")

# The parameter that carries a whole batch on SQLite; on Postgres each column is an array of its own.
_BATCH = "batch_json"


def lit(value: str | int) -> ColumnElement[Any]:
    """A constant written into the statement. A bound status would hide from Postgres that a partial index fits."""
    if isinstance(value, str):
        if not value.replace("_", "").isalnum():
            raise ValueError(f"{value!r} is no constant for a statement")
        return literal_column(f"'{value}'", Text())
    return literal_column(str(int(value)), BigInteger())


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
        compiled = self.compiled(dialect)
        if members is None:
            return [params[name] if name in params else compiled.filled[name] for name in compiled.names]
        values = {**compiled.filled, **params}
        if dialect == "sqlite":
            values[_BATCH] = orjson.dumps(members).decode()
        else:
            values.update(zip(self._columns, map(list, zip(*members, strict=True)), strict=True))
        return [values[name] for name in compiled.names]

    def _compile(self, dialect: Dialect) -> Compiled:
        build = self._build
        if self._columns:
            statement = cast("Callable[[FromClause], Executable]", build)(_batch_table(dialect, self._columns))
        else:
            statement = cast("Executable", build)
        compiled = cast("Any", statement).compile(dialect=_DIALECTS[dialect])
        if cast("dict[str, Any]", compiled.literal_execute_params):
            raise TypeError(f"statement {self.name} has parameters that only an engine can expand")
        names = tuple(cast("list[str]", compiled.positiontup or []))
        binds = cast("dict[str, Any]", compiled.binds)
        filled = {name: binds[name].value for name in names if not binds[name].required}
        return Compiled(str(compiled), names, filled)


def member(value: Any, name: str) -> ColumnElement[bool]:
    """`value` is one of the parameter `name`, a list of text: one bound value, so the text never varies."""
    return _one_of(value, name)


class _one_of(ColumnElement[bool]):  # noqa: N801
    inherit_cache = False

    def __init__(self, value: ColumnElement[Any], name: str) -> None:
        self.value = value
        self.parameter = name


@compiles(_one_of, "postgresql")
def _one_of_postgres(element: _one_of, compiler: SQLCompiler, **kw: Any) -> str:
    bound = bindparam(element.parameter, type_=ARRAY(Text()))
    return f"{compiler.process(element.value, **kw)} = any ({compiler.process(bound, **kw)})"


@compiles(_one_of, "sqlite")
def _one_of_sqlite(element: _one_of, compiler: SQLCompiler, **kw: Any) -> str:
    bound = bindparam(element.parameter, type_=Text())
    value, values = compiler.process(element.value, **kw), compiler.process(bound, **kw)
    return f"{value} in (select value from json_each({values}))"  # noqa: S608 - compiled parts, nothing of a user's


def text_list(dialect: Dialect, values: Sequence[str]) -> Any:
    """The bound value for a `member` parameter."""
    return orjson.dumps(list(values)).decode() if dialect == "sqlite" else list(values)


def _batch_table(dialect: Dialect, columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
    if dialect == "postgresql":
        arrays = [bindparam(name, type_=ARRAY(kind)) for name, kind in columns.items()]
        table = func.unnest(*arrays).table_valued(*(column(name, kind) for name, kind in columns.items()))
        return table.render_derived(name="batch")
    values = [
        literal_column(f"json_extract(value, '$[{position}]')", kind).label(name)
        for position, (name, kind) in enumerate(columns.items())
    ]
    source = func.json_each(bindparam(_BATCH, type_=Text())).table_valued("value", name="members")
    return select(*values).select_from(source).subquery("batch")
