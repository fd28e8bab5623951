"""Rows of memories as values."""

from __future__ import annotations

from typing import Final

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
    """Parse an entry; `applied_seq` is the number up to which its memory is in the database."""
    return MemoryEntry(
        row["id"],
        row["memory_id"],
        row["seq"],
        row["text"],
        row["summary"],
        load_json(row["metadata"]),
        load_json(row["tags"]),
        row["created_at"],
        row["expires_at"],
        row["corrects"],
        row["corrected_by"],
        row["corrected_at"],
        row["correction_reason"],
        row["changed_seq"] <= applied_seq,
    )


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
