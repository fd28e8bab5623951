"""The graph of an orchestration as readers see it, and the state of a run on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, with_config

from runlane.domain.wire import WIRE, Timestamp


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class GraphNode:
    """One step of an orchestration."""

    id: str
    name: str
    type: str
    container: Annotated[str | None, Field(description="The innermost parallel or loop step that contains it.")] = None
    uses: Annotated[
        Mapping[str, str], Field(description="What it refers to: `agent`, `tool`, `orchestration` or `task`.")
    ] = field(default_factory=dict[str, str])
    x: Annotated[float | None, Field(description="Where an editor has placed it.")] = None
    y: float | None = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class GraphEdge:
    """A way from one step to another; without a target, to the end of the run."""

    source: str
    target: str | None
    kind: Annotated[
        str,
        Field(description="`next`, `route`, `case`, `branch`, `body`, `error`, `expiry` or `limit`."),
    ]
    label: str = ""
    back: Annotated[bool, Field(description="It leads back to an earlier step.")] = False


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class OrchestrationGraph:
    """The steps of an orchestration, first the one where a run begins, and the ways between them."""

    orchestration_id: str
    version: str | None
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class StepStanding:
    """The state of one step in a run."""

    executions: Annotated[int, Field(description="The number of executions that have started.")] = 0
    running: int = 0
    waiting: int = 0
    failed: int = 0
    outcome: Annotated[str, Field(description="From the latest execution.")] = "running"
    tries: Annotated[int, Field(description="The number of failed tries in all executions.")] = 0
    cost_usd: float | None = None
    last_path: Annotated[str, Field(description="The path of the latest execution.")] = ""
    started_at_us: Annotated[Timestamp | None, Field(alias="started_at", description="From the latest execution.")] = (
        None
    )
    ended_at_us: Annotated[Timestamp | None, Field(alias="ended_at")] = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class RunGraph:
    """The graph of the version that a run is pinned to, and the state of each step in the run."""

    run_id: str
    path: Annotated[str, Field(description="The step that runs this orchestration; empty for the run's own.")]
    graph: OrchestrationGraph
    steps: Annotated[
        Mapping[str, StepStanding], Field(description="By step id; steps that have not begun are missing.")
    ]
    taken: Annotated[
        tuple[int, ...], Field(description="The positions in `graph.edges` of the edges that the run has taken.")
    ]
