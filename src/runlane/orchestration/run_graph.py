"""The graph of a run: the graph of its pinned version, with the state of each step in this run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from runlane.definitions.graph_view import graph_view
from runlane.definitions.schema.definition import Orchestration
from runlane.definitions.schema.step import OrchestrationStep
from runlane.domain.graph_view import GraphEdge, RunGraph, StepStanding
from runlane.domain.run import ORCHESTRATION, Run
from runlane.errors import NotFound
from runlane.orchestration.agent_run import root_of
from runlane.orchestration.pinned import PinnedDefinitions
from runlane.store.definitions import load_pinned
from runlane.store.orchestration.timeline import read_standings
from runlane.store.sql.database import Database

_INNER = "/>"


async def read_run_graph(database: Database, run: Run, path: str = "") -> RunGraph:
    """Return the graph of a run or, with `path`, of the inner orchestration that the step at this path runs."""
    if run.plan is None or not run.has_steps:
        raise NotFound(
            f"Run {run.id} executes {run.target}, which has no steps. Use a run of an orchestration or agent."
        )
    pinned = PinnedDefinitions.of(await load_pinned(database, run.tenant, run.plan["pins"]))
    root = root_of(run.target, run.input or {}, pinned)
    orchestration = _inner(root, path, pinned)
    version = run.plan["pins"].get(f"{ORCHESTRATION}{orchestration.id}") or run.definition
    # A large graph takes up to a second.
    graph = await asyncio.to_thread(graph_view, orchestration, version)
    builder = await read_standings(database, run)
    standings = builder.standings(path)
    chosen = {(step_id, target) for step_path, step_id, target in builder.decisions if _belongs(step_path, path)}
    taken = tuple(number for number, edge in enumerate(graph.edges) if _is_taken(edge, standings, chosen))
    return RunGraph(run.id, path, graph, standings, taken)


def _inner(root: Orchestration, path: str, pinned: PinnedDefinitions) -> Orchestration:
    """Return the orchestration that the step at a path runs."""
    found = root
    for part in path.split(_INNER) if path else ():
        step_id = part.rpartition("/")[2].partition("~")[0]
        step = next((step for step in found.steps if step.id == step_id), None)
        inner = pinned.orchestrations.get(step.orchestration_id) if isinstance(step, OrchestrationStep) else None
        if inner is None:
            raise NotFound(
                f'No step "{path[:200]}" of the run runs an inner orchestration. Use the path of one that does.'
            )
        found = inner
    return found


def _belongs(step_path: str, path: str) -> bool:
    """Return whether a step belongs to the orchestration at a path itself, not to a nested one."""
    if path:
        if not step_path.startswith(f"{path}{_INNER}"):
            return False
        step_path = step_path[len(path) + len(_INNER) :]
    return _INNER not in step_path


def _is_taken(edge: GraphEdge, standings: Mapping[str, StepStanding], chosen: set[tuple[str, str]]) -> bool:
    source = standings.get(edge.source)
    reached = edge.target is None or edge.target in standings
    if source is None or not reached:
        return False
    match edge.kind:
        case "route" | "case":
            return (edge.source, edge.target or "") in chosen
        case "error":
            return source.failed > 0
        case "expiry" | "limit":
            return False
        case _:
            return edge.target is not None
