"""Print the answer of an agent: text as it arrives, thinking dim, a line for each tool call.

Pieces of text are live events, so some may be missing: the reader joined late, or a worker was lost in the middle. A
new reader receives the text so far as one piece at offset 0, so pieces after a gap are held back for a moment; if the
gap is not filled, printing begins after it. The event at the end of an answer has the whole text, and the missing part
is printed then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TextIO

from runlane.cli.output import shorten
from runlane.cli.terminal import DIM, Output, one_line
from runlane.domain.events import Event, EventType, LiveType
from runlane.domain.text import dump_json

if TYPE_CHECKING:
    from runlane.domain.views import LiveEvent

_MAX_TEXT: Final = 200
# How long pieces after a gap are held back.
GAP_SECONDS: Final = 1.0


@dataclass(slots=True)
class _PrintedText:
    """Printed text, which begins at `start`, and the pieces held back after a gap."""

    start: int = 0
    printed: str = ""
    held: dict[int, str] = field(default_factory=dict[int, str])
    held_since: float | None = None

    def add(self, offset: int, text: str, now: float) -> str:
        """Return the text to print after this piece."""
        if offset > self.start + len(self.printed):
            self.held[offset] = text
            self.held_since = now if self.held_since is None else self.held_since
            if now - self.held_since < GAP_SECONDS or self.printed:
                return ""
            self.start = min(self.held)
            return f"... {self._release_held()}"
        if offset < self.start:
            return ""
        if offset == 0 and not (text.startswith(self.printed) or self.printed.startswith(text)):
            # The model was called again.
            self.printed = text
            return f"\n{text}"
        return self._append(offset, text) + self._release_held()

    def _append(self, offset: int, text: str) -> str:
        new = text[self.start + len(self.printed) - offset :]
        self.printed += new
        return new

    def _release_held(self) -> str:
        new = ""
        for offset in sorted(self.held):
            if offset <= self.start + len(self.printed):
                new += self._append(offset, self.held.pop(offset))
        return new


class AnswerPrinter:
    """Prints one turn. It is a RunView, so that questions can be asked during the turn."""

    def __init__(self, out: TextIO, *, colours: bool, live: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = Output(out, colours=colours)
        self._live = live
        self._clock = clock
        # The text of each open answer by its type; the closed answers; the type of text on the current line.
        self._open: dict[str, dict[str, _PrintedText]] = {}
        self._closed: set[str] = set()
        self._line_type: str | None = None
        self._last_text = ""
        self._attempt = 0

    def show(self, event: Event | LiveEvent) -> None:
        """Print the new part of an event."""
        if not self._live:
            return
        if not isinstance(event, Event):
            if event.type in (LiveType.TEXT, LiveType.THINKING):
                self._print_piece(event.type, event.data)
            return
        match event.type:
            case EventType.PICKED_UP if event.attempt > 1 and self._attempt:
                self._discard_open()
            case EventType.MODEL_RESPONSE:
                self._close(event.data)
            case EventType.TOOL_EXECUTION:
                args = dump_json(event.data.get("args") or {})
                self._print_note(f"[{event.data.get('tool_name')} {_short(args)}]")
            case EventType.TOOL_RESULT if event.data.get("failed"):
                self._print_note(
                    f"[{event.data.get('tool_name')} failed: {_short(str(event.data.get('preview', '')))}]"
                )
            case EventType.STEP_WARNING:
                self._print_note(f"[{_short(str(event.data.get('message', '')))}]")
            case _:
                pass
        self._attempt = max(self._attempt, event.attempt)

    def end(self, answer: Any) -> None:
        """Print the answer, unless it is printed already."""
        text = answer if isinstance(answer, str) else "" if answer is None else dump_json(answer)
        if text and text != self._last_text:
            self._end_line()
            self._out.write(text)
            self._line_type = LiveType.TEXT
        self._end_line()
        self._out.flush()

    def print_lines(self, lines: Sequence[str]) -> None:
        """Print lines that are not part of the answer."""
        self._end_line()
        for line in lines:
            self._out.write(f"{one_line(line)}\n")
        self._out.flush()

    def pause(self) -> None:
        """End the line, so that a question can be asked."""
        self._end_line()
        self._out.flush()

    def resume(self) -> None:
        """Do nothing: this view never redraws."""

    def _print_piece(self, kind: str, data: dict[str, Any]) -> None:
        answer = str(data.get("answer", ""))
        if answer in self._closed:
            # The piece repeats text for another reader and was sent before the answer was stored.
            return
        text = self._open.setdefault(answer, {}).setdefault(kind, _PrintedText())
        self._write(kind, text.add(int(data.get("offset", 0)), str(data.get("text", "")), self._clock()))

    def _close(self, data: dict[str, Any]) -> None:
        answer, text = str(data.get("answer", "")), str(data.get("text", ""))
        text_so_far = self._open.pop(answer, {}).get(LiveType.TEXT, _PrintedText())
        self._closed.add(answer)
        if text.startswith(text_so_far.printed) and text_so_far.start == 0:
            self._write(LiveType.TEXT, text[len(text_so_far.printed) :])
        else:
            self._end_line()
            self._write(LiveType.TEXT, text)
        if text:
            self._last_text = text
        self._end_line()

    def _discard_open(self) -> None:
        if self._open:
            self._print_note("[the worker was lost; the answer begins again]")
        self._open.clear()

    def _write(self, kind: str, text: str) -> None:
        if not text:
            return
        if self._line_type not in (None, kind):
            self._end_line()
        self._line_type = kind
        self._out.write(text, DIM if kind == LiveType.THINKING else None)
        self._out.flush()

    def _print_note(self, text: str) -> None:
        self._end_line()
        self._out.write(one_line(text), DIM)
        self._out.write("\n")
        self._out.flush()

    def _end_line(self) -> None:
        if self._line_type is not None:
            self._out.write("\n")
            self._line_type = None


def _short(text: str) -> str:
    return shorten(text, _MAX_TEXT)
