"""Memory: vaults, memories, their entries and fragments, as clients see them, and the bounds of what they store.

A memory is an ordered log of entries and a set of named documents, its fragments. Each change of a memory is an
operation with a number, and the numbers of one memory have no gap. The text of an entry never changes: a correction is
a new entry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from runlane.domain.memory_names import TITLE_PATTERN
from runlane.domain.wire import Timestamp

MAX_ENTRY_CHARACTERS: Final = 9_000
MAX_SUMMARY_CHARACTERS: Final = 512
MAX_METADATA_BYTES: Final = 16_384
MAX_ENTRY_TAGS: Final = 50
MAX_TAG_CHARACTERS: Final = 200
MAX_FRAGMENT_CHARACTERS: Final = 65_536
MAX_FRAGMENTS: Final = 64
MAX_MEMORY_TITLE: Final = 50
MAX_DESCRIPTION: Final = 500
MAX_REASON: Final = 500
MAX_ENTRIES_AT_ONCE: Final = 100
MAX_ENTRY_PAGE: Final = 500
MAX_SEARCH_HITS: Final = 100
MAX_QUERY_CHARACTERS: Final = 1_000
# The beginning of the names of tasks that work on memories.
MEMORY_TASKS: Final = "runlane.memory."
MAX_COMMIT_WAIT_SECONDS: Final = 60.0


# The fragment that every memory has from its creation.
CONTEXT_FRAGMENT: Final = "context"
DEFAULT_CONTEXT: Final = "This memory is new. It has no context yet.\n"
DEFAULT_VAULT: Final = "default"
DEFAULT_MEMORY_TYPE: Final = "notes"
SHARDS: Final = 256

Consistency = Literal["local", "committed"]
TITLE: Final = re.compile(TITLE_PATTERN)


class MemoryOpKind(StrEnum):
    """The kind of an operation: the part of a memory that it changes."""

    ADD = "add_entry"
    CORRECT = "correct_entry"
    DELETE = "delete_entry"
    TAGS = "set_tags"
    PUT_FRAGMENT = "put_fragment"
    DELETE_FRAGMENT = "delete_fragment"
    DISCARDED = "discarded"


class MemoryOpState(StrEnum):
    """The state of an operation in replication."""

    PENDING = "pending"
    BLOCKED = "blocked"
    REJECTED = "rejected"
    APPLIED = "applied"


class CommitState(StrEnum):
    """The result of waiting for a commit."""

    COMMITTED = "committed"
    TIMEOUT = "timeout"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class MemoryUser:
    """A person or program that memory is kept for."""

    id: str
    tenant: str
    email: str
    display_name: str
    time_zone: str
    status: Annotated[str, Field(description="active, suspended or deleted.")]
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]


@dataclass(frozen=True, slots=True)
class Vault:
    """A named group of memories of one tenant."""

    id: str
    tenant: str
    title: Annotated[str, Field(description="Unique among the vaults of its user.")]
    description: str
    user_id: Annotated[str, Field(description="The user that the vault belongs to; empty for none.")]
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]


@dataclass(frozen=True, slots=True)
class Memory:
    """An ordered log of entries with its fragments."""

    id: str
    tenant: str
    vault_id: str
    title: Annotated[str, Field(description="Unique in its vault.")]
    memory_type: str
    description: str
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    last_seq: Annotated[int, Field(description="The number of the last operation that the answering process has.")]


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry to add."""

    text: str
    summary: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    expires_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """One entry of a memory. Only its tags and the fields of its correction can change."""

    id: str
    memory_id: str
    seq: Annotated[int, Field(description="The number of the operation that added it; gives the order.")]
    text: str
    summary: str
    metadata: Mapping[str, Any]
    tags: Mapping[str, str]
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    expires_at_us: Annotated[Timestamp | None, Field(alias="expires_at")] = None
    corrects: Annotated[str | None, Field(description="The entry that this one corrects.")] = None
    corrected_by: Annotated[str | None, Field(description="The entry that corrects this one.")] = None
    corrected_at_us: Annotated[Timestamp | None, Field(alias="corrected_at")] = None
    correction_reason: str | None = None
    synced: Annotated[bool, Field(description="Whether its last change is in the database.")] = True


@dataclass(frozen=True, slots=True)
class EntryPage:
    """A page of entries."""

    entries: Sequence[MemoryEntry]
    next_before: Annotated[int | None, Field(description="`before` of the next page; null after the oldest entry.")]
    next_after: Annotated[int | None, Field(description="`after` of the next page of newer entries.")]


@dataclass(frozen=True, slots=True)
class FragmentInfo:
    """A fragment without its content."""

    name: str
    sha256: str
    size: Annotated[int, Field(description="Bytes in UTF-8.")]
    updated_at_us: Annotated[Timestamp, Field(alias="updated_at")]
    seq: Annotated[int, Field(description="The number of the operation that wrote it.")]
    synced: bool = True


@dataclass(frozen=True, slots=True)
class MemoryFragment:
    """A named document of a memory. The last write wins."""

    name: str
    content: str
    sha256: str
    size: int
    updated_at_us: Annotated[Timestamp, Field(alias="updated_at")]
    seq: int
    synced: bool = True

    @property
    def info(self) -> FragmentInfo:
        """The fragment without its content."""
        return FragmentInfo(self.name, self.sha256, self.size, self.updated_at_us, self.seq, self.synced)


@dataclass(frozen=True, slots=True)
class MemoryOp:
    """An operation of the log, without the content that it wrote."""

    memory_id: str
    seq: int
    op_id: str
    kind: MemoryOpKind
    state: MemoryOpState
    attempts: int
    error: str | None
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]


@dataclass(frozen=True, slots=True)
class MemoryCommit:
    """Whether the operations before a moment are in the database."""

    state: CommitState
    seq: Annotated[int, Field(description="The number of the last operation before the call.")]
    committed_seq: Annotated[int, Field(description="The number up to which every operation is in the database.")]
    rejected: Annotated[MemoryOp | None, Field(description="The operation that the database rejected.")] = None


@dataclass(frozen=True, slots=True)
class MemoryHit:
    """An entry that a search found."""

    entry: MemoryEntry
    score: Annotated[float, Field(description="Higher is better; comparable within one search only.")]
    found_by: Annotated[Sequence[str], Field(description="text, vector, or both.")]


@dataclass(frozen=True, slots=True)
class MemoryExport:
    """The whole content of a memory."""

    memory: Memory
    entries: Annotated[Sequence[MemoryEntry], Field(description="Oldest first.")]
    fragments: Sequence[MemoryFragment]


@dataclass(frozen=True, slots=True)
class MemoryTenantExport:
    """One page of the export of a tenant: a memory, and on the first page also the users and vaults."""

    users: Sequence[MemoryUser]
    vaults: Sequence[Vault]
    memory: MemoryExport | None
    next_cursor: Annotated[str | None, Field(description="The cursor of the next page; null after the last memory.")]


@dataclass(frozen=True, slots=True)
class ParkedMemory:
    """A memory whose operations are not replicated until an operator decides."""

    memory_id: str
    op: Annotated[MemoryOp, Field(description="The operation that the database rejected.")]
    waiting: Annotated[int, Field(description="Operations that wait, with the rejected one.")]
    superseded: Annotated[bool, Field(description="Whether another process has written to the memory since.")]


@dataclass(frozen=True, slots=True)
class MemoryNodeStatus:
    """The storage mode of a process and its replication backlog."""

    mode: Annotated[str, Field(description="local, replicated or direct.")]
    node_id: str | None
    path: str | None
    pending: int
    oldest_pending_us: Annotated[Timestamp | None, Field(alias="oldest_pending_at")]
    parked: Sequence[ParkedMemory]
    lease_seconds_left: float | None
    set_aside: Annotated[Sequence[str], Field(description="Broken files that were set aside, with a report each.")]


@lru_cache(maxsize=16_384)
def shard_of(memory_id: str) -> int:
    """Return the shard of a memory: 32-bit FNV-1a of its id, modulo the number of shards."""
    value = 0x811C9DC5
    for byte in memory_id.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value % SHARDS
