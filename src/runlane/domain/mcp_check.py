"""The result of a connection to an MCP server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field


@dataclass(frozen=True, slots=True)
class McpToolSummary:
    """A tool as agents see it."""

    name: Annotated[str, Field(description="With the name of its server.", examples=["github__search"])]
    description: str
    effect: Annotated[str, Field(description="As the definition of the server declares it.")]
    input_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class McpCheck:
    """Whether an MCP server can be used, with its tools, or with the reason why not."""

    server: str
    usable: bool
    tools: tuple[McpToolSummary, ...]
    error: Annotated[str | None, Field(description="The code of the failure, such as `mcp_unreachable`.")]
    message: Annotated[str | None, Field(description="Why it cannot be used.")]
