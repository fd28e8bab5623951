"""Full-text search in the entries of one memory: FTS5 in a file, tsvector in Postgres.

Both indexes hold the id of the memory as a word of its own, so that a search reads only the entries of that memory,
however many others use the same words. A search finds entries with any of its words; more and rarer words rank higher.
An entry that has been corrected is not found; its correction is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from sqlalchemy import text

from runlane.domain.memory import MemoryEntry
from runlane.store.memory.reading import read_head
from runlane.store.memory.rows import entry_from
from runlane.store.sql.database import Database
from runlane.store.sql.schema.memory import MEMORY_WORDS
from runlane.store.sql.statement import Statement

MAX_WORDS: Final = 32
_WORD: Final = re.compile(r"[^\W_]+")
_COLUMNS: Final = (
    "e.id, e.memory_id, e.seq, e.changed_seq, e.text, e.summary, e.metadata, e.tags, e.created_at, e.expires_at, "
    "e.corrects, e.corrected_by, e.corrected_at, e.correction_reason"
)
_NOW_POSTGRES: Final = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint"
_DOCUMENT: Final = MEMORY_WORDS.format(row="e.")

_SEARCH: Final = {
    "sqlite": Statement(
        "memory_search",
        text(
            f"select {_COLUMNS}, -bm25(memory_words) as score from memory_words "  # noqa: S608 - constants
            "join memory_entries e on e.rowid = memory_words.rowid "
            "where memory_words match :words and e.memory_id = :memory_id "
            "and e.deleted_at is null and e.corrected_by is null "
            "and (e.expires_at is null or e.expires_at > now_us()) order by bm25(memory_words), e.seq desc limit :limit"
        ),
        purpose="Find entries of a memory by words.",
    ),
    "postgresql": Statement(
        "memory_search",
        text(
            f"select {_COLUMNS}, ts_rank({_DOCUMENT}, words.query) as score "  # noqa: S608 - constants
            "from (select cast(cast(:words as text) as tsquery) as query) words, memory_entries e "
            f"where {_DOCUMENT} @@ words.query and e.memory_id = :memory_id "
            "and e.deleted_at is null and e.corrected_by is null "
            f"and (e.expires_at is null or e.expires_at > {_NOW_POSTGRES}) "
            "order by score desc, e.seq desc limit :limit"
        ),
        purpose="Find entries of a memory by words.",
    ),
}


def words_of(query: str) -> list[str]:
    """Return the distinct words of a query, at most MAX_WORDS."""
    return list(dict.fromkeys(_WORD.findall(query.lower())))[:MAX_WORDS]


async def search_text(
    database: Database, tenant: str, memory_id: str, query: str, limit: int
) -> Sequence[tuple[MemoryEntry, float]]:
    """Return the entries with words of the query and their scores, best first."""
    head = await read_head(database, tenant, memory_id)
    words = words_of(query)
    if not words:
        return []
    if database.dialect == "sqlite":
        any_word = " OR ".join(f'"{word}"' for word in words)
        wanted = f"memory : {_token(memory_id)} AND {{entry summary}} : ({any_word})"
    else:
        any_word = " | ".join(f"'{word}'" for word in words)
        wanted = f"'memory:{memory_id}' & ({any_word})"

    rows = await database.query(_SEARCH[database.dialect], words=wanted, memory_id=memory_id, limit=limit)
    return [(entry_from(row, head.applied_seq), float(row["score"])) for row in rows]


def _token(memory_id: str) -> str:
    """Return the id of a memory as one word: its digits."""
    return f'"{memory_id.rpartition("_")[2]}"'
