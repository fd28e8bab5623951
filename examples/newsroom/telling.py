"""The demonstration's voice: each event as one line, and what models write, live, piece by piece.

One line is open at a time. Whoever writes first has it; the others are kept until it is free, so that branches which
write at the same time do not mix. A line that is interrupted goes on below, after three dots.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any, Literal

from runlane import Event, LiveEvent

SLOW = ("agent", "llm", "task")  # worth a line when they begin; the others are done at once, or ask
VERBS = {"text": "writes", "thinking": "thinks"}

Writer = tuple[str, str, str]  # the step's path, the answer, and whether it is text or thought

started = time.monotonic()


@dataclass(slots=True)
class _Writing:
    """An answer that is being written, and how much of it is on the screen."""

    text: str = ""
    shown: int = 0


class Pen:
    """Writes lines, and finishes the one that is open before another begins."""

    def __init__(self) -> None:
        self.begun: set[str] = set()
        self._open: Writer | None = None
        self._writings: dict[Writer, _Writing] = {}
        self._done: set[Writer] = set()

    def say(self, text: str = "") -> None:
        """A line, at once, also into a pipe."""
        self._close()
        _put(f"{text}\n")

    def tell(self, who: str, what: str, depth: int = 0) -> None:
        """A line about something that happened now; what is inside a step stands further right."""
        self.say(_begin(who, depth) + what)

    def shown(self, path: str) -> int:
        """How many characters of what this step writes now are on the screen."""
        return max((writing.shown for (at, *_), writing in self._writings.items() if at == path), default=0)

    def write(self, event: LiveEvent) -> None:
        """A piece of what a model writes. One at 0 begins its answer anew: the worker before is gone.

        What comes after a gap is left to the whole: nobody listened yet when the answer began.
        """
        if event.type not in VERBS:
            return
        data = event.data
        writer: Writer = (data["path"], data["answer"], event.type)
        if writer in self._done:
            return
        writing = self._writings.setdefault(writer, _Writing())
        if data["offset"] == 0 and writing.text:
            if self._open == writer:
                self._close()
            self._writings[writer] = writing = _Writing()
        if data["offset"] != len(writing.text):
            return
        writing.text += data["text"]
        if self._open in (None, writer):
            self._show(writer, writing)

    def finish(self, path: str, answer: str, kind: Literal["text", "thinking"], text: str) -> None:
        """The whole of an answer is there, and recorded. What was not shown of it is shown now."""
        writer: Writer = (path, answer, kind)
        self._done.add(writer)
        writing = self._writings.pop(writer, _Writing())
        writing.text = text
        if writing.shown < len(text):
            if self._open != writer:
                self._close()
            self._show(writer, writing)
        if self._open == writer:
            self._close()

    def _show(self, writer: Writer, writing: _Writing) -> None:
        if self._open is None:
            path, _, kind = writer
            again = "... " if writing.shown else ""
            _put(_begin(name_of(path), depth_of(path)) + f"{VERBS[kind]}: {again}")
            self._open = writer
        _put(writing.text[writing.shown :].replace("\n", " "))
        writing.shown = len(writing.text)

    def _close(self) -> None:
        if self._open is not None:
            self._open = None
            _put("\n")


def show(pen: Pen, event: Event) -> None:
    """One event as a line of the tree: a step stands under what it is in."""
    data = event.data
    path = str(data.get("path", ""))
    who, depth = name_of(path), depth_of(path)
    match event.type:
        case "queued":
            pen.tell(who, "accepted: it is stored, and from now on it will end")
        case "worker_picked_up":
            pen.tell(who, f"attempt {event.attempt}, worker {data['worker_id']}")
        case "worker_lost":
            pen.tell(who, f"its worker is gone; {data['status']} again")
        case "step_start" if data["step_type"] in SLOW:
            pen.tell(who, f"{'is taken up again' if path in pen.begun else 'begins'} ({data['step_type']})", depth)
            pen.begun.add(path)
        case "step_complete":
            pen.tell(who, f"done after {data['duration_seconds']:.1f} s", depth)
        case "step_warning":
            pen.tell(who, data["message"], depth)
        case "step_error":
            pen.tell(who, f"failed: {data['error']}", depth)
        case "parallel_start":
            pen.tell(who, f"{data['branch_count']} branches at once", depth)
        case "model_response":
            pen.finish(path, data["answer"], "thinking", data.get("thinking", ""))
            pen.finish(path, data["answer"], "text", data["text"])
        case "waiting":
            pen.tell(who, f"waits: {data['reason']}", depth)
        case "tool_execution":
            pen.tell(who, f"calls {data['tool_name']} {_short(data['args'])}", depth)
        case "tool_result":
            pen.tell(who, f"gets {data['preview']}", depth)
        case "routing_decision":
            pen.tell(who, f"says {data['decision']}: on to {data['target_step_id']}", depth)
        case "switch_decision":
            pen.tell(who, f"{data['value']}: on to {data['target_step_id']}", depth)
        case "human_input_required":
            about: dict[str, Any] = data["agent_context"] if "!" in path else {}
            shown = [_short(about["arguments"])] if "arguments" in about else []
            pen.tell(who, " ".join(["asks:", data["prompt"], *shown]), depth)
        case "paused":
            pen.tell(who, "paused: it waits and holds no worker and no connection")
        case "resumed":
            pen.tell(who, "somebody answered", depth)
        case "done":
            pen.tell(who, str(data["status"]))
        case _:
            pass  # `runlane runs tail` shows them all


def name_of(path: str) -> str:
    """The step of a path; what is asked inside it comes after an exclamation mark."""
    return path.partition("!")[0].rpartition("/")[2] or "run"


def depth_of(path: str) -> int:
    """How many steps are around it."""
    return path.partition("!")[0].count("/") // 2


def _begin(who: str, depth: int) -> str:
    return f"  {time.monotonic() - started:5.1f} s  {'  ' * depth + who:<16}  "


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _put(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
