"""An agent's answer as it is printed: text as it comes, thoughts dim, a line for each tool.

Pieces are live only, so some may be missing: the reader joined late, or a worker was lost in the middle. A reader that
joins gets the text so far as one piece at offset 0, so pieces behind a gap are held back for a moment; if the gap is
not filled, printing begins behind it. The event that closes an answer has all of it, and what is missing is printed
then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TextIO

from runlane.cli.terminal import DIM, Output, one_line
from runlane.domain.events import Event, EventType
from runlane.domain.text import dump_json

if TYPE_CHECKING:
    from runlane.client import LiveEvent

_SHOWN: Final = 200
# How long pieces behind a gap are held back.
GAP_SECONDS: Final = 1.0


@dataclass(slots=True)
class _Text:
    """What was printed of one text of an answer, from `start` on, and the pieces that wait behind a gap."""

    start: int = 0
    said: str = ""
    held: dict[int, str] = field(default_factory=dict[int, str])
    held_since: float | None = None

    def take(self, offset: int, text: str, now: float) -> str:
        """Return what can be printed after this piece."""
        if offset > self.start + len(self.said):
            self.held[offset] = text
            self.held_since = now if self.held_since is None else self.held_since
            if now - self.held_since < GAP_SECONDS or self.said:
                return ""
            self.start = min(self.held)
            return f"... {self._take_held()}"
        if offset < self.start:
            return ""
        if offset == 0 and not (text.startswith(self.said) or self.said.startswith(text)):
            # The model was asked again.
            self.said = text
            return f"\n{text}"
        return self._add(offset, text) + self._take_held()

    def _add(self, offset: int, text: str) -> str:
        fresh = text[self.start + len(self.said) - offset :]
        self.said += fresh
        return fresh

    def _take_held(self) -> str:
        fresh = ""
        for offset in sorted(self.held):
            if offset <= self.start + len(self.said):
                fresh += self._add(offset, self.held.pop(offset))
        return fresh


def for_terminal(out: TextIO, *, colours: bool, live: bool) -> Speech:
    """The speech that fits: live for a person, and for a pipe only what was said in the end."""
    return Speech(out, colours=colours, live=live)


class Speech:
    """Prints one turn. It has the ways of a View, so that questions can be asked in between."""

    def __init__(self, out: TextIO, *, colours: bool, live: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = Output(out, colours=colours)
        self._live = live
        self._clock = clock
        # What was printed of each open answer by the kind of text; which ones are closed; the kind that the line is at.
        self._open: dict[str, dict[str, _Text]] = {}
        self._closed: set[str] = set()
        self._at: str | None = None
        self._last = ""
        self._attempt = 0

    def show(self, event: Event | LiveEvent) -> None:
        """Print what the event adds."""
        if not self._live:
            return
        if not isinstance(event, Event):
            if event.type in ("text", "thinking"):
                self._piece(event.type, event.data)
            return
        match event.type:
            case "worker_picked_up" if event.attempt > 1 and self._attempt:
                self._void()
            case "model_response":
                self._close(event.data)
            case "tool_execution":
                args = dump_json(event.data.get("args") or {})
                self._line(f"[{event.data.get('tool_name')} {_short(args)}]")
            case EventType.TOOL_RESULT if event.data.get("failed"):
                self._line(f"[{event.data.get('tool_name')} failed: {_short(str(event.data.get('preview', '')))}]")
            case "step_warning":
                self._line(f"[{_short(str(event.data.get('message', '')))}]")
            case _:
                pass
        self._attempt = max(self._attempt, event.attempt)

    def end(self, answer: Any) -> None:
        """Print the answer, unless it stands there already."""
        text = answer if isinstance(answer, str) else "" if answer is None else dump_json(answer)
        if text and text != self._last:
            self._break()
            self._out.write(text)
            self._at = "text"
        self._break()
        self._out.flush()

    def say(self, lines: Sequence[str]) -> None:
        """Print something beside the answer."""
        self._break()
        for line in lines:
            self._out.write(f"{one_line(line)}\n")
        self._out.flush()

    def pause(self) -> None:
        """Leave the terminal to a question."""
        self._break()
        self._out.flush()

    def go_on(self) -> None:
        """Nothing to do: nothing is painted over."""

    def _piece(self, kind: str, data: dict[str, Any]) -> None:
        answer = str(data.get("answer", ""))
        if answer in self._closed:
            # A repeat for another reader that was on its way when the answer was stored.
            return
        text = self._open.setdefault(answer, {}).setdefault(kind, _Text())
        self._write(kind, text.take(int(data.get("offset", 0)), str(data.get("text", "")), self._clock()))

    def _close(self, data: dict[str, Any]) -> None:
        answer, text = str(data.get("answer", "")), str(data.get("text", ""))
        printed = self._open.pop(answer, {}).get("text", _Text())
        self._closed.add(answer)
        said = printed.said
        if text.startswith(said) and printed.start == 0:
            self._write("text", text[len(said) :])
        else:
            self._break()
            self._write("text", text)
        if text:
            self._last = text
        self._break()

    def _void(self) -> None:
        if self._open:
            self._line("[the worker was lost; the answer begins again]")
        self._open.clear()

    def _write(self, kind: str, text: str) -> None:
        if not text:
            return
        if self._at not in (None, kind):
            self._break()
        self._at = kind
        self._out.write(text, DIM if kind == "thinking" else None)
        self._out.flush()

    def _line(self, text: str) -> None:
        self._break()
        self._out.write(one_line(text), DIM)
        self._out.write("\n")
        self._out.flush()

    def _break(self) -> None:
        if self._at is not None:
            self._out.write("\n")
            self._at = None


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN else flat[: _SHOWN - 3] + "..."
