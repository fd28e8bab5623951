"""Health and readiness of a process."""

from __future__ import annotations

from pydantic import Field

from runlane.api.schemas.fields import ResponseModel


class DevIdentity(ResponseModel):
    """Identifies the `runlane dev` that answers."""

    instance: str = Field(description="Different for every process.")
    project: str = Field(description="The same for every process of a folder.")


class Alive(ResponseModel):
    """The process runs."""

    status: str
    version: str
    dev: DevIdentity | None = Field(description="Null unless this is `runlane dev`.")


class Ready(ResponseModel):
    """Whether the process can serve requests, and the reasons if not."""

    status: str
    database: str
    schema_revision: str | None
    redis: str = Field(description="For information: Redis is optional.")
    problems: list[str]
