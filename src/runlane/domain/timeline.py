"""The timeline of a run: spans of its steps as a tree, built from step records and events.

It is pure: records and events go in, spans come out. Records are complete and have the outcome of a step. Events have
its start, what runs now, and the model and tool calls inside a step. Where events were deleted, a step is shown to
begin its duration before its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import Field, with_config

from runlane.domain.events import EventType
from runlane.domain.graph_view import StepStanding
from runlane.domain.ids import INSIDE
from runlane.domain.timeline_facts import CALL_EVENTS, EventFacts, PartsSummary, StepFacts
from runlane.domain.wire import WIRE, Timestamp

# A loop or parallel step with more parts than this is one span; its parts are read with `parent`.
MAX_PARTS: Final = 20
_GROUPS: Final = {"parallel": "branch", "loop": "round", "for_each": "round"}


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class Span:
    """One execution of a step, a branch or round of one, a question, or a call inside a step."""

    path: Annotated[str, Field(description="Identifies the span; of a step, the path of its record.")]
    parent: Annotated[str, Field(description="The span around it; empty at the top.")]
    depth: int
    kind: Annotated[str, Field(description="The type of the step; or `branch`, `round`, `question`, `model`, `tool`.")]
    name: str
    step_id: str | None
    started_at_us: Annotated[Timestamp | None, Field(alias="started_at")]
    ended_at_us: Annotated[Timestamp | None, Field(alias="ended_at", description="Null while it runs or waits.")]
    attempt: int
    outcome: Annotated[
        str,
        Field(
            description="`running`, `waiting`, `retrying`, `done`, `handled`, `failed`; or `abandoned` if the run "
            "ended meanwhile."
        ),
    ]
    tries: Annotated[int, Field(description="Tries that failed.")]
    cost_usd: Annotated[float | None, Field(description="With everything inside it.")]
    tokens: int
    children: Annotated[int, Field(description="Spans directly inside it.")]
    child_outcomes: Annotated[Mapping[str, int], Field(description="How many of them have each outcome.")]
    collapsed: Annotated[bool, Field(description="Its children are left out: read them with `parent`.")]


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans from top to bottom, each before those inside it."""

    run_id: str
    parent: str
    spans: tuple[Span, ...]
    next_cursor: Annotated[str | None, Field(description="Pass it as `cursor` for the next children of `parent`.")]
    complete: Annotated[bool, Field(description="False if the run has more steps than are read.")]


@dataclass(slots=True)
class _Node:
    path: str
    name: str
    kind: str = "group"
    step_id: str | None = None
    started_us: int | None = None
    ended_us: int | None = None
    attempt: int = 0
    outcome: str | None = None
    tries: int = 0
    cost_usd: float | None = None
    tokens: int = 0
    parts: dict[str, _Node] = field(default_factory=dict[str, "_Node"])
    # Set if its parts are left out.
    summary: PartsSummary | None = None


class TimelineBuilder:
    """Takes events in their order, then records; then returns spans."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._root = _Node("", "")
        self._open_calls: dict[tuple[str, str], _Node] = {}
        # The path of each step that has chosen, its id, and the id of the chosen step.
        self.decisions: set[tuple[str, str, str]] = set()
        for path, kind in kinds.items():
            self._node(path).kind = kind

    def add_event(self, event: EventFacts) -> None:
        """Take an event with a path."""
        path = event.data.get("path")
        if not isinstance(path, str) or not path:
            return
        if INSIDE in path or event.type in (EventType.HUMAN_INPUT_REQUIRED, EventType.RESUMED):
            self._question(event, path)
        elif event.type in CALL_EVENTS:
            self._call(event, self._node(path))
        else:
            self._step(event, self._node(path))

    def add_record(self, record: StepFacts) -> None:
        """Take the record of a step that has ended, or that is retried."""
        node = self._node(record.path)
        node.kind, node.step_id, node.attempt = record.kind, record.step_id, record.attempt
        node.outcome = record.outcome or "done"
        node.tries, node.cost_usd, node.tokens = record.tries, record.cost_usd, record.tokens
        if node.outcome != "retrying":
            node.ended_us = record.ended_at_us
        if node.started_us is None:
            node.started_us = record.ended_at_us - (record.duration_us or 0)

    def add_summary(self, path: str, summary: PartsSummary) -> None:
        """Take the parts of a span as one value: they are left out."""
        node = self._node(path)
        node.summary, node.parts = summary, {}
        node.cost_usd = summary.cost_usd if node.cost_usd is None else node.cost_usd
        node.tokens = node.tokens or summary.tokens
        node.started_us = summary.started_us if node.started_us is None else node.started_us
        if node.ended_us is None and node.kind in ("branch", "round", "group"):
            node.ended_us = summary.ended_us
        if node.outcome in (None, "running") and summary.outcomes.get("waiting"):
            node.outcome = "waiting"
        elif node.outcome is None and node.ended_us is not None:
            node.outcome = "failed" if summary.outcomes.get("failed") else "done"

    def finish(self, ended_at_us: int | None) -> None:
        """Complete the ends that no event reports: those of branches and rounds, and all ends if the run has ended."""
        _complete(self._root, ended_at_us)

    def spans(self, parent: str, *, offset: int, limit: int) -> tuple[list[Span], int | None]:
        """Return the spans inside `parent`, at most `limit`, and the offset of its next child if there is one."""
        node = self._find(parent)
        if node is None:
            return [], None
        found: list[Span] = []
        for position, child in enumerate(_ordered(node)[offset:], offset):
            if len(found) >= limit:
                return found, position
            found.append(_span(child, parent, 0))
            room = limit - len(found)
            inside = list(_descend(child, 1, room + 1)) if _opens(child) else []
            # A step that does not fit as a whole is left out, so that no part of a step is missing without an
            # indication.
            if len(inside) <= room:
                found += inside
            else:
                found[-1] = _span(child, parent, 0, collapsed=True)
        return found, None

    def standings(self, prefix: str) -> dict[str, StepStanding]:
        """Return the standing of each step of the orchestration at `prefix`, without steps of inner orchestrations."""
        root = self._find(prefix.removesuffix("/")) if prefix else self._root
        found: dict[str, StepStanding] = {}
        for node in _own_steps(root, nested=bool(prefix)) if root is not None else ():
            found[node.step_id or ""] = _standing(found.get(node.step_id or "", StepStanding()), node)
        return found

    def _find(self, path: str) -> _Node | None:
        node: _Node | None = self._root
        for segment in path.split("/") if path else ():
            node = None if node is None else node.parts.get(segment)
        return node

    def _node(self, path: str) -> _Node:
        node = self._root
        for segment in path.split("/"):
            part = node.parts.get(segment)
            if part is None:
                name = segment.partition("~")[0].lstrip(">")
                part = node.parts[segment] = _Node(f"{node.path}/{segment}" if node.path else segment, name)
                if segment.isdecimal() and node.path:
                    part.kind = _GROUPS.get(node.kind, "group")
            node = part
        return node

    def _step(self, event: EventFacts, node: _Node) -> None:
        data = event.data
        match event.type:
            case EventType.STEP_START:
                node.kind, node.name = str(data.get("step_type") or node.kind), str(data.get("step_name") or node.name)
                self._begin(node, event)
            case EventType.STEP_COMPLETE | EventType.PARALLEL_COMPLETE | EventType.LOOP_COMPLETE:
                node.outcome, node.ended_us = "done", event.at_us
            case EventType.STEP_RETRY:
                node.outcome, node.tries = "retrying", int(data.get("tries", node.tries + 1))
            case EventType.STEP_ERROR:
                node.outcome, node.ended_us = "failed", event.at_us
            case EventType.IF_DECISION | EventType.SWITCH_DECISION | EventType.ROUTING_DECISION:
                self.decisions.add((node.path, str(data.get("orch_step_id")), str(data.get("target_step_id") or "")))
            case EventType.PARALLEL_START:
                node.kind = "parallel"
                self._begin(node, event)
            case EventType.BRANCH_START:
                part = self._node(f"{node.path}/{data.get('branch_index')}")
                part.kind = "branch"
                self._begin(part, event)
            case EventType.LOOP_ITERATION:
                node.kind = "loop" if node.kind == "group" else node.kind
                self._begin(node, event)
                part = self._node(f"{node.path}/{data.get('iteration')}")
                part.kind = "round"
                self._begin(part, event)
            case _:
                pass

    def _begin(self, node: _Node, event: EventFacts) -> None:
        step_id = event.data.get("orch_step_id")
        if node.kind not in ("branch", "round") and isinstance(step_id, str):
            node.step_id = step_id
        node.started_us = event.at_us if node.started_us is None else node.started_us
        node.attempt = event.attempt
        if node.ended_us is None:
            node.outcome = "running"

    def _question(self, event: EventFacts, path: str) -> None:
        step = self._node(path.partition(INSIDE)[0].removesuffix("?")) if not path.startswith(INSIDE) else self._root
        name = path if INSIDE in path else f"{path}{INSIDE}question"
        if event.type == EventType.HUMAN_INPUT_REQUIRED:
            prompt = event.data.get("prompt")
            node = step.parts.setdefault(name, _Node(name, str(prompt or "question")[:200], "question"))
            node.started_us, node.attempt, node.outcome = event.at_us, event.attempt, "waiting"
        elif event.type == EventType.RESUMED and name in step.parts:
            step.parts[name].outcome, step.parts[name].ended_us = "done", event.at_us

    def _call(self, event: EventFacts, step: _Node) -> None:
        data = event.data
        model = event.type in (EventType.MODEL_REQUEST, EventType.MODEL_RESPONSE)
        key = f"turn {data.get('turn')}" if model else str(data.get("call_id"))
        known = self._open_calls.get((step.path, key))
        if event.type in (EventType.MODEL_REQUEST, EventType.TOOL_EXECUTION):
            path = f"{step.path}{INSIDE}{'model' if model else 'tool'}/{len(step.parts)}"
            name = str(data.get("model") or "model") if model else str(data.get("tool_name"))
            node = known or step.parts.setdefault(path, _Node(path, name, "model" if model else "tool"))
            node.started_us, node.attempt, node.outcome = event.at_us, event.attempt, "running"
            self._open_calls[step.path, key] = node
        elif known is not None:
            known.ended_us = event.at_us
            known.outcome = "failed" if data.get("failed") else "done"
            known.name = str(data.get("model") or known.name) if model else known.name
            known.cost_usd = data.get("cost_usd")
            known.tokens = int(data.get("tokens_in") or 0) + int(data.get("tokens_out") or 0)
            del self._open_calls[step.path, key]


def _own_steps(node: _Node, *, nested: bool) -> Iterator[_Node]:
    """Yield the steps below a node in the order of their start. The steps of an inner orchestration begin with ">"."""
    for segment, part in sorted(node.parts.items(), key=lambda item: item[1].started_us or 0):
        if segment.startswith(">") != nested:
            continue
        if part.step_id is not None and part.kind not in ("branch", "round", "question", "model", "tool"):
            yield part
        yield from _own_steps(part, nested=False)


def _standing(known: StepStanding, node: _Node) -> StepStanding:
    costs = [cost for cost in (known.cost_usd, node.cost_usd) if cost is not None]
    return StepStanding(
        executions=known.executions + 1,
        running=known.running + (node.outcome in ("running", "retrying")),
        waiting=known.waiting + (node.outcome == "waiting"),
        failed=known.failed + (node.outcome in ("failed", "handled")),
        outcome=node.outcome or "running",
        tries=known.tries + node.tries,
        cost_usd=sum(costs) if costs else None,
        last_path=node.path,
        started_at_us=node.started_us,
        ended_at_us=node.ended_us,
    )


def _complete(node: _Node, ended_at_us: int | None) -> None:
    parts = list(node.parts.values())
    for part in parts:
        _complete(part, ended_at_us)
    if not node.path:
        return
    starts = [part.started_us for part in parts if part.started_us is not None]
    if node.started_us is None and starts:
        node.started_us = min(starts)
    if node.ended_us is None and parts and node.kind in ("branch", "round", "group"):
        ends = [part.ended_us for part in parts]
        if all(end is not None for end in ends):
            node.ended_us = max(end for end in ends if end is not None)
            failed = any(part.outcome == "failed" for part in parts)
            node.outcome = "failed" if failed else "done"
    if node.ended_us is None and ended_at_us is not None:
        node.ended_us, node.outcome = ended_at_us, "abandoned"
    if node.outcome is None or (node.outcome == "running" and any(part.outcome == "waiting" for part in parts)):
        waiting = any(part.outcome == "waiting" for part in parts)
        node.outcome = "waiting" if waiting else "running"
    if node.cost_usd is None and node.kind not in ("model", "tool"):
        costs = [part.cost_usd for part in parts if part.cost_usd is not None]
        node.cost_usd = sum(costs) if costs else None
        node.tokens = node.tokens or sum(part.tokens for part in parts)


def _ordered(node: _Node) -> list[_Node]:
    return sorted(node.parts.values(), key=lambda part: place_of(part.path, part.started_us))


def place_of(path: str, started_us: int | None) -> tuple[bool, int]:
    """Return the place of a span beside others: branches and rounds by their number, others by their start."""
    above, _, segment = path.rpartition("/")
    if above and segment.isdecimal():
        return False, int(segment)
    return started_us is None, started_us or 0


def _opens(node: _Node) -> bool:
    """Return whether the children of a span are shown with it."""
    return bool(node.parts) and len(node.parts) <= MAX_PARTS


def _descend(node: _Node, depth: int, most: int) -> Iterator[Span]:
    for part in _ordered(node):
        if most <= 0:
            return
        yield _span(part, node.path, depth)
        most -= 1
        if _opens(part):
            for span in _descend(part, depth + 1, most):
                yield span
                most -= 1


def _span(node: _Node, parent: str, depth: int, *, collapsed: bool = False) -> Span:
    summary = node.summary
    if summary is None:
        outcomes = dict(sorted(Counter(part.outcome or "running" for part in node.parts.values()).items()))
    else:
        outcomes = dict(summary.outcomes)
    return Span(
        path=node.path,
        parent=parent,
        depth=depth,
        kind=node.kind,
        name=node.name,
        step_id=node.step_id,
        started_at_us=node.started_us,
        ended_at_us=node.ended_us,
        attempt=node.attempt,
        outcome=node.outcome or "running",
        tries=node.tries,
        cost_usd=node.cost_usd,
        tokens=node.tokens,
        children=len(node.parts) if summary is None else summary.parts,
        child_outcomes=outcomes,
        collapsed=collapsed or summary is not None or (bool(node.parts) and not _opens(node)),
    )


def build_timeline(
    records: Iterable[StepFacts],
    events: Sequence[EventFacts],
    ended_at_us: int | None,
    summaries: Mapping[str, PartsSummary] | None = None,
    kinds: Mapping[str, str] | None = None,
) -> TimelineBuilder:
    """Return a builder that has taken these parts of a run. `kinds` has the kind of each step without events."""
    builder = TimelineBuilder(kinds or {})
    for event in events:
        builder.add_event(event)
    for record in records:
        builder.add_record(record)
    for path, summary in (summaries or {}).items():
        builder.add_summary(path, summary)
    builder.finish(ended_at_us)
    return builder
