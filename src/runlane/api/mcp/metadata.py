"""Metadata of the MCP server for OAuth clients: the protected resource (RFC 9728), and the challenge.

Runlane issues no tokens: its keys are the bearer tokens. A client that is configured with a key does not read this.
RUNLANE_MCP_AUTHORIZATION_SERVERS names an authorization server that returns keys of Runlane as access tokens.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import Request

from runlane.domain.access import Permission
from runlane.settings import Settings

MCP_PATH: Final = "/mcp"
METADATA_PATH: Final = "/.well-known/oauth-protected-resource"


def resource_metadata(request: Request, settings: Settings) -> dict[str, Any]:
    """Return the metadata of the MCP server as a protected resource."""
    body: dict[str, Any] = {
        "resource": f"{_base(request, settings)}{MCP_PATH}",
        "resource_name": "Runlane",
        "bearer_methods_supported": ["header"],
        "scopes_supported": [permission.value for permission in Permission],
    }
    servers = [url.strip() for url in (settings.mcp_authorization_servers or "").split(",") if url.strip()]
    if servers:
        body["authorization_servers"] = servers
    return body


def challenge(request: Request, settings: Settings) -> str:
    """Return the header WWW-Authenticate for a request to the MCP server without a valid key."""
    return f'Bearer resource_metadata="{_base(request, settings)}{METADATA_PATH}{MCP_PATH}"'


def _base(request: Request, settings: Settings) -> str:
    return (settings.public_url or str(request.base_url)).rstrip("/")
