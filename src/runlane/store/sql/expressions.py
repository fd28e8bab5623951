"""Expressions that compile differently for the two dialects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import ARRAY, BigInteger, Boolean, cast, literal_column, or_, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import bindparam
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import Text

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.dialects.postgresql import Insert


def upsert(table: Table) -> Insert:
    """Return an insert that supports ON CONFLICT, which both dialects spell the same."""
    # Imported here: it loads the whole dialect, which processes that only read do not need.
    from sqlalchemy.dialects.postgresql import insert

    return insert(table)


class now_us(FunctionElement[int]):  # noqa: N801 - reads as a SQL function in statements
    """Microseconds since the epoch by the database's clock, at the moment the statement runs."""

    type = BigInteger()
    inherit_cache = True
    name = "now_us"


@compiles(now_us, "postgresql")
def _now_us_postgres(element: now_us, compiler: SQLCompiler, **kw: Any) -> str:
    # clock_timestamp(), not now(): now() is the start of the transaction. date_part() returns a double,
    # which is exact enough for microseconds and much cheaper than extract()'s numeric.
    return "(date_part('epoch', clock_timestamp()) * 1000000)::bigint"


@compiles(now_us, "sqlite")
def _now_us_sqlite(element: now_us, compiler: SQLCompiler, **kw: Any) -> str:
    # Registered on every connection: SQLite's own clock functions stop at milliseconds.
    return "now_us()"


def now_once() -> ColumnElement[int]:
    """Return now_us() evaluated once per statement: a clock that is read for every row cannot bound an index."""
    return select(now_us()).scalar_subquery()


class database_started_us(FunctionElement[int]):  # noqa: N801
    """The time at which the database server started; 0 on SQLite, which has no server."""

    type = BigInteger()
    inherit_cache = True
    name = "database_started_us"


@compiles(database_started_us, "postgresql")
def _started_postgres(element: database_started_us, compiler: SQLCompiler, **kw: Any) -> str:
    return "(extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint"


@compiles(database_started_us, "sqlite")
def _started_sqlite(element: database_started_us, compiler: SQLCompiler, **kw: Any) -> str:
    return "0"


class data_version(FunctionElement[int]):  # noqa: N801
    """A number that changes when another connection commits to the SQLite file; 0 on Postgres."""

    type = BigInteger()
    inherit_cache = True
    name = "data_version"


@compiles(data_version, "postgresql")
def _version_postgres(element: data_version, compiler: SQLCompiler, **kw: Any) -> str:
    return "0"


@compiles(data_version, "sqlite")
def _version_sqlite(element: data_version, compiler: SQLCompiler, **kw: Any) -> str:
    return "(select data_version from pragma_data_version)"


class byte_size(FunctionElement[int]):  # noqa: N801
    """The size of a string in bytes."""

    type = BigInteger()
    inherit_cache = True
    name = "byte_size"


@compiles(byte_size, "postgresql")
def _byte_size_postgres(element: byte_size, compiler: SQLCompiler, **kw: Any) -> str:
    # For a large value, it reads only the stored length.
    return f"octet_length({compiler.process(element.clauses, **kw)})"


@compiles(byte_size, "sqlite")
def _byte_size_sqlite(element: byte_size, compiler: SQLCompiler, **kw: Any) -> str:
    return f"length(cast({compiler.process(element.clauses, **kw)} as blob))"


class json_contains(FunctionElement[bool]):  # noqa: N801
    """Whether the JSON of the first argument contains that of the second: objects by key, lists by element."""

    type = Boolean()
    inherit_cache = True
    name = "json_contains"


@compiles(json_contains, "postgresql")
def _json_contains_postgres(element: json_contains, compiler: SQLCompiler, **kw: Any) -> str:
    whole, part = (_jsonb(compiler.process(clause, **kw)) for clause in element.clauses)
    return f"({whole} @> {part})"


def _jsonb(text: str) -> str:
    # jsonb cannot represent NUL.
    return rf"cast(replace({text}, '\u0000', '\ufffd') as jsonb)"


@compiles(json_contains, "sqlite")
def _json_contains_sqlite(element: json_contains, compiler: SQLCompiler, **kw: Any) -> str:
    # Registered on every connection: SQLite has no such function.
    return f"json_contains({compiler.process(element.clauses, **kw)})"


class json_text(FunctionElement[str]):  # noqa: N801
    """The string under a key of a JSON object: the object, then the key as a literal."""

    type = Text()
    inherit_cache = True
    name = "json_text"


@compiles(json_text, "postgresql")
def _json_text_postgres(element: json_text, compiler: SQLCompiler, **kw: Any) -> str:
    whole, key = (compiler.process(clause, **kw) for clause in element.clauses)
    # A JSON string may have NUL, which text cannot represent.
    return rf"(cast(replace({whole}, '\u0000', '\ufffd') as json) ->> {key})"


@compiles(json_text, "sqlite")
def _json_text_sqlite(element: json_text, compiler: SQLCompiler, **kw: Any) -> str:
    whole, key = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"json_extract({whole}, '$.' || {key})"


class pinned_version(FunctionElement[str]):  # noqa: N801
    """The version that the JSON of a plan pins a target to: the plan, then the target; null if it pins none."""

    type = Text()
    inherit_cache = True
    name = "pinned_version"


@compiles(pinned_version, "postgresql")
def _pinned_version_postgres(element: pinned_version, compiler: SQLCompiler, **kw: Any) -> str:
    plan, target = (compiler.process(clause, **kw) for clause in element.clauses)
    return rf"(cast(replace({plan}, '\u0000', '\ufffd') as json) -> 'pins' ->> {target})"


@compiles(pinned_version, "sqlite")
def _pinned_version_sqlite(element: pinned_version, compiler: SQLCompiler, **kw: Any) -> str:
    plan, target = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"json_extract({plan}, '$.pins.\"' || {target} || '\"')"


class first_segment(FunctionElement[str]):  # noqa: N801
    """The part of a path before its first slash."""

    type = Text()
    inherit_cache = True
    name = "first_segment"


@compiles(first_segment, "postgresql")
def _first_segment_postgres(element: first_segment, compiler: SQLCompiler, **kw: Any) -> str:
    return f"split_part({compiler.process(element.clauses, **kw)}, '/', 1)"


@compiles(first_segment, "sqlite")
def _first_segment_sqlite(element: first_segment, compiler: SQLCompiler, **kw: Any) -> str:
    path = compiler.process(element.clauses, **kw)
    return f"substr({path}, 1, instr({path} || '/', '/') - 1)"


class json_contains_any(FunctionElement[bool]):  # noqa: N801
    """Whether the JSON of the first argument contains one of the documents in the JSON list of the second."""

    type = Boolean()
    inherit_cache = True
    name = "json_contains_any"


@compiles(json_contains_any, "postgresql")
def _json_contains_any_postgres(element: json_contains_any, compiler: SQLCompiler, **kw: Any) -> str:
    whole, parts = (_jsonb(compiler.process(clause, **kw)) for clause in element.clauses)
    return f"({whole} @> any (array(select jsonb_array_elements({parts}))))"


@compiles(json_contains_any, "sqlite")
def _json_contains_any_sqlite(element: json_contains_any, compiler: SQLCompiler, **kw: Any) -> str:
    # Registered on every connection.
    return f"json_contains_any({compiler.process(element.clauses, **kw)})"


class transaction_mark(FunctionElement[str]):  # noqa: N801
    """The mark from which was_committed() determines whether this transaction committed; null on SQLite."""

    type = Text()
    inherit_cache = True
    name = "transaction_mark"


@compiles(transaction_mark, "postgresql")
def _mark_postgres(element: transaction_mark, compiler: SQLCompiler, **kw: Any) -> str:
    return "pg_current_xact_id()::text"


@compiles(transaction_mark, "sqlite")
def _mark_sqlite(element: transaction_mark, compiler: SQLCompiler, **kw: Any) -> str:
    return "null"


def visible_by(metadata: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that the parameter `rule`, an access rule or null, allows a resource with this metadata."""
    rule = bindparam("rule", type_=Text())
    return or_(cast(rule, Text).is_(None), json_contains_any(metadata, rule))


MARK = transaction_mark().label("mark")


def lit(value: str | int) -> ColumnElement[Any]:
    """Return a literal constant. With a bound status, Postgres would not use a partial index for that status."""
    if isinstance(value, str):
        if not value.replace("_", "").isalnum():
            raise ValueError(f"{value!r} is not a constant for a statement")
        return literal_column(f"'{value}'", Text())
    return literal_column(str(int(value)), BigInteger())


def has_bits(column: ColumnElement[Any], bits: int) -> ColumnElement[bool]:
    """Return the condition that an integer column has at least one of these bits."""
    return column.op("&")(lit(int(bits))) != lit(0)


def with_bits(column: ColumnElement[Any], bits: int) -> ColumnElement[Any]:
    """Return an integer column with these bits set."""
    return column.op("|")(lit(int(bits)))


def without_bits(column: ColumnElement[Any], bits: int) -> ColumnElement[Any]:
    """Return an integer column with these bits removed."""
    return column.op("&")(lit(~int(bits)))


def by_key_only(value: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a column of type text for which no index is chosen.

    Where a statement finds its rows by primary key and only checks their status, Postgres would scan a partial index
    for that status, because it estimates the partial indexes of a queue as nearly empty.
    """
    return value.op("||")(literal_column("''", Text()))


def member(value: Any, name: str) -> ColumnElement[bool]:
    """Return the condition that `value` is in the parameter `name`, a list as one bound value: the SQL is constant."""
    return _one_of(value, name)


def member_number(value: Any, name: str) -> ColumnElement[bool]:
    """Return the condition that an integer is in the parameter `name`, a list of decimal strings."""
    return _one_of(value, name, numbers=True)


def optional(name: str, column: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that the column equals the parameter `name`, a string, or that the parameter is null."""
    wanted = bindparam(name, type_=Text())
    return or_(cast(wanted, Text).is_(None), column == wanted)


class _one_of(ColumnElement[bool]):  # noqa: N801
    inherit_cache = False

    def __init__(self, value: ColumnElement[Any], name: str, *, numbers: bool = False) -> None:
        self.value = value
        self.parameter = name
        self.numbers = numbers


@compiles(_one_of, "postgresql")
def _one_of_postgres(element: _one_of, compiler: SQLCompiler, **kw: Any) -> str:
    bound = compiler.process(bindparam(element.parameter, type_=ARRAY(Text())), **kw)
    values = f"cast(cast({bound} as text[]) as bigint[])" if element.numbers else bound
    return f"{compiler.process(element.value, **kw)} = any ({values})"


@compiles(_one_of, "sqlite")
def _one_of_sqlite(element: _one_of, compiler: SQLCompiler, **kw: Any) -> str:
    bound = bindparam(element.parameter, type_=Text())
    value, values = compiler.process(element.value, **kw), compiler.process(bound, **kw)
    listed = "cast(value as integer)" if element.numbers else "value"
    return f"{value} in (select {listed} from json_each({values}))"  # noqa: S608 - compiled parts without user input


def begins_with_any(value: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    """Return the condition that a string begins with one of the strings in the parameter `name`."""
    return _begins_with(value, name)


class _begins_with(ColumnElement[bool]):  # noqa: N801
    inherit_cache = False

    def __init__(self, value: ColumnElement[Any], name: str) -> None:
        self.value = value
        self.parameter = name


@compiles(_begins_with, "postgresql")
def _begins_with_postgres(element: _begins_with, compiler: SQLCompiler, **kw: Any) -> str:
    value = compiler.process(element.value, **kw)
    bound = compiler.process(bindparam(element.parameter, type_=ARRAY(Text())), **kw)
    same = f"starts_with({value}, beginning.value)"
    return f"exists (select 1 from unnest({bound}) as beginning(value) where {same})"  # noqa: S608 - compiled parts


@compiles(_begins_with, "sqlite")
def _begins_with_sqlite(element: _begins_with, compiler: SQLCompiler, **kw: Any) -> str:
    value = compiler.process(element.value, **kw)
    bound = compiler.process(bindparam(element.parameter, type_=Text()), **kw)
    same = f"substr({value}, 1, length(beginning.value)) = beginning.value"
    return f"exists (select 1 from json_each({bound}) as beginning where {same})"  # noqa: S608 - compiled parts


def json_of(**fields: ColumnElement[Any]) -> ColumnElement[str]:
    """Return JSON with these fields. Only for our own statuses, ids and numbers: nothing is escaped."""
    text: ColumnElement[Any] | None = None
    for name, value in fields.items():
        quoted = isinstance(value.type, Text)
        opening = literal_column(f"""'{"{" if text is None else ","}"{name}":{'"' if quoted else ""}'""", Text())
        text = opening if text is None else text.op("||")(opening)
        text = text.op("||")(cast(value, Text))
        if quoted:
            text = text.op("||")(literal_column("""'"'""", Text()))
    if text is None:
        return literal_column("'{}'", Text())
    return text.op("||")(literal_column("'}'", Text()))
