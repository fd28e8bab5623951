"""Definitions: current ones, their versions, and requests and results of a sync."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints

from runlane.api.schemas.fields import At, Name, RequestModel, ResponseModel
from runlane.definitions.files import MAX_DEFINITIONS
from runlane.domain.source import DEFAULT_SOURCE, MAX_SOURCE, SOURCE_PATTERN

Bodies = list[dict[str, Any]]
Source = Annotated[str, StringConstraints(max_length=MAX_SOURCE, pattern=SOURCE_PATTERN)]
TAKE_OVER: Any = Field(
    default=False, description="Also change definitions of another source, and move them to this one."
)

_STEP: dict[str, Any] = {"id": "say", "type": "print", "print_content": "Hello, {{user_input}}"}
_VERSION = "439a53bd9d3b5df6b6dd2b1b59fbab9b1a76766fc8c3552ab962d296ebfc4237"


class SyncRequest(RequestModel):
    """Definitions as written in files, by kind. All of them are stored, or none."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"orchestrations": [{"id": "hello", "steps": [_STEP]}], "dry_run": True}]}
    )

    orchestrations: Bodies = Field(default_factory=Bodies, max_length=MAX_DEFINITIONS)
    agents: Bodies = Field(default_factory=Bodies, max_length=MAX_DEFINITIONS)
    tools: Bodies = Field(default_factory=Bodies, max_length=MAX_DEFINITIONS)
    mcp_servers: Bodies = Field(default_factory=Bodies, max_length=MAX_DEFINITIONS)
    dry_run: bool = Field(default=False, description="Only report what would change.")
    remove_missing: bool = Field(
        default=False,
        description="Remove definitions that the same source synced earlier and this sync does not contain. "
        "Definitions of other sources and imported ones stay.",
    )
    source: Source = Field(default=DEFAULT_SOURCE, description="The project that the definitions come from.")
    take_over: bool = TAKE_OVER
    tenant: Name | None = Field(default=None, description="For platform admins; others sync their own.")


class SyncItem(ResponseModel):
    """The result for one definition."""

    kind: str = Field(examples=["orchestration"])
    id: str = Field(examples=["hello"])
    change: str = Field(description="added, changed, removed or unchanged.", examples=["added"])
    version: str | None = Field(description="Its version now; null when it was removed.", examples=[_VERSION])
    old_version: str | None = Field(description="Its version before; null when it is new.")


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
    items: list[SyncItem]
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
    tenant: Name | None = Field(default=None, description="For platform admins; others import for themselves.")


class LeftOutView(ResponseModel):
    """An operation and a remark about it."""

    operation: str = Field(examples=["POST /uploads"])
    why: str = Field(examples=["Its body is multipart/form-data; tools send JSON."])


class OpenApiAnswer(ResponseModel):
    """The tools made from a description."""

    tools: list[dict[str, Any]] = Field(description="As written in files.")
    left_out: list[LeftOutView] = Field(description="Operations for which no tool is made.")
    notes: list[LeftOutView] = Field(description="Differences from the description.")
    saved: SyncAnswer | None = Field(description="The result of storing them; null without `save`.")


class DefinitionSummary(ResponseModel):
    """A current definition, without its content."""

    id: str
    name: str
    description: str
    version: str = Field(description="The SHA-256 of its content.", examples=[_VERSION])
    origin: str = Field(description="sync or import.")
    source: str | None = Field(description="The project that synced it; null if it was imported.", examples=["shop"])
    created_at: At
    updated_at: At


class OrchestrationPage(ResponseModel):
    """A page of orchestrations, by id."""

    orchestrations: list[DefinitionSummary]
    next_cursor: str | None


class AgentPage(ResponseModel):
    """A page of agents, by id."""

    agents: list[DefinitionSummary]
    next_cursor: str | None


class ToolPage(ResponseModel):
    """A page of tools, by name."""

    tools: list[DefinitionSummary]
    next_cursor: str | None


class McpServerPage(ResponseModel):
    """A page of MCP servers, by name."""

    mcp_servers: list[DefinitionSummary]
    next_cursor: str | None


class DefinitionView(ResponseModel):
    """One version of a definition."""

    id: str
    version: str
    current: bool
    created_at: At = Field(description="When this version was stored, or became current again.")
    definition: dict[str, Any] = Field(
        description="Its content, without defaults.", examples=[{"id": "hello", "steps": [_STEP]}]
    )


class VersionView(ResponseModel):
    """A version without its content."""

    version: str
    created_at: At
    current: bool


class Versions(ResponseModel):
    """The versions of a definition, newest first."""

    id: str
    versions: list[VersionView]
