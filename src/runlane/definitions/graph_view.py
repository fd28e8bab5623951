"""The graph of an orchestration for the API: the drawing of `runlane graph` as nodes and edges."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from runlane.definitions.graph import Graph, graph_of
from runlane.definitions.mermaid import END, Edge, picture_of
from runlane.definitions.schema.definition import Orchestration
from runlane.definitions.schema.step import LoopStep, ParallelStep, Step
from runlane.domain.graph_view import GraphEdge, GraphNode, OrchestrationGraph

_USES = {"agent_id": "agent", "forced_tool": "tool", "orchestration_id": "orchestration", "task": "task"}


def graph_view(orchestration: Orchestration, version: str | None = None) -> OrchestrationGraph:
    """Return the graph of an orchestration."""
    picture = picture_of(orchestration)
    containers = _containers(graph_of(orchestration))
    back = _back_edges(list(picture.steps), picture.edges)
    return OrchestrationGraph(
        orchestration.id,
        version,
        tuple(_node(step, containers.get(step.id)) for step in picture.steps.values()),
        tuple(
            GraphEdge(edge.source, edge.target if edge.target != END else None, edge.kind, edge.label, edge in back)
            for edge in picture.edges
        ),
    )


def _node(step: Step, container: str | None) -> GraphNode:
    uses = {word: value for name, word in _USES.items() if isinstance(value := getattr(step, name, None), str)}
    return GraphNode(step.id, step.title, step.type, container, uses, step.position_x, step.position_y)


def _containers(graph: Graph) -> Mapping[str, str]:
    """Return the innermost container of each step in a container, which is the one with the fewest steps."""
    inside: list[tuple[str, Collection[str]]] = []
    for step in graph.steps.values():
        match step:
            case ParallelStep():
                barriers = {step.id, step.next_step_id or step.id}
                inside.append((step.id, graph.reachable([one for b in step.parallel_branches for one in b], barriers)))
            case LoopStep():
                inside.append((step.id, [one for one in step.loop_step_ids if one in graph.steps]))
            case _:
                pass
    found: dict[str, str] = {}
    for owner, steps in sorted(inside, key=lambda item: -len(item[1])):
        found.update(dict.fromkeys(steps, owner))
    return found


def _back_edges(step_ids: Sequence[str], edges: Sequence[Edge]) -> set[Edge]:
    """Return the edges that lead back to a step on the path to them."""
    ways: dict[str, list[Edge]] = {step_id: [] for step_id in step_ids}
    for edge in edges:
        ways[edge.source].append(edge)
    found: set[Edge] = set()
    done: set[str] = set()
    for start in step_ids:
        # The search is depth-first without recursion, because a definition may have hundreds of steps in a row.
        way: dict[str, int] = {}
        stack = [start] if start not in done else []
        while stack:
            current = stack[-1]
            position = way.setdefault(current, 0)
            if position == len(ways.get(current, ())):
                done.add(current)
                way.pop(current)
                stack.pop()
                continue
            way[current] = position + 1
            edge = ways[current][position]
            if edge.target in way:
                found.add(edge)
            elif edge.target not in done and edge.target != END:
                stack.append(edge.target)
    return found
