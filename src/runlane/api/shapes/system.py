"""How a process is."""

from __future__ import annotations

from pydantic import Field

from runlane.api.shapes.fields import Answer


class DevIdentity(Answer):
    """Which `runlane dev` answers."""

    instance: str = Field(description="Different for every process.")
    project: str = Field(description="The same for every process of a folder.")


class Alive(Answer):
    """The process runs."""

    status: str
    version: str
    dev: DevIdentity | None = Field(description="Null unless this is `runlane dev`.")


class Ready(Answer):
    """Whether the process can do its work, and what it found."""

    status: str
    database: str
    schema_revision: str | None
    redis: str = Field(description="For information: nothing needs Redis to be there.")
    problems: list[str]
