"""The size of the database and of its tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of one table."""

    name: str
    bytes: Annotated[int, Field(description="With its indexes.")]
    rows: Annotated[int | None, Field(description="As the database estimates them; null if it does not.")]


@dataclass(frozen=True, slots=True)
class DatabaseSize:
    """The size of the database, and of its tables, the largest first."""

    dialect: Annotated[str, Field(description="`postgresql` or `sqlite`.")]
    bytes: int
    tables: Annotated[tuple[TableSize, ...] | None, Field(description="Null if they are not measured; see `note`.")]
    note: Annotated[str | None, Field(description="Why tables are not measured.")]
