"""Values from rows: a dataclass whose fields have the names of the columns."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from runlane.domain.text import load_json
from runlane.store.sql.statement import Row

T = TypeVar("T")


@cache
def _columns(kind: type[Any]) -> tuple[tuple[str, str], ...]:
    """Return the fields of a dataclass with their columns. The column of a time has no `_us` in its name."""
    return tuple((field.name, field.name.removesuffix("_us")) for field in fields(kind))


def from_row(kind: type[T], row: Row, /, *, json: Collection[str] = (), **values: Any) -> T:
    """Return a value of the row's columns. A field without a column has its default.

    `json` names the fields whose columns are JSON text; `values` are those that are not columns as they are.
    """
    found: dict[str, Any] = dict(row)
    given = {name: found[column] for name, column in _columns(kind) if column in found}
    for name in json:
        given[name] = None if given[name] is None else load_json(given[name])
    return kind(**given | values)
