"""How a process is."""

from __future__ import annotations

from pydantic import Field

from runlane.api.schemas.fields import ResponseModel


class DevIdentity(ResponseModel):
    """Which `runlane dev` answers."""

    instance: str = Field(description="Different for every process.")
    project: str = Field(description="The same for every process of a folder.")


class Alive(ResponseModel):
    """The process runs."""

    status: str
    version: str
    dev: DevIdentity | None = Field(description="Null unless this is `runlane dev`.")


class Ready(ResponseModel):
    """Whether the process can do its work, and what it found."""

    status: str
    database: str
    schema_revision: str | None
    redis: str = Field(description="For information: nothing needs Redis to be there.")
    problems: list[str]
