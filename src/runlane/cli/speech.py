"""An agent's answer as it is printed: text as it comes, thoughts dim, a line for each tool.

Pieces are live only, so some may be missing: whoever joined late, or a worker that was lost in the middle. The event
that closes an answer has all of it, and what was not printed yet is printed then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from runlane.model.event import Event
from runlane.model.text import dump_json

if TYPE_CHECKING:
    from runlane.client import LiveEvent

_SHOWN: Final = 200


def for_terminal(out: TextIO, *, colours: bool, live: bool) -> Speech:
    """The speech that fits: live for a person, and for a pipe only what was said in the end."""
    return Speech(out, colours=colours, live=live)


class Speech:
    """Prints one turn. It has the ways of a View, so that questions can be asked in between."""

    def __init__(self, out: TextIO, *, colours: bool, live: bool) -> None:
        self._out = out
        self._colours = colours
        self._live = live
        # What was printed of each answer, and which kind of text the line is at.
        self._said: dict[str, str] = {}
        self._thought: dict[str, int] = {}
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
            case "tool_result" if event.data.get("failed"):
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
            self._out.write(f"{line}\n")
        self._out.flush()

    def pause(self) -> None:
        """Leave the terminal to a question."""
        self._break()
        self._out.flush()

    def go_on(self) -> None:
        """Nothing to do: nothing is painted over."""

    def _piece(self, kind: str, data: dict[str, Any]) -> None:
        key, offset, text = str(data.get("answer", "")), int(data.get("offset", 0)), str(data.get("text", ""))
        if kind == "thinking":
            if offset == self._thought.get(key, 0):
                self._thought[key] = offset + len(text)
                self._write("thinking", text)
            return
        said = self._said.get(key, "")
        # A hole, or something twice: the closing event repairs it.
        if offset == len(said):
            self._said[key] = said + text
            self._write("text", text)

    def _close(self, data: dict[str, Any]) -> None:
        key, text = str(data.get("answer", "")), str(data.get("text", ""))
        said = self._said.pop(key, "")
        if text.startswith(said):
            self._write("text", text[len(said) :])
        else:
            self._break()
            self._write("text", text)
        if text:
            self._last = text
        self._break()

    def _void(self) -> None:
        if self._said:
            self._line("[the worker was lost; the answer begins again]")
        self._said.clear()
        self._thought.clear()

    def _write(self, kind: str, text: str) -> None:
        if not text:
            return
        if self._at not in (None, kind):
            self._break()
        self._at = kind
        self._out.write(self._dim(text) if kind == "thinking" else text)
        self._out.flush()

    def _line(self, text: str) -> None:
        self._break()
        self._out.write(f"{self._dim(text)}\n")
        self._out.flush()

    def _break(self) -> None:
        if self._at is not None:
            self._out.write("\n")
            self._at = None

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self._colours else text


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN else flat[: _SHOWN - 3] + "..."
