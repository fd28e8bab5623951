"""Requests for runs that import and purge a memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from runlane.api.schemas.fields import Moment, RequestModel, moment_us
from runlane.api.schemas.memory import PostEntry, PutFragmentBody
from runlane.domain.memory_archive import (
    MAX_IMPORTED_ENTRIES,
    MAX_IMPORTED_FRAGMENTS,
    MemoryImport,
    NewFragment,
)
from runlane.domain.memory_names import FRAGMENT_PATTERN


class PostFragment(PutFragmentBody):
    """A fragment to write."""

    name: Annotated[str, StringConstraints(pattern=FRAGMENT_PATTERN)]


class PostImport(RequestModel):
    """Entries to add, in their order, and fragments to write."""

    model_config = ConfigDict(
        hide_input_in_errors=True,
        json_schema_extra={
            "examples": [
                {"entries": [{"text": "Ada prefers tea."}], "fragments": [{"name": "context", "content": "About Ada."}]}
            ]
        },
    )

    entries: Sequence[PostEntry] = Field(default=(), max_length=MAX_IMPORTED_ENTRIES)
    fragments: Sequence[PostFragment] = Field(default=(), max_length=MAX_IMPORTED_FRAGMENTS)

    @model_validator(mode="after")
    def _has_content(self) -> PostImport:
        if not self.entries and not self.fragments:
            raise ValueError("The import is empty. Give entries or fragments.")
        return self

    def given(self) -> MemoryImport:
        """Return the entries and fragments to import."""
        return MemoryImport(
            [entry.entry() for entry in self.entries],
            [NewFragment(fragment.name, fragment.content) for fragment in self.fragments],
        )


class PostPurge(RequestModel):
    """Options of a purge."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"before": "2026-01-01T00:00:00Z"}]})

    before: Moment | None = Field(default=None, description="Only entries before this time. Default: all.")

    @property
    def before_us(self) -> int | None:
        """The time in microseconds since the epoch."""
        return None if self.before is None else moment_us(self.before)
