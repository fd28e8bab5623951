"""The agent card of A2A: the name of the agent, its URL and the content that it accepts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

PROTOCOL_VERSION: Final = "1.0"
TEXT: Final = "text/plain"
JSON: Final = "application/json"


def agent_card(agent_id: str, body: Mapping[str, Any], version: str, url: str) -> dict[str, Any]:
    """Return the card of the agent at this URL. The card does not contain the agent's instructions."""
    name = str(body.get("name") or agent_id)
    description = str(body.get("description") or f"The agent {agent_id}.")
    return {
        "name": name,
        "description": description,
        "version": version,
        "supportedInterfaces": [
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": PROTOCOL_VERSION},
        ],
        "capabilities": {"streaming": True, "pushNotifications": True, "extendedAgentCard": False},
        "defaultInputModes": [TEXT, JSON],
        "defaultOutputModes": [TEXT],
        "skills": [{"id": agent_id, "name": name, "description": description, "tags": ["agent"]}],
        "securitySchemes": {
            "key": {"httpAuthSecurityScheme": {"scheme": "Bearer", "description": "A key of Runlane."}},
        },
        "securityRequirements": [{"schemes": {"key": {"list": []}}}],
    }
