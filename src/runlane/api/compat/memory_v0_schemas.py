"""Requests and responses of the memory API under /v0."""
# ruff: noqa: N815 - the API uses these names

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import HTTPException
from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from runlane.api.schemas.fields import At, Moment, RequestModel, ResponseModel, moment_us, text_only
from runlane.api.schemas.memory import Description, EntryTags, Title
from runlane.api.serializers import moment
from runlane.domain.memory import (
    DEFAULT_MEMORY_TYPE,
    MAX_ENTRY_CHARACTERS,
    MAX_QUERY_CHARACTERS,
    MAX_SUMMARY_CHARACTERS,
    Memory,
    MemoryEntry,
    MemoryFragment,
    NewEntry,
    Vault,
)
from runlane.domain.memory_names import TYPE_PATTERN


class NotPlainText(HTTPException):
    """The body of a context does not have the type text/plain."""

    def __init__(self) -> None:
        super().__init__(415, "A context is plain text. Send it with Content-Type: text/plain.")


class Health(ResponseModel):
    """The state of the server."""

    status: str
    timestamp: At


class PostVaultShape(RequestModel):
    """A new vault."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"title": "research"}]})

    title: Title
    description: Description = ""


class VaultShape(ResponseModel):
    """A vault."""

    vaultId: str
    actorId: str
    title: str
    description: str
    creationTime: At


class VaultsShape(ResponseModel):
    """Vaults."""

    vaults: Sequence[VaultShape]
    count: int


class PostMemoryShape(RequestModel):
    """A new memory."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"title": "project", "memoryType": "PROJECT"}]})

    title: Title
    memoryType: Annotated[str, StringConstraints(pattern=TYPE_PATTERN)] = DEFAULT_MEMORY_TYPE
    description: Description = ""


class MemoryShape(ResponseModel):
    """A memory."""

    memoryId: str
    vaultId: str
    actorId: str
    memoryType: str
    title: str
    description: str
    creationTime: At


class MemoriesShape(ResponseModel):
    """Memories of a vault."""

    memories: Sequence[MemoryShape]
    count: int


class PostEntryShape(RequestModel):
    """A new entry."""

    model_config = ConfigDict(hide_input_in_errors=True, json_schema_extra={"examples": [{"rawEntry": "A fact."}]})

    rawEntry: Annotated[
        str, StringConstraints(min_length=1, max_length=MAX_ENTRY_CHARACTERS), AfterValidator(text_only)
    ]
    summary: Annotated[str, StringConstraints(max_length=MAX_SUMMARY_CHARACTERS), AfterValidator(text_only)] = ""
    metadata: Mapping[str, Any] = Field(default_factory=dict)
    tags: EntryTags = Field(default_factory=dict)
    expirationTime: Moment | None = None

    def entry(self) -> NewEntry:
        """Return the entry to add."""
        expires = None if self.expirationTime is None else moment_us(self.expirationTime)
        return NewEntry(self.rawEntry, self.summary, self.metadata, self.tags, expires)


class PatchTagsShape(RequestModel):
    """All tags of an entry."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tags": {"kind": "fact"}}]})

    tags: EntryTags


class EntryShape(ResponseModel):
    """An entry."""

    entryId: str
    memoryId: str
    creationTime: At
    rawEntry: str
    summary: str
    metadata: Mapping[str, Any]
    tags: Mapping[str, str]
    expirationTime: At | None
    correctionTime: At | None
    correctedEntryId: str | None
    correctionReason: str | None


class EntriesShape(ResponseModel):
    """Entries, newest first."""

    entries: Sequence[EntryShape]
    count: int


class ContextShape(ResponseModel):
    """A written context."""

    contextId: str
    memoryId: str
    creationTime: At


class PostSearchShape(RequestModel):
    """A search."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"memoryId": "mem_1", "query": "answers"}]})

    memoryId: str = Field(min_length=1, max_length=200)
    query: Annotated[str, StringConstraints(min_length=1, max_length=MAX_QUERY_CHARACTERS), AfterValidator(text_only)]
    topK: int = Field(default=10, ge=1, le=100)


class FoundEntryShape(EntryShape):
    """An entry that a search found."""

    score: float


class SearchShape(ResponseModel):
    """The result of a search."""

    entries: Sequence[FoundEntryShape]
    count: int
    latestContext: str
    contextTimestamp: At
    bestContext: str | None
    bestContextTimestamp: At | None
    bestContextScore: float | None = Field(description="The share of the words of the query that the context has.")


def now_us() -> int:
    """Return the current time of this process, in microseconds."""
    return time.time_ns() // 1000


def vault(value: Vault) -> dict[str, Any]:
    """Return a vault in the form of this API."""
    return {
        "vaultId": value.id,
        "actorId": value.tenant,
        "title": value.title,
        "description": value.description,
        "creationTime": moment(value.created_at_us),
    }


def memory(value: Memory) -> dict[str, Any]:
    """Return a memory in the form of this API."""
    return {
        "memoryId": value.id,
        "vaultId": value.vault_id,
        "actorId": value.tenant,
        "memoryType": value.memory_type,
        "title": value.title,
        "description": value.description,
        "creationTime": moment(value.created_at_us),
    }


def entry(value: MemoryEntry) -> dict[str, Any]:
    """Return an entry in the form of this API."""
    return {
        "entryId": value.id,
        "memoryId": value.memory_id,
        "creationTime": moment(value.created_at_us),
        "rawEntry": value.text,
        "summary": value.summary,
        "metadata": value.metadata,
        "tags": value.tags,
        "expirationTime": moment(value.expires_at_us),
        "correctionTime": moment(value.corrected_at_us),
        "correctedEntryId": value.corrected_by,
        "correctionReason": value.correction_reason,
    }


def context(memory_id: str, value: MemoryFragment) -> dict[str, Any]:
    """Return a written context in the form of this API."""
    return {
        "contextId": f"{memory_id}:{value.seq}",
        "memoryId": memory_id,
        "creationTime": moment(value.updated_at_us),
    }


def best_context(value: MemoryFragment, query: str) -> dict[str, Any]:
    """Return the stored context that matches a query, with its score, or nulls if it has none of the words."""
    wanted = _words(query)
    score = len(wanted & _words(value.content)) / max(1, len(wanted))
    found = (value.content, moment(value.updated_at_us), score) if score else (None, None, None)
    return dict(zip(("bestContext", "bestContextTimestamp", "bestContextScore"), found, strict=True))


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))
