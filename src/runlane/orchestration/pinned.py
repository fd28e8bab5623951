"""The definitions that a run is pinned to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runlane.definitions.schema.definition import Agent, Definition, McpServer, Orchestration, Tool


@dataclass(frozen=True, slots=True)
class PinnedDefinitions:
    """The definitions that a run is pinned to, by kind."""

    orchestrations: Mapping[str, Orchestration]
    agents: Mapping[str, Agent]
    tools: Mapping[str, Tool]
    servers: Mapping[str, McpServer]

    @classmethod
    def of(cls, definitions: Mapping[str, Definition]) -> PinnedDefinitions:
        """Group definitions by kind."""
        found = definitions.values()
        return cls(
            {item.id: item for item in found if isinstance(item, Orchestration)},
            {item.id: item for item in found if isinstance(item, Agent)},
            {item.id: item for item in found if isinstance(item, Tool)},
            {item.id: item for item in found if isinstance(item, McpServer)},
        )
