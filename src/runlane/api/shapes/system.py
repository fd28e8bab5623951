"""How a process is."""

from __future__ import annotations

from pydantic import Field

from runlane.api.shapes.fields import Answer


class Alive(Answer):
    """The process runs."""

    status: str
    version: str


class Ready(Answer):
    """Whether the process can do its work, and what it found."""

    status: str
    database: str
    schema_revision: str | None
    redis: str = Field(description="For information: nothing needs Redis to be there.")
    problems: list[str]
