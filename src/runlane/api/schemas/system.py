"""Health and readiness of a process."""

from __future__ import annotations

from pydantic import Field

from runlane.api.schemas.fields import ResponseModel


class DevIdentity(ResponseModel):
    """The identity of a `runlane dev` process."""

    instance: str = Field(description="Different for every process.")
    project: str = Field(description="The same for every process of a folder.")


class Alive(ResponseModel):
    """The response of a running process."""

    status: str
    version: str
    dev: DevIdentity | None = Field(description="Null unless this is `runlane dev`.")


class Ready(ResponseModel):
    """Whether the process can serve requests, and the problems if it cannot."""

    status: str
    database: str
    schema_revision: str | None
    redis: str = Field(description="The state of Redis. It does not affect readiness, because Redis is optional.")
    problems: list[str]
