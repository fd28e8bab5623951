"""Add entries, and in a memory file the words by which they are found.

The words of a batch are added by one statement, which costs less than a trigger on the statements that insert the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import BigInteger, bindparam, text

from runlane.store.sql.database import Session
from runlane.store.sql.statement import Statement

# The digits of the id are one word. A table without content deletes a row by its old values.
MEMORY_WORD: Final = "substr({row}.memory_id, instr({row}.memory_id, '_') + 1)"
_LAST_ROW = Statement(
    "memory_last_row",
    text("select coalesce(max(rowid), 0) as last from memory_entries"),
    purpose="Read after which row of a file the entries of a batch are added.",
)
_ADD_WORDS = Statement(
    "memory_add_words",
    text(
        "insert into memory_words (rowid, entry, summary, memory) "  # noqa: S608 - constants
        f"select e.rowid, e.text, e.summary, {MEMORY_WORD.format(row='e')} from memory_entries e "
        "where e.rowid > :before and e.deleted_at is null"
    ).bindparams(bindparam("before", type_=BigInteger())),
    purpose="Add the words of the entries that a batch has added to a file.",
)


async def insert_entries(session: Session, statement: Statement, rows: Sequence[Sequence[Any]]) -> None:
    """Add the rows of entries with a statement that inserts them."""
    if not rows:
        return
    if session.dialect == "postgresql":
        await session.fetch(statement, rows)
        return
    before: int = (await session.fetch(_LAST_ROW))[0]["last"]
    await session.fetch(statement, rows)
    await session.fetch(_ADD_WORDS, before=before)
