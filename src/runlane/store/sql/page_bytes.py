"""Pages with a bound in bytes: a page of many large values would occupy the memory of a process.

A page ends before its limit where its values would exceed the bound. Its first row is returned whatever its size. The
database adds up the sizes first, so that values after the bound are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, UnaryExpression, func, or_, select

from runlane.store.sql.expressions import byte_size, lit
from runlane.store.sql.statement import Row

MAX_PAGE_BYTES: Final = 16 * 1024 * 1024

# A column and whether it is descending.
Order = Sequence[tuple[ColumnElement[Any], bool]]


def within_bytes(
    read: Select[*tuple[Any, ...]],
    *where: ColumnElement[bool],
    keys: Sequence[ColumnElement[Any]],
    order: Order,
    large: Sequence[ColumnElement[Any]],
    limit: ColumnElement[int],
    offset: ColumnElement[int] | None = None,
) -> Select[*tuple[Any, ...]]:
    """Return the first rows of a page, in its order, as long as their `large` values fit into MAX_PAGE_BYTES.

    `read` selects the values; `keys` name one row of it. `page_rows` of a row is how many rows the page has without the
    bound.
    """
    size = sum((func.coalesce(byte_size(column), lit(0)) for column in large), lit(0))
    places = [column.label(f"place_{number}") for number, (column, _) in enumerate(order)]
    page = read.where(*where).order_by(*_ordered(order)).limit(limit).offset(offset)
    whole = page.with_only_columns(*keys, *places, size.label("page_bytes")).subquery("whole")
    placed = [(whole.c[place.name], descending) for place, (_, descending) in zip(places, order, strict=True)]
    counted = select(
        *(whole.c[key.name] for key in keys),
        whole.c.page_bytes,
        func.sum(whole.c.page_bytes).over(order_by=_ordered(placed), rows=(None, 0)).label("page_end"),
        func.count().over().label("page_rows"),
    ).subquery("counted")
    c = counted.c
    named: list[ColumnElement[bool]] = [key == c[key.name] for key in keys]
    fits = or_(c.page_end <= lit(MAX_PAGE_BYTES), c.page_end == c.page_bytes)
    return read.add_columns(c.page_rows).where(*named, fits).order_by(*_ordered(order))


def is_cut(rows: Sequence[Row]) -> bool:
    """Return whether the bound has left out rows of this page."""
    return bool(rows) and rows[0]["page_rows"] > len(rows)


def _ordered(order: Order) -> list[UnaryExpression[Any]]:
    return [column.desc() if descending else column.asc() for column, descending in order]
