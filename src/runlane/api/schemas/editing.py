"""Check and store one definition."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from runlane.api.schemas.definitions import TAKE_OVER, DefinitionWarning
from runlane.api.schemas.fields import Name, RequestModel, ResponseModel
from runlane.domain.graph_view import OrchestrationGraph


class CheckDefinition(RequestModel):
    """A definition as it is written in a file."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"kind": "orchestrations", "definition": {"id": "hello", "steps": []}}]}
    )

    kind: Name = Field(description="As in the path: `orchestrations`, `agents`, `tools`, `mcp-servers`, `triggers`.")
    definition: dict[str, Any]
    tenant: Name | None = Field(
        default=None, description="The tenant, for platform admins. Other keys use their own tenant."
    )


class DefinitionFinding(DefinitionWarning):
    """An error or a warning, with the JSON Pointer of its place in the definition."""

    pointer: str = Field(examples=["/steps/2/next_step_id"])


class Findings(ResponseModel):
    """The problems that `runlane validate` finds, together with the stored definitions."""

    valid: bool = Field(description="Whether the definition has no errors and can be stored.")
    findings: list[DefinitionFinding]
    version: str | None = Field(description="The version that it would have; null if it is not valid.")
    change: str | None = Field(description="`added`, `changed` or `unchanged`; null if it is not valid.")
    graph: OrchestrationGraph | None = Field(description="The steps and edges of a valid orchestration.")


class PutDefinition(RequestModel):
    """Store one definition."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"definition": {"id": "writer", "model": "scripted"}}]})

    definition: dict[str, Any]
    take_over: bool = TAKE_OVER
    tenant: Name | None = Field(
        default=None, description="The tenant, for platform admins. Other keys use their own tenant."
    )


class StoredDefinition(ResponseModel):
    """The result of storing one definition. Runs that have started keep their versions."""

    id: str
    version: str
    previous: str | None = Field(description="The previous version, if any.")
    change: str = Field(description="`added`, `changed` or `unchanged`.")
    source: str | None
    findings: list[DefinitionFinding] = Field(description="Warnings.")


class UsedBy(ResponseModel):
    """A definition that uses something."""

    kind: str
    id: str
    name: str


class Uses(ResponseModel):
    """A definition that another one uses."""

    kind: str
    id: str


class UserCounts(ResponseModel):
    """The number of definitions that use each definition of a kind, directly or through others."""

    counts: dict[str, int] = Field(description="By id. Definitions without users are omitted.")


class UsedByList(ResponseModel):
    """The definitions that use a definition or that it uses, directly or through others."""

    used_by: list[UsedBy]
    uses: list[Uses] = Field(description="The definitions that its runs may use.")


class InputForm(ResponseModel):
    """The input of a run of an orchestration."""

    orchestration_id: str
    version: str
    input_schema: dict[str, Any] = Field(description="JSON Schema of `input`: the keys of the initial state.")
    example: dict[str, Any]
