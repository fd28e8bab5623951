"""The steps of a run as a tree, folded from its events: what runs, what is done, what asks, and how long it took.

It is pure: events go in, rows of text come out, and whoever shows them decides on colours. A long loop does not make
it grow, since of the finished parts of a step only the newest are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from runlane.cli.story import tries_of
from runlane.domain.events import Event, EventType
from runlane.domain.ids import INSIDE
from runlane.domain.text import dump_json

if TYPE_CHECKING:
    from runlane.client import LiveEvent

MAX_PARTS: Final = 12
MAX_NOTE: Final = 100
MAX_TOOLS: Final = 5
_SHOWN_TEXT: Final = 160


class State(StrEnum):
    """Where a step stands."""

    RUNS = "runs"
    RETRIES = "retries"
    ASKS = "asks"
    WAITS = "waits"
    DONE = "done"
    FAILED = "failed"


_OVER: Final = frozenset({State.DONE, State.FAILED})


@dataclass(slots=True)
class Node:
    """One execution of a step, or one branch or round inside it."""

    label: str
    begun_us: int
    state: State | None = None
    seconds: float | None = None
    tries: int = 0
    cost_usd: float | None = None
    note: str = ""
    text: str = ""
    length: int = 0
    branches: bool = False
    hidden: int = 0
    # The newest calls of tools: name, arguments, and how a failed one failed.
    tools: list[str] = field(default_factory=list[str])
    parts: dict[str, Node] = field(default_factory=dict[str, "Node"])

    def standing(self) -> State:
        """Its own state; of a step that consists of others nothing is told, so theirs."""
        if self.state is not None:
            return self.state
        inside = [part.standing() for part in self.parts.values()]
        for state in (State.ASKS, State.WAITS, State.RETRIES, State.RUNS):
            if state in inside:
                return state
        return State.FAILED if inside and inside[-1] is State.FAILED else State.DONE if inside else State.RUNS


@dataclass(frozen=True, slots=True)
class Row:
    """One line: how deep it is inside, and what it says. `node` is None for a remark below a node."""

    depth: int
    text: str
    node: Node | None = None


class StepTree:
    """Everything that is known of a run's steps."""

    def __init__(self) -> None:
        self.title = "run"
        self.status = "queued"
        self.cost_usd = 0.0
        self._root = Node("", 0)

    def take(self, event: Event | LiveEvent) -> None:
        """Learn from an event."""
        data = event.data
        if not isinstance(event, Event):
            if event.type == "text" and "path" in data:
                self._write(data)
            return
        self._run_level(event)
        path = data.get("path")
        if isinstance(path, str) and (step := _step_path(path)):
            self._step_level(event, self._node(step, event.at_us), data)
        elif event.type == "human_input_required":
            self.status = f"asks: {_short(data.get('prompt'))}"

    def rows(self, now_us: int) -> Iterator[Row]:
        """The tree from top to bottom; running steps are shown with their time up to now."""
        spent = f"  ${self.cost_usd:.4f}" if self.cost_usd else ""
        yield Row(0, f"{self.title}: {self.status}{spent}")
        yield from _rows(self._root, 1, now_us)

    def _run_level(self, event: Event) -> None:
        data = event.data
        match event.type:
            case "queued" | "approved" | "key_free" | "revived":
                self.status = str(data.get("status", event.type))
            case "worker_picked_up":
                tries = tries_of(event)
                self.status = "running" if tries == 1 else f"running, attempt {tries}"
                _withdraw(self._root)
            case "orchestration_start":
                self.title = str(data.get("orchestration_name") or data.get("orchestration_id"))
            case EventType.PAUSED:
                self.status = "paused"
                for path in data.get("waiting_for") or ():
                    step = _step_path(str(path))
                    node = self._node(step, event.at_us) if step else None
                    if node is not None and node.state is State.RUNS:
                        node.state = State.WAITS
            case "worker_lost" | "handed_back":
                self.status = "queued again"
            case "done":
                self.status = str(data.get("status", "done"))
                if self.status == "cancelled":
                    _stop(self._root)
            case _:
                pass

    def _step_level(self, event: Event, node: Node, data: dict[str, Any]) -> None:
        match event.type:
            case "step_start":
                node.label = _label(str(data.get("step_name") or node.label), str(data["path"]))
                node.state, node.begun_us = State.RUNS, event.at_us
            case "step_complete":
                node.state, node.text = State.DONE, ""
                node.seconds = float(data.get("duration_seconds", (event.at_us - node.begun_us) / 1_000_000))
                self._pay(node, data)
            case "step_retry":
                node.state, node.tries, node.text = State.RETRIES, int(data.get("tries", 1)), ""
                node.note = _short(data.get("error"))
                self._pay(node, data)
            case "step_error":
                node.state, node.note, node.text = State.FAILED, _short(data.get("error")), ""
                self._pay(node, data)
            case "human_input_required":
                node.state, node.note = State.ASKS, _short(data.get("prompt"))
            case "resumed":
                node.state, node.note = State.RUNS, f"answered by {data['by']}" if data.get("by") else ""
            case "parallel_start":
                node.branches = True
            case EventType.PARALLEL_COMPLETE | "loop_complete":
                node.state = State.DONE
                node.seconds = (event.at_us - node.begun_us) / 1_000_000
            case "loop_iteration":
                total = data.get("total")
                node.note = f"round {data.get('iteration')}{f' of {total}' if total else ''}"
            case EventType.ROUTING_DECISION | EventType.IF_DECISION | "switch_decision":
                node.note = f"-> {data.get('target_step_id') or 'end'}"
            case "tool_execution":
                node.state, node.note = State.RUNS, f"calls {data.get('tool_name')}"
                _add_tool(node, f"{data.get('tool_name')} {_short(dump_json(data.get('args') or {}))}")
            case EventType.TOOL_RESULT if data.get("failed"):
                _add_tool(node, f"{data.get('tool_name')} failed: {_short(data.get('preview'))}")
            case EventType.MODEL_REQUEST:
                node.state, node.text, node.length = State.RUNS, "", 0
            case "final":
                node.note = _short(data.get("response"))
            case "step_warning":
                node.note = _short(data.get("message"))
            case EventType.WAITING:
                node.note = _short(data.get("reason"))
            case _:
                pass

    def _pay(self, node: Node, data: dict[str, Any]) -> None:
        """Every try has a cost of its own."""
        cost = data.get("cost_usd")
        if cost is not None:
            node.cost_usd = (node.cost_usd or 0.0) + cost
            self.cost_usd += cost

    def _write(self, data: dict[str, Any]) -> None:
        node = self._node(str(data["path"]), 0)
        offset, text = int(data.get("offset", 0)), str(data.get("text", ""))
        if offset < node.length:
            # A message that begins again, or a piece that came twice.
            node.text = node.text[: max(0, len(node.text) - (node.length - offset))] if offset else ""
        node.text = (node.text + text)[-_SHOWN_TEXT:]
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
                _forget(node)
            is_number = not (is_number and segment.isdecimal())
            node = part
        return node


def _step_path(path: str) -> str:
    """The step that a path belongs to: what waits inside a step has more after an exclamation mark."""
    return path.partition(INSIDE)[0].removesuffix("?")


def _rows(node: Node, depth: int, now_us: int) -> Iterator[Row]:
    if node.hidden:
        yield Row(depth, f"... {node.hidden} earlier")
    for part in node.parts.values():
        yield Row(depth, _line(part, now_us), part)
        for call in part.tools:
            yield Row(depth + 1, f"[{call}]")
        text = " ".join(part.text.split())
        if text and part.standing() not in _OVER:
            yield Row(depth + 1, text)
        yield from _rows(part, depth + 1, now_us)


def _line(node: Node, now_us: int) -> str:
    state = node.standing()
    words = [node.label]
    if node.seconds is not None:
        words.append(_time(node.seconds))
    elif state in (State.RUNS, State.RETRIES) and node.begun_us and not node.parts:
        words.append(_time(max(0, now_us - node.begun_us) / 1_000_000))
    if node.tries:
        words.append(f"{node.tries} {'retry' if node.tries == 1 else 'retries'}")
    if node.cost_usd:
        words.append(f"${node.cost_usd:.4f}")
    if node.note:
        words.append(node.note)
    return "  ".join(words)


def _time(seconds: float) -> str:
    return (
        f"{seconds * 1000:.0f} ms"
        if seconds < 1
        else f"{seconds:.1f} s"
        if seconds < 120
        else f"{seconds / 60:.1f} min"
    )


def _label(name: str, path: str) -> str:
    times = path.rpartition("/")[2].partition("~")[2]
    return f"{name} (time {times})" if times else name


def _short(value: Any) -> str:
    text = " ".join(str("" if value is None else value).split())
    return text if len(text) <= MAX_NOTE else text[: MAX_NOTE - 3] + "..."


def _add_tool(node: Node, call: str) -> None:
    node.tools = [*node.tools, call][-MAX_TOOLS:]


def _forget(node: Node) -> None:
    """Drop the oldest finished part when there are too many."""
    while len(node.parts) > MAX_PARTS:
        old = next((key for key, part in node.parts.items() if part.standing() in _OVER), None)
        if old is None:
            return
        del node.parts[old]
        node.hidden += 1


def _withdraw(node: Node) -> None:
    """A new attempt begins: what an unfinished step has said so far is void."""
    for part in node.parts.values():
        part.text, part.length = "", 0
        _withdraw(part)


def _stop(node: Node) -> None:
    for part in node.parts.values():
        if part.state is not None and part.state not in _OVER:
            part.state, part.note = State.FAILED, "cancelled"
        _stop(part)
