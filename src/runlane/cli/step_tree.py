"""The steps of a run as a tree, built from its events: which steps run, are done or ask, and how long each took.

It is pure: events go in, rows of text come out; the view adds colours. A long loop does not make the tree grow,
because only the newest of the finished parts of a step are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from runlane.cli.event_text import tries_of
from runlane.cli.output import format_seconds, shorten
from runlane.domain.events import Event, EventType, LiveType
from runlane.domain.ids import INSIDE
from runlane.domain.text import dump_json

if TYPE_CHECKING:
    from runlane.domain.views import LiveEvent

MAX_PARTS: Final = 12
MAX_NOTE: Final = 100
MAX_TOOLS: Final = 5
_MAX_TEXT: Final = 160


class StepState(StrEnum):
    """The state of a step, as the view prints it."""

    RUNS = "runs"
    RETRIES = "retries"
    ASKS = "asks"
    WAITS = "waits"
    DONE = "done"
    FAILED = "failed"


_ENDED: Final = frozenset({StepState.DONE, StepState.FAILED})


@dataclass(slots=True)
class Node:
    """One execution of a step, or one branch or round inside it."""

    label: str
    started_us: int
    state: StepState | None = None
    seconds: float | None = None
    tries: int = 0
    cost_usd: float | None = None
    note: str = ""
    text: str = ""
    length: int = 0
    branches: bool = False
    hidden: int = 0
    # The newest tool calls: name and arguments, or the failure.
    tools: list[str] = field(default_factory=list[str])
    parts: dict[str, Node] = field(default_factory=dict[str, "Node"])

    def current_state(self) -> StepState:
        """Return the state. A step that contains others has no events of its own, so its state follows from theirs."""
        if self.state is not None:
            return self.state
        inside = [part.current_state() for part in self.parts.values()]
        for state in (StepState.ASKS, StepState.WAITS, StepState.RETRIES, StepState.RUNS):
            if state in inside:
                return state
        return (
            StepState.FAILED
            if inside and inside[-1] is StepState.FAILED
            else StepState.DONE
            if inside
            else StepState.RUNS
        )


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One line and its indentation. `node` is None for a remark below a node."""

    depth: int
    text: str
    node: Node | None = None


class StepTree:
    """The steps of a run."""

    def __init__(self) -> None:
        self.title = "run"
        self.status = "queued"
        self.cost_usd = 0.0
        self._root = Node("", 0)

    def apply(self, event: Event | LiveEvent) -> None:
        """Update the tree from an event."""
        data = event.data
        if not isinstance(event, Event):
            if event.type == LiveType.TEXT and "path" in data:
                self._add_text(data)
            return
        self._apply_to_run(event)
        path = data.get("path")
        if isinstance(path, str) and (step := _step_path(path)):
            self._apply_to_step(event, self._node(step, event.at_us), data)
        elif event.type == EventType.HUMAN_INPUT_REQUIRED:
            self.status = f"asks: {_short(data.get('prompt'))}"

    def rows(self, now_us: int) -> Iterator[TreeRow]:
        """Yield the tree from top to bottom; running steps have their time up to now."""
        spent = f"  ${self.cost_usd:.4f}" if self.cost_usd else ""
        yield TreeRow(0, f"{self.title}: {self.status}{spent}")
        yield from _rows(self._root, 1, now_us)

    def _apply_to_run(self, event: Event) -> None:
        data = event.data
        match event.type:
            case EventType.QUEUED | EventType.APPROVED | EventType.KEY_FREE | EventType.REVIVED:
                self.status = str(data.get("status", event.type))
            case EventType.PICKED_UP:
                tries = tries_of(event)
                self.status = "running" if tries == 1 else f"running, attempt {tries}"
                _discard_text(self._root)
            case EventType.ORCHESTRATION_START:
                self.title = str(data.get("orchestration_name") or data.get("orchestration_id"))
            case EventType.PAUSED:
                self.status = "paused"
                for path in data.get("waiting_for") or ():
                    step = _step_path(str(path))
                    node = self._node(step, event.at_us) if step else None
                    if node is not None and node.state is StepState.RUNS:
                        node.state = StepState.WAITS
            case EventType.WORKER_LOST | EventType.HANDED_BACK:
                self.status = "queued again"
            case EventType.DONE:
                self.status = str(data.get("status", "done"))
                if self.status == "cancelled":
                    _mark_cancelled(self._root)
            case _:
                pass

    def _apply_to_step(self, event: Event, node: Node, data: dict[str, Any]) -> None:
        match event.type:
            case EventType.STEP_START:
                node.label = _label(str(data.get("step_name") or node.label), str(data["path"]))
                node.state, node.started_us = StepState.RUNS, event.at_us
            case EventType.STEP_COMPLETE:
                node.state, node.text = StepState.DONE, ""
                node.seconds = float(data.get("duration_seconds", (event.at_us - node.started_us) / 1_000_000))
                self._add_cost(node, data)
            case EventType.STEP_RETRY:
                node.state, node.tries, node.text = StepState.RETRIES, int(data.get("tries", 1)), ""
                node.note = _short(data.get("error"))
                self._add_cost(node, data)
            case EventType.STEP_ERROR:
                node.state, node.note, node.text = StepState.FAILED, _short(data.get("error")), ""
                self._add_cost(node, data)
            case EventType.HUMAN_INPUT_REQUIRED:
                node.state, node.note = StepState.ASKS, _short(data.get("prompt"))
            case EventType.RESUMED:
                node.state, node.note = StepState.RUNS, f"answered by {data['by']}" if data.get("by") else ""
            case EventType.PARALLEL_START:
                node.branches = True
            case EventType.PARALLEL_COMPLETE | EventType.LOOP_COMPLETE:
                node.state = StepState.DONE
                node.seconds = (event.at_us - node.started_us) / 1_000_000
            case EventType.LOOP_ITERATION:
                total = data.get("total")
                node.note = f"round {data.get('iteration')}{f' of {total}' if total else ''}"
            case EventType.ROUTING_DECISION | EventType.IF_DECISION | EventType.SWITCH_DECISION:
                node.note = f"-> {data.get('target_step_id') or 'end'}"
            case EventType.TOOL_EXECUTION:
                node.state, node.note = StepState.RUNS, f"calls {data.get('tool_name')}"
                _add_tool(node, f"{data.get('tool_name')} {_short(dump_json(data.get('args') or {}))}")
            case EventType.TOOL_RESULT if data.get("failed"):
                _add_tool(node, f"{data.get('tool_name')} failed: {_short(data.get('preview'))}")
            case EventType.MODEL_REQUEST:
                node.state, node.text, node.length = StepState.RUNS, "", 0
            case EventType.FINAL:
                node.note = _short(data.get("response"))
            case EventType.STEP_WARNING:
                node.note = _short(data.get("message"))
            case EventType.WAITING:
                node.note = _short(data.get("reason"))
            case _:
                pass

    def _add_cost(self, node: Node, data: dict[str, Any]) -> None:
        """Add the cost of a try."""
        cost = data.get("cost_usd")
        if cost is not None:
            node.cost_usd = (node.cost_usd or 0.0) + cost
            self.cost_usd += cost

    def _add_text(self, data: dict[str, Any]) -> None:
        node = self._node(str(data["path"]), 0)
        offset, text = int(data.get("offset", 0)), str(data.get("text", ""))
        if offset < node.length:
            # The message starts again, or a piece was sent twice.
            node.text = node.text[: max(0, len(node.text) - (node.length - offset))] if offset else ""
        node.text = (node.text + text)[-_MAX_TEXT:]
        node.length = offset + len(text)

    def _node(self, path: str, at_us: int) -> Node:
        node = self._root
        is_number = False
        for segment in path.split("/"):
            part = node.parts.get(segment)
            if part is None:
                if is_number and segment.isdecimal():
                    label = f"branch {int(segment) + 1}" if node.branches else f"round {segment}"
                else:
                    label = _label(segment.partition("~")[0].lstrip(">"), segment)
                part = node.parts[segment] = Node(label, at_us)
                _drop_oldest(node)
            is_number = not (is_number and segment.isdecimal())
            node = part
        return node


def _step_path(path: str) -> str:
    """Return the step of a path. A wait inside a step has an additional part after an exclamation mark."""
    return path.partition(INSIDE)[0].removesuffix("?")


def _rows(node: Node, depth: int, now_us: int) -> Iterator[TreeRow]:
    if node.hidden:
        yield TreeRow(depth, f"... {node.hidden} earlier")
    for part in node.parts.values():
        yield TreeRow(depth, _describe(part, now_us), part)
        for call in part.tools:
            yield TreeRow(depth + 1, f"[{call}]")
        text = " ".join(part.text.split())
        if text and part.current_state() not in _ENDED:
            yield TreeRow(depth + 1, text)
        yield from _rows(part, depth + 1, now_us)


def _describe(node: Node, now_us: int) -> str:
    state = node.current_state()
    words = [node.label]
    if node.seconds is not None:
        words.append(format_seconds(node.seconds))
    elif state in (StepState.RUNS, StepState.RETRIES) and node.started_us and not node.parts:
        words.append(format_seconds(max(0, now_us - node.started_us) / 1_000_000))
    if node.tries:
        words.append(f"{node.tries} {'retry' if node.tries == 1 else 'retries'}")
    if node.cost_usd:
        words.append(f"${node.cost_usd:.4f}")
    if node.note:
        words.append(node.note)
    return "  ".join(words)


def _label(name: str, path: str) -> str:
    times = path.rpartition("/")[2].partition("~")[2]
    return f"{name} (time {times})" if times else name


def _short(value: Any) -> str:
    return shorten(value, MAX_NOTE)


def _add_tool(node: Node, call: str) -> None:
    node.tools = [*node.tools, call][-MAX_TOOLS:]


def _drop_oldest(node: Node) -> None:
    """Drop the oldest finished parts while there are too many."""
    while len(node.parts) > MAX_PARTS:
        old = next((key for key, part in node.parts.items() if part.current_state() in _ENDED), None)
        if old is None:
            return
        del node.parts[old]
        node.hidden += 1


def _discard_text(node: Node) -> None:
    """Discard the text of unfinished steps, because a new attempt begins."""
    for part in node.parts.values():
        part.text, part.length = "", 0
        _discard_text(part)


def _mark_cancelled(node: Node) -> None:
    for part in node.parts.values():
        if part.state is not None and part.state not in _ENDED:
            part.state, part.note = StepState.FAILED, "cancelled"
        _mark_cancelled(part)
