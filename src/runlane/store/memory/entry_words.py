"""Add entries so that the index of words of a memory file can follow them.

The index is in a file of its own, see `words_file`, and has the words of the rows up to a position. So rows are added
in the order of their numbers and no number is used twice. The content that has left `memory_entries` is kept until
its words have left the index.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import BigInteger, bindparam, text

from runlane.domain.ids import new_id
from runlane.store.sql.database import Session
from runlane.store.sql.statement import Statement

# The digits of the id are one word. A table without content deletes a row by its old values.
MEMORY_WORD: Final = "substr({row}.memory_id, instr({row}.memory_id, '_') + 1)"
_KEEP_TEXT: Final = (
    "insert into memory_words_dropped (entry, text, summary, memory) "  # noqa: S608 - constants
    f"values (old.rowid, old.text, old.summary, {MEMORY_WORD.format(row='old')})"
)
# `last_row` is the highest number of a row that was deleted. `id` is the id of the index that follows this file.
_TABLES: Final = (
    (
        "create table memory_words_dropped (number integer primary key autoincrement, entry integer not null, "
        "text text not null, summary text not null, memory text not null)"
    ),
    "create table memory_words_state (id text not null, last_row integer not null)",
    (
        "create trigger memory_words_deleted after update of text on memory_entries when old.deleted_at is null "
        f"and new.deleted_at is not null begin {_KEEP_TEXT}; end"
    ),
    (
        f"create trigger memory_words_removed after delete on memory_entries when old.deleted_at is null "
        f"begin {_KEEP_TEXT}; end"
    ),
    (
        "create trigger memory_row_removed after delete on memory_entries begin "
        "update memory_words_state set last_row = old.rowid where last_row < old.rowid; end"
    ),
)
_LAST_ROW = Statement(
    "memory_last_row",
    text(
        "select coalesce((select max(rowid) from memory_entries), 0) as newest, last_row as last "
        "from memory_words_state"
    ),
    purpose="Read after which row of a file the entries of a batch are added.",
)
_MOVE_ROWS = Statement(
    "memory_move_rows",
    text("update memory_entries set rowid = rowid + :places where rowid > :newest").bindparams(
        bindparam("places", type_=BigInteger()), bindparam("newest", type_=BigInteger())
    ),
    purpose="Move added entries of a file after all rows that were deleted.",
)


def create_word_tables(connection: sqlite3.Connection) -> None:
    """Create in a memory file what its index of words needs."""
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute("insert into memory_words_state values (?, 0)", (new_id("words"),))


async def insert_entries(session: Session, statement: Statement, rows: Sequence[Sequence[Any]]) -> None:
    """Add the rows of entries with a statement that inserts them."""
    if not rows:
        return
    if session.dialect == "postgresql":
        await session.fetch(statement, rows)
        return
    position = (await session.fetch(_LAST_ROW))[0]
    newest: int = position["newest"]
    await session.fetch(statement, rows)
    if position["last"] > newest:
        # SQLite uses the numbers of the newest rows again after their deletion. The new rows are therefore moved past
        # the deleted ones, and so far that no row takes the number of another one.
        await session.fetch(_MOVE_ROWS, newest=newest, places=max(position["last"] - newest, len(rows)))
