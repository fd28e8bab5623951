"""Print the demonstration: each event as one line, and text of models live, piece by piece.

One line is open at a time. The first writer gets it; text of other writers is buffered until it is free, so that
parallel branches do not mix. A line that was interrupted continues below, after three dots.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any, Literal

from runlane import Event, LiveEvent

SLOW = ("agent", "llm", "task")  # step types that get a line when they start; the others complete at once, or ask
VERBS = {"text": "writes", "thinking": "thinks"}

Writer = tuple[str, str, str]  # the step's path, the answer, and "text" or "thinking"

started = time.monotonic()


@dataclass(slots=True)
class _Buffer:
    """Text of an open answer, and how many characters of it are printed."""

    text: str = ""
    printed: int = 0


class Console:
    """Prints lines, and ends the open line before another one starts."""

    def __init__(self) -> None:
        self.started_paths: set[str] = set()
        self._open: Writer | None = None
        self._buffers: dict[Writer, _Buffer] = {}
        self._done: set[Writer] = set()

    def print(self, text: str = "") -> None:
        """Print a line and flush it."""
        self._close()
        _put(f"{text}\n")

    def log(self, source: str, text: str, depth: int = 0) -> None:
        """Print a line with its time and source, indented by the depth of the step."""
        self.print(_prefix(source, depth) + text)

    def printed(self, path: str) -> int:
        """Return how many characters of the step's open answer are printed."""
        return max((buffer.printed for (at, *_), buffer in self._buffers.items() if at == path), default=0)

    def write(self, event: LiveEvent) -> None:
        """Print a piece of a model's answer.

        A piece at offset 0 restarts its answer, because the former worker is dead. A piece after a gap is dropped: the
        stream was opened during the answer, and its stored event has the whole text.
        """
        if event.type not in VERBS:
            return
        data = event.data
        writer: Writer = (data["path"], data["answer"], event.type)
        if writer in self._done:
            return
        buffer = self._buffers.setdefault(writer, _Buffer())
        if data["offset"] == 0 and buffer.text:
            if self._open == writer:
                self._close()
            self._buffers[writer] = buffer = _Buffer()
        if data["offset"] != len(buffer.text):
            return
        buffer.text += data["text"]
        if self._open in (None, writer):
            self._flush(writer, buffer)

    def finish(self, path: str, answer: str, kind: Literal["text", "thinking"], text: str) -> None:
        """Print the rest of an answer that is complete and recorded."""
        writer: Writer = (path, answer, kind)
        self._done.add(writer)
        buffer = self._buffers.pop(writer, _Buffer())
        buffer.text = text
        if buffer.printed < len(text):
            if self._open != writer:
                self._close()
            self._flush(writer, buffer)
        if self._open == writer:
            self._close()

    def _flush(self, writer: Writer, buffer: _Buffer) -> None:
        if self._open is None:
            path, _, kind = writer
            continued = "... " if buffer.printed else ""
            _put(_prefix(name_of(path), depth_of(path)) + f"{VERBS[kind]}: {continued}")
            self._open = writer
        _put(buffer.text[buffer.printed :].replace("\n", " "))
        buffer.printed = len(buffer.text)

    def _close(self) -> None:
        if self._open is not None:
            self._open = None
            _put("\n")


def print_event(console: Console, event: Event) -> None:
    """Print one event as a line of the tree of steps."""
    data = event.data
    path = str(data.get("path", ""))
    source, depth = name_of(path), depth_of(path)
    match event.type:
        case "queued":
            console.log(source, "accepted and stored")
        case "worker_picked_up":
            console.log(source, f"attempt {event.attempt}, worker {data['worker_id']}")
        case "worker_lost":
            console.log(source, f"worker lost, {data['status']} again")
        case "step_start" if data["step_type"] in SLOW:
            verb = "starts again" if path in console.started_paths else "starts"
            console.log(source, f"{verb} ({data['step_type']})", depth)
            console.started_paths.add(path)
        case "step_complete":
            console.log(source, f"completed in {data['duration_seconds']:.1f} s", depth)
        case "step_warning":
            console.log(source, data["message"], depth)
        case "step_error":
            console.log(source, f"failed: {data['error']}", depth)
        case "parallel_start":
            console.log(source, f"{data['branch_count']} branches in parallel", depth)
        case "model_response":
            console.finish(path, data["answer"], "thinking", data.get("thinking", ""))
            console.finish(path, data["answer"], "text", data["text"])
        case "waiting":
            console.log(source, f"waits: {data['reason']}", depth)
        case "tool_execution":
            console.log(source, f"calls {data['tool_name']} {_json(data['args'])}", depth)
        case "tool_result":
            console.log(source, f"receives {data['preview']}", depth)
        case "routing_decision":
            console.log(source, f"chooses {data['decision']}, next step {data['target_step_id']}", depth)
        case "switch_decision":
            console.log(source, f"{data['value']}, next step {data['target_step_id']}", depth)
        case "human_input_required":
            context: dict[str, Any] = data["agent_context"] if "!" in path else {}
            arguments = [_json(context["arguments"])] if "arguments" in context else []
            console.log(source, " ".join(["asks:", data["prompt"], *arguments]), depth)
        case "paused":
            console.log(source, "paused, waits without a worker or a connection")
        case "resumed":
            console.log(source, "answered", depth)
        case "done":
            console.log(source, str(data["status"]))
        case _:
            pass  # `runlane runs tail` prints every event


def name_of(path: str) -> str:
    """Return the step of a path. A question inside a step has its key after an exclamation mark."""
    return path.partition("!")[0].rpartition("/")[2] or "run"


def depth_of(path: str) -> int:
    """Return the number of enclosing steps."""
    return path.partition("!")[0].count("/") // 2


def _prefix(source: str, depth: int) -> str:
    return f"  {time.monotonic() - started:5.1f} s  {'  ' * depth + source:<16}  "


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _put(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
