"""Bundles: requests to export and import, and the result."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from runlane.api.schemas.definitions import TAKE_OVER, DefinitionWarning, Source
from runlane.api.schemas.fields import Name, RequestModel, ResponseModel
from runlane.catalog.bundle_format import RequiredSecret

_BUNDLE: dict[str, Any] = {
    "runlane_export": True,
    "version": "1.0",
    "orchestrations": [
        {"id": "hello", "steps": [{"id": "say", "type": "print", "print_content": "Hello, {{user_input}}"}]}
    ],
}


class BundleSelection(RequestModel):
    """Select definitions by kind.

    If all kinds are null, everything is selected; otherwise a null kind selects nothing.
    """

    orchestrations: list[Name] | None = Field(default=None, max_length=10_000)
    agents: list[Name] | None = Field(default=None, max_length=10_000)
    tools: list[Name] | None = Field(default=None, max_length=10_000)
    mcp_servers: list[Name] | None = Field(default=None, max_length=10_000)
    schedules: list[Name] | None = Field(default=None, max_length=10_000)
    triggers: list[Name] | None = Field(default=None, max_length=10_000)


class ExportRequest(BundleSelection):
    """The definitions to export. Default: all."""

    model_config = ConfigDict(json_schema_extra={"examples": [{}]})

    with_used: bool = Field(default=True, description="Include everything that the selected ones use.")
    tenant: Name | None = Field(
        default=None, description="The tenant, for platform admins. Other keys use their own tenant."
    )


class Bundle(ResponseModel):
    """Definitions of all kinds, with references instead of secrets."""

    model_config = ConfigDict(json_schema_extra={"examples": [_BUNDLE]})

    runlane_export: bool
    version: str
    exported_at: str
    has_python_tools: bool
    orchestrations: list[dict[str, Any]]
    agents: list[dict[str, Any]]
    mcp_servers: list[dict[str, Any]]
    custom_tools: list[dict[str, Any]]
    schedules: list[dict[str, Any]]
    triggers: list[dict[str, Any]]


class ImportRequest(BundleSelection):
    """A bundle, and the definitions to import from it. Default: all."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"bundle": _BUNDLE, "dry_run": True}]})

    bundle: dict[str, Any] = Field(description="A bundle of Runlane, or of a product with the same format.")
    keep_existing: bool = Field(default=False, description="Skip existing definitions instead of changing them.")
    source: Source | None = Field(
        default=None,
        description="The project that owns the definitions. Default: the first sync that contains them.",
    )
    take_over: bool = TAKE_OVER
    dry_run: bool = Field(default=False, description="Only report what would change.")
    tenant: Name | None = Field(
        default=None, description="The tenant, for platform admins. Other keys use their own tenant."
    )


class ImportItem(ResponseModel):
    """The result for one definition of the bundle."""

    kind: str = Field(examples=["orchestration"])
    id: str = Field(examples=["hello"])
    status: str = Field(description="imported, unchanged or skipped.", examples=["imported"])
    reason: str | None = Field(description="Why the definition was skipped.")
    version: str | None


class ImportAnswer(ResponseModel):
    """The result of an import, or of a dry run."""

    dry_run: bool
    imported: int
    unchanged: int
    skipped: int
    items: list[ImportItem]
    secrets: list[RequiredSecret]
    warnings: list[DefinitionWarning]
