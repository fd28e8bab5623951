"""Requests and list responses of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from runlane.api.schemas.fields import Moment, RequestModel, ResponseModel, moment_us, text_only
from runlane.api.schemas.listing import Listing
from runlane.domain.memory import (
    DEFAULT_MEMORY_TYPE,
    MAX_COMMIT_WAIT_SECONDS,
    MAX_DESCRIPTION,
    MAX_ENTRIES_AT_ONCE,
    MAX_ENTRY_CHARACTERS,
    MAX_ENTRY_TAGS,
    MAX_FRAGMENT_CHARACTERS,
    MAX_QUERY_CHARACTERS,
    MAX_REASON,
    MAX_SEARCH_HITS,
    MAX_SUMMARY_CHARACTERS,
    MAX_TAG_CHARACTERS,
    FragmentInfo,
    Memory,
    MemoryHit,
    NewEntry,
    Vault,
)
from runlane.domain.memory_names import TITLE_PATTERN, TYPE_PATTERN, USER_PATTERN
from runlane.domain.time_zones import DEFAULT_ZONE, MAX_ZONE

Title = Annotated[str, StringConstraints(pattern=TITLE_PATTERN)]
Description = Annotated[str, StringConstraints(max_length=MAX_DESCRIPTION), AfterValidator(text_only)]
TagText = Annotated[str, StringConstraints(max_length=MAX_TAG_CHARACTERS), AfterValidator(text_only)]
EntryTags = Annotated[
    Mapping[TagText, TagText], Field(max_length=MAX_ENTRY_TAGS, description="Names with values; they can be replaced.")
]


class PostUser(RequestModel):
    """A new user."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"id": "ada", "email": "ada@example.com"}]})

    id: Annotated[str, StringConstraints(pattern=USER_PATTERN)]
    email: Annotated[str, StringConstraints(min_length=3, max_length=255), AfterValidator(text_only)]
    display_name: Annotated[str, StringConstraints(max_length=200), AfterValidator(text_only)] = ""
    time_zone: Annotated[str, StringConstraints(min_length=1, max_length=MAX_ZONE)] = DEFAULT_ZONE


class PostVault(RequestModel):
    """A new vault."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"title": "research"}]})

    title: Title
    description: Description = ""
    user_id: Annotated[str, StringConstraints(pattern=USER_PATTERN)] | None = None


class PostMemory(RequestModel):
    """A new memory. Without a vault, it is created in the vault `default`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"title": "customer-42"}]})

    title: Title
    vault_id: str | None = Field(default=None, max_length=64)
    memory_type: Annotated[str, StringConstraints(pattern=TYPE_PATTERN)] = DEFAULT_MEMORY_TYPE
    description: Description = ""


class MoveMemory(RequestModel):
    """The vault that the memory moves to."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"vault_id": "vault_1"}]})

    vault_id: str = Field(min_length=1, max_length=64)


class PostEntry(RequestModel):
    """An entry to add."""

    model_config = ConfigDict(
        hide_input_in_errors=True,
        json_schema_extra={"examples": [{"text": "Ada prefers short answers.", "tags": {"kind": "preference"}}]},
    )

    text: Annotated[str, StringConstraints(min_length=1, max_length=MAX_ENTRY_CHARACTERS), AfterValidator(text_only)]
    summary: Annotated[str, StringConstraints(max_length=MAX_SUMMARY_CHARACTERS), AfterValidator(text_only)] = ""
    metadata: Mapping[str, Any] = Field(default_factory=dict, description="JSON of at most 16 KiB. It never changes.")
    tags: EntryTags = Field(default_factory=dict)
    expires_at: Moment | None = Field(default=None, description="The entry is deleted after this time.")

    def entry(self) -> NewEntry:
        """Return the entry to add."""
        expires = None if self.expires_at is None else moment_us(self.expires_at)
        return NewEntry(self.text, self.summary, self.metadata, self.tags, expires)


class PostEntries(RequestModel):
    """Entries to add, all or none."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"entries": [{"text": "One."}, {"text": "Two."}]}]})

    entries: Sequence[PostEntry] = Field(min_length=1, max_length=MAX_ENTRIES_AT_ONCE)


class CorrectionBody(PostEntry):
    """The entry that replaces another one, and the reason."""

    reason: Annotated[str, StringConstraints(min_length=1, max_length=MAX_REASON), AfterValidator(text_only)]


class PutTags(RequestModel):
    """All tags of an entry."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tags": {"kind": "fact"}}]})

    tags: EntryTags


class PutFragmentBody(RequestModel):
    """The whole content of a fragment."""

    model_config = ConfigDict(
        hide_input_in_errors=True, json_schema_extra={"examples": [{"content": "Ada works on the compiler."}]}
    )

    content: Annotated[str, StringConstraints(max_length=MAX_FRAGMENT_CHARACTERS), AfterValidator(text_only)]


class SearchMemory(RequestModel):
    """A search."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"query": "short answers", "limit": 5}]})

    query: Annotated[str, StringConstraints(min_length=1, max_length=MAX_QUERY_CHARACTERS), AfterValidator(text_only)]
    limit: int = Field(default=10, ge=1, le=MAX_SEARCH_HITS)


class AwaitCommit(RequestModel):
    """How long the request may wait."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"timeout_seconds": 10}]})

    timeout_seconds: float = Field(default=10.0, ge=0, le=MAX_COMMIT_WAIT_SECONDS)


class DeletedBody(ResponseModel):
    """The id of the deleted object."""

    deleted: str


class RetriedBody(ResponseModel):
    """The parked memory that is replicated again."""

    retried: str


class MemoryRunBody(ResponseModel):
    """The run that works on a memory."""

    run_id: str


VAULTS = Listing("vaults", Vault, cursor="id")
MEMORIES = Listing("memories", Memory, cursor="id")
FRAGMENTS = Listing("fragments", FragmentInfo)
HITS = Listing("hits", MemoryHit)
