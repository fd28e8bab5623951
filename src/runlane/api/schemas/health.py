"""What the checks of an installation found."""

from __future__ import annotations

from pydantic import Field

from runlane.api.schemas.fields import ResponseModel
from runlane.diagnosis.finding import Level
from runlane.domain.server import ServerReplica


class FindingBody(ResponseModel):
    """The result of one check."""

    check: str = Field(examples=["workers"])
    level: Level = Field(description="`ok`, `note`, `warning`, or `broken`: runs cannot be accepted or executed.")
    message: str
    cure: str | None = Field(description="What to do.")


class Diagnosis(ResponseModel):
    """The result of every check, and the serving processes."""

    healthy: bool = Field(description="Nothing is broken.")
    schema_revision: str
    findings: list[FindingBody]
    servers: list[ServerReplica]
