"""The findings of the checks of an installation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field, with_config

from runlane.domain.server import ServerReplica
from runlane.domain.wire import WIRE


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    BROKEN = "broken"


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check, and the fix."""

    check: Annotated[str, Field(examples=["workers"])]
    level: Annotated[
        Level, Field(description="`ok`, `note`, `warning`, or `broken`: runs cannot be accepted or executed.")
    ]
    message: str
    cure: Annotated[str | None, Field(description="What to do.")] = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of every check, and the serving processes."""

    healthy: Annotated[bool, Field(description="Nothing is broken.")]
    schema_revision: str
    findings: tuple[Finding, ...]
    servers: tuple[ServerReplica, ...]
