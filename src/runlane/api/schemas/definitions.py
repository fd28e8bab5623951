"""Definitions: the current ones, their versions, and requests and results of a sync."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints

from runlane.api.schemas.fields import Name, RequestModel, ResponseModel
from runlane.catalog.importers.openapi import SkippedOperation
from runlane.catalog.sync import SyncedDefinition
from runlane.definitions.files import MAX_DEFINITIONS
from runlane.domain.source import DEFAULT_SOURCE, MAX_SOURCE, SOURCE_PATTERN

Bodies = list[dict[str, Any]]
Source = Annotated[str, StringConstraints(max_length=MAX_SOURCE, pattern=SOURCE_PATTERN)]
TAKE_OVER: Any = Field(
    default=False, description="Also change definitions of other sources, and move them to this source."
)

_STEP: dict[str, Any] = {"id": "say", "type": "print", "print_content": "Hello, {{user_input}}"}


class SyncRequest(RequestModel):
    """Definitions as written in files, by kind. All of them are stored, or none."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"orchestrations": [{"id": "hello", "steps": [_STEP]}], "dry_run": True}]}
    )

    orchestrations: Bodies = Field(default_factory=Bodies, max_length=MAX_DEFINITIONS)
    agents: Bodies = Field(default_factory=Bodies, max_length=MAX_DEFINITIONS)
    tools: Bodies = Field(default_factory=Bodies, max_length=MAX_DEFINITIONS)
    mcp_servers: Bodies = Field(default_factory=Bodies, max_length=MAX_DEFINITIONS)
    schedules: Bodies = Field(default_factory=Bodies, max_length=MAX_DEFINITIONS)
    triggers: Bodies = Field(default_factory=Bodies, max_length=MAX_DEFINITIONS)
    dry_run: bool = Field(default=False, description="Only report what would change.")
    remove_missing: bool = Field(
        default=False,
        description="Remove definitions that the same source synced earlier and this sync does not contain. "
        "Definitions of other sources and imported ones stay.",
    )
    source: Source = Field(default=DEFAULT_SOURCE, description="The project that the definitions come from.")
    take_over: bool = TAKE_OVER
    tenant: Name | None = Field(
        default=None, description="The tenant, for platform admins. Other keys use their own tenant."
    )


class DefinitionWarning(ResponseModel):
    """A warning with its location."""

    severity: str
    file: str | None
    kind: str | None
    id: str | None
    step: str | None
    field: str | None
    message: str


class SyncAnswer(ResponseModel):
    """The result of a sync, or of a dry run."""

    dry_run: bool
    source: str | None = Field(description="The source that the definitions belong to.")
    added: int
    changed: int
    removed: int
    unchanged: int
    items: list[SyncedDefinition]
    missing: list[str] = Field(
        description="Definitions of this source, as kind:id, that the sync does not contain and did not remove."
    )
    warnings: list[DefinitionWarning]


_OPENAPI: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "servers": [{"url": "https://shop.example"}],
    "paths": {"/orders": {"get": {"operationId": "list_orders", "summary": "All orders"}}},
}


class OpenApiRequest(RequestModel):
    """A description of a web service whose operations become tools."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"spec": _OPENAPI, "name_prefix": "shop_"}]})

    spec: dict[str, Any] = Field(description="The description: OpenAPI 3.0 or 3.1.")
    base_url: str | None = Field(
        default=None, max_length=2000, description="The service's address. Default: the description's first server."
    )
    headers: dict[str, str] = Field(
        default_factory=dict, max_length=50, description="Sent with every call. Secrets as {secret.NAME}."
    )
    name_prefix: str = Field(default="", max_length=32, description="The prefix of every tool's name.")
    save: bool = Field(default=False, description="Store the tools, all of them or none.")
    take_over: bool = TAKE_OVER
    tenant: Name | None = Field(
        default=None, description="The tenant, for platform admins. Other keys use their own tenant."
    )


class OpenApiAnswer(ResponseModel):
    """The tools that were created from a description."""

    tools: list[dict[str, Any]] = Field(description="As written in files.")
    left_out: list[SkippedOperation] = Field(description="Operations without a tool, with the reason.")
    notes: list[SkippedOperation] = Field(description="Differences from the description.")
    saved: SyncAnswer | None = Field(description="The result of storing them; null without `save`.")
