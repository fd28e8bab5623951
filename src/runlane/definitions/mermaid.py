"""An orchestration as a picture: its steps and the ways between them, as Mermaid text.

What is drawn is what a run does: within a loop's body, and in a branch that lists its steps, the order of the list
counts and not each step's own next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from runlane.definitions.graph import Graph, Transition, TransitionKind, graph_of
from runlane.definitions.schema.definition import Orchestration
from runlane.definitions.schema.step import LoopStep, ParallelStep, Step

# Where ways lead that end the run by choice.
END: Final = ""
_CHOOSING: Final = frozenset({"evaluator", "if_else", "switch"})
_SHOWN_CHARACTERS: Final = 60


class EdgeStyle(StrEnum):
    """How a way is drawn."""

    PLAIN = "plain"
    # Only when something goes wrong, is too late, or was repeated too often.
    RARE = "rare"


@dataclass(frozen=True, slots=True)
class Edge:
    """A way from a step to another, or to the END."""

    source: str
    target: str
    label: str = ""
    style: EdgeStyle = EdgeStyle.PLAIN


@dataclass(frozen=True, slots=True)
class Drawing:
    """What there is to draw: steps by id, first the one where a run begins, and the ways between them."""

    steps: dict[str, Step]
    ways: list[Edge]


def picture_of(orchestration: Orchestration) -> Drawing:
    """The steps and ways of an orchestration; links to steps that are not there are left out."""
    graph = graph_of(orchestration)
    ways: list[Edge] = []
    # Steps that follow each other in the order of a list; and where a line goes that has no next step inside something.
    ordered: set[str] = set()
    ends: dict[str, str | None] = {}
    for step in graph.steps.values():
        match step:
            case ParallelStep():
                for number, branch in enumerate(step.parallel_branches, 1):
                    ways += _in_order(step.id, branch, f"branch {number}", step.next_step_id, graph)
                    ordered.update(branch if len(branch) > 1 else ())
                    barriers = {step.id, step.next_step_id or step.id}
                    ends |= dict.fromkeys(graph.reachable(branch, barriers), step.next_step_id)
            case LoopStep():
                ways += _in_order(step.id, step.loop_step_ids, _rounds(step), step.id, graph)
                ordered.update(step.loop_step_ids)
                ends |= dict.fromkeys(step.loop_step_ids, step.id)
            case _:
                pass
    for step_id, links in graph.links.items():
        for link in links:
            ways += _ways(link, graph.steps[step_id], ordered, ends)
    first = {orchestration.entry: graph.steps[orchestration.entry]} if orchestration.entry in graph.steps else {}
    known = {*graph.steps, END}
    return Drawing({**first, **graph.steps}, [way for way in dict.fromkeys(ways) if way.target in known])


def mermaid(orchestration: Orchestration) -> str:
    """A Mermaid flowchart."""
    picture = picture_of(orchestration)
    names = {step_id: f"s{number}" for number, step_id in enumerate(picture.steps)} | {END: "done"}
    lines = ["flowchart TD"]
    lines += (f"    {names[step.id]}{_shape(step)}" for step in picture.steps.values())
    if any(way.target == END for way in picture.ways):
        lines.append('    done(["end"])')
    for way in picture.ways:
        arrow = "-.->" if way.style is EdgeStyle.RARE else "-->"
        label = f'|"{_escaped(way.label)}"|' if way.label else ""
        lines.append(f"    {names[way.source]} {arrow}{label} {names[way.target]}")
    return "\n".join(lines) + "\n"


def shown(text: str) -> str:
    """Text that is short enough for a picture, without what cannot be drawn."""
    told = " ".join("".join(letter if letter.isprintable() else " " for letter in text[:1000]).split())
    return told if len(told) <= _SHOWN_CHARACTERS else f"{told[: _SHOWN_CHARACTERS - 1]}…"


def _ways(link: Transition, step: Step, ordered: set[str], ends: dict[str, str | None]) -> list[Edge]:
    """What is drawn for a link that a step has itself."""
    target = link.target if link.target is not None else ends.get(step.id) or END
    match link.kind:
        case TransitionKind.ROUTE:
            return [Edge(step.id, target, link.label)]
        case TransitionKind.ERROR | TransitionKind.EXPIRY:
            return [Edge(step.id, target, link.label, EdgeStyle.RARE)]
        case TransitionKind.NEXT if step.type in _CHOOSING:
            return [Edge(step.id, target, "limit", EdgeStyle.RARE)]
        case TransitionKind.NEXT if step.id in ordered or (target == END and link.target is None):
            return []
        case TransitionKind.NEXT if isinstance(step, ParallelStep) and step.id not in ends:
            # It goes on when its branches have met, so their ways are drawn and not its own.
            return []
        case TransitionKind.NEXT:
            return [Edge(step.id, target)]
        case _:
            return []


def _in_order(owner: str, steps: list[str], label: str, after: str | None, graph: Graph) -> list[Edge]:
    """The way in, those between the steps of a list, and the way out of the last one."""
    if not steps:
        return []
    found = [Edge(owner, steps[0], label)]
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
    title = shown(step.title)
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
    """Text without what Mermaid or a browser would take for its own."""
    return "".join(f"#{ord(letter)};" if letter in "\"'<>#&|`\\{}[]()" else letter for letter in shown(text))
