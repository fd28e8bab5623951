"""Rows of memories as values."""

from __future__ import annotations

from typing import Any, Final, cast

from sqlalchemy import Text, literal_column

from runlane.domain.memory import (
    FragmentInfo,
    Memory,
    MemoryEntry,
    MemoryFragment,
    MemoryOp,
    MemoryOpKind,
    MemoryOpState,
    MemoryUser,
    Vault,
)
from runlane.domain.text import load_json
from runlane.store.sql.schema.memory import memories, memory_entries, memory_fragments, memory_ops
from runlane.store.sql.statement import Row

_e = memory_entries.c
ENTRY_COLUMNS: Final = (
    _e.id,
    _e.memory_id,
    _e.seq,
    _e.changed_seq,
    _e.text,
    _e.summary,
    _e.metadata,
    _e.tags,
    _e.created_at,
    _e.expires_at,
    _e.corrects,
    _e.corrected_by,
    _e.corrected_at,
    _e.correction_reason,
)
_ENTRY_VALUES: Final = len(ENTRY_COLUMNS)
FRAGMENT_COLUMNS: Final = (
    memory_fragments.c.name,
    memory_fragments.c.sha256,
    memory_fragments.c.size,
    memory_fragments.c.updated_at,
    memory_fragments.c.seq,
)
# The fingerprint of an operation whose request had no idempotency key.
UNKEYED: Final = literal_column("''", Text())
OP_COLUMNS: Final = tuple(column for column in memory_ops.c if column.name not in ("payload", "fingerprint"))
MEMORY_COLUMNS: Final = tuple(
    memories.c[name]
    for name in ("id", "tenant", "vault_id", "title", "memory_type", "description", "created_at", "last_seq")
)


def entry_from(row: Row, applied_seq: int) -> MemoryEntry:
    """Parse an entry; `applied_seq` is the number up to which its memory is in the database.

    The row begins with ENTRY_COLUMNS. A page has hundreds of values, and reading them by name takes ten times as long.
    """
    entry_id, memory_id, seq, changed_seq, text, summary, metadata, tags, created_at, expires_at, *correction = cast(
        "tuple[Any, ...]", cast("Any", row)[:_ENTRY_VALUES]
    )
    corrects, corrected_by, corrected_at, reason = correction
    return MemoryEntry(
        entry_id,
        memory_id,
        seq,
        text,
        summary,
        _json_object(metadata),
        _json_object(tags),
        created_at,
        expires_at,
        corrects,
        corrected_by,
        corrected_at,
        reason,
        changed_seq <= applied_seq,
    )


def _json_object(text: str) -> dict[str, Any]:
    """Parse metadata or tags, which most entries do not have."""
    return {} if text == "{}" else load_json(text)


def fragment_info(row: Row, applied_seq: int) -> FragmentInfo:
    """Parse a fragment without its content."""
    return FragmentInfo(
        row["name"], row["sha256"], row["size"], row["updated_at"], row["seq"], row["seq"] <= applied_seq
    )


def fragment_from(row: Row, applied_seq: int) -> MemoryFragment:
    """Parse a fragment."""
    info = fragment_info(row, applied_seq)
    return MemoryFragment(info.name, row["content"], info.sha256, info.size, info.updated_at_us, info.seq, info.synced)


def memory_from(row: Row) -> Memory:
    """Parse a memory."""
    return Memory(*(row[column.name] for column in MEMORY_COLUMNS))


def vault_from(row: Row) -> Vault:
    """Parse a vault."""
    return Vault(row["id"], row["tenant"], row["title"], row["description"], row["user_id"], row["created_at"])


def user_from(row: Row) -> MemoryUser:
    """Parse a user."""
    return MemoryUser(
        row["id"],
        row["tenant"],
        row["email"],
        row["display_name"],
        row["time_zone"],
        row["status"],
        row["created_at"],
    )


def op_from(row: Row) -> MemoryOp:
    """Parse an operation of the log."""
    return MemoryOp(
        row["memory_id"],
        row["seq"],
        row["op_id"],
        MemoryOpKind(row["kind"]),
        MemoryOpState(row["state"]),
        row["attempts"],
        row["error"],
        row["created_at"],
    )
