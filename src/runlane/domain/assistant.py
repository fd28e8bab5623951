"""Assistants and hosted graphs: the values that clients see. An assistant is a graph with config and context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, with_config

from runlane.domain.wire import WIRE, Timestamp


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class Assistant:
    """The current version of an assistant."""

    id: Annotated[str, Field(alias="assistant_id")]
    graph_id: str
    name: str
    description: str | None
    config: dict[str, Any]
    context: Any
    metadata: dict[str, Any]
    version: int
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    updated_at_us: Annotated[Timestamp, Field(alias="updated_at")]


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class AssistantVersion:
    """A stored version of an assistant."""

    assistant_id: str
    version: int
    graph_id: str
    name: str
    description: str | None
    config: dict[str, Any]
    context: Any
    metadata: dict[str, Any]
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]


@dataclass(frozen=True, slots=True)
class HostedGraph:
    """A graph as the newest worker loaded it. `error` is the reason why that worker could not load it.

    `schemas` has the keys input_schema, output_schema, state_schema, config_schema and context_schema. `drawing` has
    the nodes and edges of the graph by depth: key "0" without subgraphs, "1" with one level of them, and so on.
    `subgraphs` has the schemas of each subgraph by its namespace.
    """

    id: str
    description: str | None = None
    schemas: dict[str, Any] | None = None
    drawing: dict[str, Any] | None = None
    subgraphs: dict[str, Any] | None = None
    error: str | None = None
