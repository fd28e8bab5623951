"""Statements: SQLAlchemy Core as the compiler, compiled once per dialect and executed by the raw driver.

A statement for many members is built over `batch`, a table made of its parameters: arrays through unnest() on
Postgres, one JSON string through json_each() on SQLite. So one declaration serves both dialects, and a thousand members
cost one round trip. A single member, the common case under low load, has its own SQL on Postgres: plain parameters
instead of arrays, which the planner and the driver handle faster. A statement that writes wide rows and returns nothing
may have its members as rows of VALUES on SQLite, which costs half of what JSON does.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Literal, cast

import orjson
from sqlalchemy import ARRAY, FromClause, column, func, literal_column, select, table
from sqlalchemy.sql import bindparam
from sqlalchemy.sql.base import Executable
from sqlalchemy.types import LargeBinary, Text, TypeEngine

Dialect = Literal["postgresql", "sqlite"]
Row = Mapping[str, Any]

# The parameter that carries a whole batch on SQLite; on Postgres each column is an array of its own.
BATCH_PARAMETER = "batch_json"
# The numbers of rows of VALUES for which SQL exists, so that the driver finds its prepared statements again.
_ROW_COUNTS = (128, 32, 8, 2, 1)


@dataclass(frozen=True, slots=True)
class Compiled:
    """SQL of one dialect, the names of its parameters in order, and the values that the compiler filled in."""

    sql: str
    names: tuple[str, ...]
    filled: Mapping[str, Any]


class Statement:
    """One named statement. `name` and `purpose` are its heading in docs/reference/sql.

    With `by_rows`, members are rows of VALUES on SQLite, in several statements if there are many; it returns no rows.
    """

    __slots__ = ("_build", "_columns", "_compiled", "_rows_sql", "_single", "by_rows", "name", "purpose")

    def __init__(
        self,
        name: str,
        build: Executable | Callable[[FromClause], Executable],
        columns: Mapping[str, TypeEngine[Any]] | None = None,
        *,
        purpose: str = "",
        by_rows: bool = False,
    ) -> None:
        self.name = name
        self.purpose = purpose
        self.by_rows = by_rows
        self._build = build
        self._columns = dict(columns or {})
        self._compiled: dict[Dialect, Compiled] = {}
        self._single: Compiled | None = None
        self._rows_sql: dict[int, str] = {}

    def compiled(self, dialect: Dialect) -> Compiled:
        """Return the SQL for a dialect, compiled at first use."""
        found = self._compiled.get(dialect)
        if found is None:
            found = self._compiled[dialect] = self._compile(dialect)
        return found

    def single(self) -> Compiled:
        """Return the SQL for a batch of one member on Postgres."""
        if self._single is None:
            self._single = self._compile("postgresql", single=True)
        return self._single

    def texts(self, dialect: Dialect) -> dict[str, str]:
        """Return every SQL string that may be sent, by its use."""
        texts = {"": self.rows_sql(1) if self.by_rows and dialect == "sqlite" else self.compiled(dialect).sql}
        if dialect == "postgresql" and self._columns:
            texts["one member"] = self.single().sql
        return texts

    def bound(
        self, dialect: Dialect, params: Mapping[str, Any], members: Sequence[Sequence[Any]] | None
    ) -> tuple[str, list[Any]]:
        """Return the SQL and the positional arguments for these parameters and batch members."""
        if dialect == "postgresql" and members is not None and len(members) == 1:
            return bind_single(self.single(), self._columns, params, members[0])
        compiled = self.compiled(dialect)
        return compiled.sql, bind(compiled, dialect, self._columns, params, members)

    def rows_sql(self, count: int) -> str:
        """Return the SQL on SQLite for this number of members as rows of VALUES."""
        found = self._rows_sql.get(count)
        if found is None:
            row = f"({', '.join('?' * len(self._columns))})"
            names, rows = ", ".join(self._columns), ", ".join([row] * count)
            found = self._rows_sql[count] = f"WITH batch({names}) AS (VALUES {rows}) {self.compiled('sqlite').sql}"
        return found

    def chunks(self, members: Sequence[Sequence[Any]]) -> Iterator[tuple[str, list[Any]]]:
        """Yield SQL and arguments that together write all members on SQLite."""
        compiled = self.compiled("sqlite")
        # The compiler made parameters of constants; they follow the rows in the SQL.
        constants = [compiled.filled[name] for name in compiled.names]
        first = 0
        for count in _ROW_COUNTS:
            while len(members) - first >= count:
                yield self.rows_sql(count), [*chain.from_iterable(members[first : first + count]), *constants]
                first += count

    def _compile(self, dialect: Dialect, *, single: bool = False) -> Compiled:
        build = self._build
        if self._columns:
            if self.by_rows and dialect == "sqlite":
                batch: FromClause = table("batch", *(column(name, kind) for name, kind in self._columns.items()))
            else:
                batch = single_table(self._columns) if single else batch_table(dialect, self._columns)
            statement = cast("Callable[[FromClause], Executable]", build)(batch)
        else:
            statement = cast("Executable", build)
        return compile_for(dialect, statement, self.name)


def compile_for(dialect: Dialect, statement: Executable, name: str) -> Compiled:
    """Compile a Core statement for a dialect."""
    compiled = cast("Any", statement).compile(dialect=_compiler(dialect))
    if cast("dict[str, Any]", compiled.literal_execute_params):
        raise TypeError(f"statement {name} has parameters that only an engine can expand")
    names = tuple(cast("list[str]", compiled.positiontup or []))
    binds = cast("dict[str, Any]", compiled.binds)
    filled = {name: binds[name].value for name in names if not binds[name].required}
    return Compiled(str(compiled), names, filled)


@cache
def _compiler(dialect: Dialect) -> Any:
    # Imported at first use: a process has one database, and commands that only read should start fast.
    if dialect == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.dialect(paramstyle="qmark")
    from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg

    return PGDialect_asyncpg()


def bind(
    compiled: Compiled,
    dialect: Dialect,
    columns: Mapping[str, TypeEngine[Any]],
    params: Mapping[str, Any],
    members: Sequence[Sequence[Any]] | None,
) -> list[Any]:
    """Return the positional arguments for compiled SQL."""
    if members is None:
        return [params[name] if name in params else compiled.filled[name] for name in compiled.names]
    values = {**compiled.filled, **params}
    if dialect == "sqlite":
        values[BATCH_PARAMETER] = orjson.dumps(members, default=_encode_bytes).decode()
    else:
        values.update(zip(columns, map(list, zip(*members, strict=True)), strict=True))
    return [values[name] for name in compiled.names]


def bind_single(
    compiled: Compiled, columns: Mapping[str, TypeEngine[Any]], params: Mapping[str, Any], member: Sequence[Any]
) -> tuple[str, list[Any]]:
    """Return the SQL for one member and its positional arguments."""
    values = {**compiled.filled, **params, **dict(zip(columns, member, strict=True))}
    return compiled.sql, [values[name] for name in compiled.names]


def _encode_bytes(value: Any) -> str:
    """Return bytes as JSON can carry them; from_base64() in the statement restores them."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} cannot be a value of a batch")


def text_list(dialect: Dialect, values: Sequence[str]) -> Any:
    """Return the bound value for a `member` parameter."""
    return orjson.dumps(list(values)).decode() if dialect == "sqlite" else list(values)


def batch_table(dialect: Dialect, columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
    """Return a table made of the parameters that carry a batch."""
    if dialect == "postgresql":
        arrays = [bindparam(name, type_=ARRAY(kind)) for name, kind in columns.items()]
        rows = func.unnest(*arrays).table_valued(*(column(name, kind) for name, kind in columns.items()))
        return rows.render_derived(name="batch")
    return named_batch("batch", BATCH_PARAMETER, columns)


def single_table(columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
    """Return a table of one row made of plain parameters, for Postgres."""
    return select(*(bindparam(name, type_=kind).label(name) for name, kind in columns.items())).subquery("batch")


def named_batch(name: str, parameter: str, columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
    """Return a table made of one JSON parameter, for SQLite."""
    values = [
        literal_column(_extracted(position, kind), kind).label(label)
        for position, (label, kind) in enumerate(columns.items())
    ]
    source = func.json_each(bindparam(parameter, type_=Text())).table_valued("value", name=f"{name}_members")
    return select(*values).select_from(source).subquery(name)


def _extracted(position: int, kind: TypeEngine[Any]) -> str:
    value = f"json_extract(value, '$[{position}]')"
    return f"from_base64({value})" if isinstance(kind, LargeBinary) else value
