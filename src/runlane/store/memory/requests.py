"""Requests that change a memory, checked and with their operation id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from runlane.domain.memory import MemoryEntry, MemoryFragment, NewEntry

# The beginning of an operation id that is the key of a caller. Other operation ids are those of entries and operations.
KEY_PREFIX: Final = "key:"


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """A change of one memory. `keyed` requests have an idempotency key of their caller as operation id."""

    tenant: str
    memory_id: str
    op_id: str
    fingerprint: str
    keyed: bool
    now_us: int


@dataclass(frozen=True, slots=True)
class AddEntries(MemoryRequest):
    """Add entries, all or none. `ids` are those that the entries get."""

    entries: tuple[NewEntry, ...]
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CorrectEntry(MemoryRequest):
    """Add an entry that corrects another one."""

    entry_id: str
    entry: NewEntry
    reason: str
    new_entry_id: str


@dataclass(frozen=True, slots=True)
class DeleteEntry(MemoryRequest):
    """Delete an entry."""

    entry_id: str


@dataclass(frozen=True, slots=True)
class SetEntryTags(MemoryRequest):
    """Replace the tags of an entry."""

    entry_id: str
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PutFragment(MemoryRequest):
    """Write a fragment."""

    name: str
    content: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class DeleteFragment(MemoryRequest):
    """Delete a fragment."""

    name: str


# The result of a request: entries, a fragment, or nothing.
MemoryAnswer = tuple[MemoryEntry, ...] | MemoryFragment | None
