"""Definitions: what is current, their versions, and what a sync takes and tells."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from runlane.api.shapes.fields import Answer, At, Name, Request
from runlane.definitions.read import MAX_DEFINITIONS

Bodies = list[dict[str, Any]]

_STEP: dict[str, Any] = {"id": "say", "type": "print", "print_content": "Hello, {{user_input}}"}
_VERSION = "439a53bd9d3b5df6b6dd2b1b59fbab9b1a76766fc8c3552ab962d296ebfc4237"


class SyncRequest(Request):
    """Definitions as they are written in files, by kind. All of them are stored, or none."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"orchestrations": [{"id": "hello", "steps": [_STEP]}], "dry_run": True}]}
    )

    orchestrations: Bodies = Field(default_factory=Bodies, max_length=MAX_DEFINITIONS)
    agents: Bodies = Field(default_factory=Bodies, max_length=MAX_DEFINITIONS)
    tools: Bodies = Field(default_factory=Bodies, max_length=MAX_DEFINITIONS)
    mcp_servers: Bodies = Field(default_factory=Bodies, max_length=MAX_DEFINITIONS)
    dry_run: bool = Field(default=False, description="Only tell what would happen.")
    remove_missing: bool = Field(
        default=False, description="Remove what an earlier sync brought and this one does not; imported ones stay."
    )
    tenant: Name | None = Field(default=None, description="For platform admins; others sync their own.")


class SyncItem(Answer):
    """What became of one definition."""

    kind: str = Field(examples=["orchestration"])
    id: str = Field(examples=["hello"])
    change: str = Field(description="added, changed, removed or unchanged.", examples=["added"])
    version: str | None = Field(description="Its version now; null when it was removed.", examples=[_VERSION])
    old_version: str | None = Field(description="Its version before; null when it is new.")


class DefinitionWarning(Answer):
    """Something odd, with its place."""

    severity: str
    file: str | None
    kind: str | None
    id: str | None
    step: str | None
    field: str | None
    message: str


class SyncAnswer(Answer):
    """What a sync did, or would do."""

    dry_run: bool
    added: int
    changed: int
    removed: int
    unchanged: int
    items: list[SyncItem]
    warnings: list[DefinitionWarning]


class DefinitionSummary(Answer):
    """What is current of a definition."""

    id: str
    name: str
    description: str
    version: str = Field(description="The SHA-256 of its content.", examples=[_VERSION])
    origin: str = Field(description="How it came: sync or import.")
    created_at: At
    updated_at: At


class Orchestrations(Answer):
    """A page of orchestrations, by id."""

    orchestrations: list[DefinitionSummary]
    next_cursor: str | None


class Agents(Answer):
    """A page of agents, by id."""

    agents: list[DefinitionSummary]
    next_cursor: str | None


class Tools(Answer):
    """A page of tools, by name."""

    tools: list[DefinitionSummary]
    next_cursor: str | None


class McpServers(Answer):
    """A page of MCP servers, by name."""

    mcp_servers: list[DefinitionSummary]
    next_cursor: str | None


class DefinitionView(Answer):
    """One version of a definition."""

    id: str
    version: str
    current: bool
    created_at: At = Field(description="When this version came, or became current again.")
    definition: dict[str, Any] = Field(
        description="Its content, without what equals its default.", examples=[{"id": "hello", "steps": [_STEP]}]
    )


class VersionView(Answer):
    """A version without its content."""

    version: str
    created_at: At
    current: bool


class Versions(Answer):
    """The versions that a definition had, newest first."""

    id: str
    versions: list[VersionView]
