"""The drawing of an orchestration as a Mermaid flowchart: its steps and the edges between them.

The drawing shows the execution order. Within the body of a loop, and in a branch that lists its steps, that is the
order of the list and not the next_step_id of each step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from runlane.definitions.graph import Graph, Transition, TransitionKind, graph_of
from runlane.definitions.schema.definition import Orchestration
from runlane.definitions.schema.step import LoopStep, ParallelStep, Step

# The target of edges that end the run.
END: Final = ""
_CHOOSING: Final = frozenset({"evaluator", "if_else", "switch"})
_SHOWN_CHARACTERS: Final = 60


class EdgeStyle(StrEnum):
    """The style of an edge."""

    PLAIN = "plain"
    # This edge is taken only after an error, an expiry, or too many repetitions.
    RARE = "rare"


class EdgeKind(StrEnum):
    """The reason why a run takes an edge."""

    NEXT = "next"
    ROUTE = "route"
    CASE = "case"
    BRANCH = "branch"
    BODY = "body"
    ERROR = "error"
    EXPIRY = "expiry"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge from a step to another step or to END. Edges with the same appearance are equal, whatever their kind."""

    source: str
    target: str
    label: str = ""
    style: EdgeStyle = EdgeStyle.PLAIN
    kind: EdgeKind = field(default=EdgeKind.NEXT, compare=False)


@dataclass(frozen=True, slots=True)
class Drawing:
    """Steps by id, beginning with the first step of a run, and the edges between them."""

    steps: dict[str, Step]
    edges: list[Edge]


def picture_of(orchestration: Orchestration) -> Drawing:
    """Return the steps and edges of an orchestration, without edges to steps that do not exist."""
    graph = graph_of(orchestration)
    edges: list[Edge] = []
    # `ordered` contains steps that follow each other in the order of a list. `ends` maps the steps of
    # a container to the target that follows a step without a next one.
    ordered: set[str] = set()
    ends: dict[str, str | None] = {}
    for step in graph.steps.values():
        match step:
            case ParallelStep():
                for number, branch in enumerate(step.parallel_branches, 1):
                    into = Edge(step.id, branch[0] if branch else END, f"branch {number}", kind=EdgeKind.BRANCH)
                    edges += _in_order(into, branch, step.next_step_id, graph)
                    ordered.update(branch if len(branch) > 1 else ())
                    barriers = {step.id, step.next_step_id or step.id}
                    ends |= dict.fromkeys(graph.reachable(branch, barriers), step.next_step_id)
            case LoopStep():
                into = Edge(step.id, step.loop_step_ids[0], _rounds(step), kind=EdgeKind.BODY)
                edges += _in_order(into, step.loop_step_ids, step.id, graph)
                ordered.update(step.loop_step_ids)
                ends |= dict.fromkeys(step.loop_step_ids, step.id)
            case _:
                pass
    for step_id, links in graph.links.items():
        for link in links:
            edges += _own_edges(link, graph.steps[step_id], ordered, ends)
    first = {orchestration.entry: graph.steps[orchestration.entry]} if orchestration.entry in graph.steps else {}
    known = {*graph.steps, END}
    return Drawing({**first, **graph.steps}, [edge for edge in dict.fromkeys(edges) if edge.target in known])


def mermaid(orchestration: Orchestration) -> str:
    """Return a Mermaid flowchart."""
    picture = picture_of(orchestration)
    names = {step_id: f"s{number}" for number, step_id in enumerate(picture.steps)} | {END: "done"}
    lines = ["flowchart TD"]
    lines += (f"    {names[step.id]}{_shape(step)}" for step in picture.steps.values())
    if any(edge.target == END for edge in picture.edges):
        lines.append('    done(["end"])')
    for edge in picture.edges:
        arrow = "-.->" if edge.style is EdgeStyle.RARE else "-->"
        label = f'|"{_escaped(edge.label)}"|' if edge.label else ""
        lines.append(f"    {names[edge.source]} {arrow}{label} {names[edge.target]}")
    return "\n".join(lines) + "\n"


def shorten(text: str) -> str:
    """Return text that is shortened for a drawing, without characters that cannot be drawn."""
    shortened = " ".join("".join(letter if letter.isprintable() else " " for letter in text[:1000]).split())
    return shortened if len(shortened) <= _SHOWN_CHARACTERS else f"{shortened[: _SHOWN_CHARACTERS - 1]}…"


def _own_edges(link: Transition, step: Step, ordered: set[str], ends: dict[str, str | None]) -> list[Edge]:
    """Return the edges for a transition that a step itself defines."""
    target = link.target if link.target is not None else ends.get(step.id) or END
    match link.kind:
        case TransitionKind.ROUTE:
            kind = EdgeKind.ROUTE if step.type == "evaluator" else EdgeKind.CASE
            return [Edge(step.id, target, link.label, kind=kind)]
        case TransitionKind.ERROR | TransitionKind.EXPIRY:
            return [Edge(step.id, target, link.label, EdgeStyle.RARE, EdgeKind(link.kind.value))]
        case TransitionKind.NEXT if step.type in _CHOOSING:
            return [Edge(step.id, target, "limit", EdgeStyle.RARE, EdgeKind.LIMIT)]
        case TransitionKind.NEXT if step.id in ordered or (target == END and link.target is None):
            return []
        case TransitionKind.NEXT if isinstance(step, ParallelStep) and step.id not in ends:
            # The step continues when its branches have joined, so the edges of the branches are drawn instead.
            return []
        case TransitionKind.NEXT:
            return [Edge(step.id, target)]
        case _:
            return []


def _in_order(into: Edge, steps: list[str], after: str | None, graph: Graph) -> list[Edge]:
    """Return the edge to the first step of a list, the edges between its steps, and the edge after the last step."""
    if not steps:
        return []
    found, owner = [into], into.source
    following: list[str | None] = [*steps[1:], after]
    for step_id, target in zip(steps, following, strict=True):
        known = graph.steps.get(step_id)
        follows = len(steps) > 1 or after == owner
        if follows and target is not None and known is not None and known.type not in _CHOOSING:
            found.append(Edge(step_id, target))
    return found


def _rounds(step: LoopStep) -> str:
    if step.loop_count is not None:
        return f"{step.loop_count} times"
    return "each" if step.for_each is not None else "while"


def _shape(step: Step) -> str:
    title = shorten(step.title)
    text = f'"{_escaped(title)}<br/><small>{step.type}</small>"' if title != step.type else f'"{_escaped(title)}"'
    if step.type in _CHOOSING:
        return f"{{{text}}}"
    if step.type == "human":
        return f"[/{text}/]"
    if step.type == "end":
        return f"([{text}])"
    if step.type in ("parallel", "loop", "orchestration"):
        return f"[[{text}]]"
    return f"[{text}]"


def _escaped(text: str) -> str:
    """Return text in which the special characters of Mermaid and browsers are escaped."""
    return "".join(f"#{ord(letter)};" if letter in "\"'<>#&|`\\{}[]()" else letter for letter in shorten(text))
