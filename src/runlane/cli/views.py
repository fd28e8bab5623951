"""How a run is shown while it is watched: JSON lines, plain lines, a progress bar, or a live tree of its steps."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from runlane.cli.story import plain_line, tries_of, wire_line
from runlane.cli.terminal import console, one_line, styled, write_line
from runlane.cli.tree import Row, State, StepTree
from runlane.domain.events import Event, EventType

if TYPE_CHECKING:
    from rich.text import Text

    from runlane.client import LiveEvent

_REFRESHES_PER_SECOND = 8


class View(Protocol):
    """Shows events as they come."""

    def show(self, event: Event | LiveEvent) -> None:
        """Show an event."""
        ...

    def say(self, lines: Sequence[str]) -> None:
        """Print something beside the events."""
        ...

    def pause(self) -> None:
        """Leave the terminal to somebody else."""
        ...

    def go_on(self) -> None:
        """Take it back."""
        ...


class Lines:
    """One line per event. Nothing has to be paused, since nothing is painted over."""

    def __init__(self, *, json: bool) -> None:
        self._json = json

    def show(self, event: Event | LiveEvent) -> None:
        """Print the event, if it is worth a line."""
        line = wire_line(event) if self._json else plain_line(event)
        if line is not None:
            write_line(line)

    def say(self, lines: Sequence[str]) -> None:
        """Print lines for people; programs get events only."""
        if not self._json:
            for line in lines:
                write_line(line)

    def pause(self) -> None:
        """Nothing to do."""

    def go_on(self) -> None:
        """Nothing to do."""


class ProgressBar:
    """Events scroll by; a bar below them moves with the run's progress and begins again with each attempt."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console(), transient=True)
        self._bar = self._progress.add_task("waiting", total=None, note="")

    def show(self, event: Event | LiveEvent) -> None:
        """Print an event, or move the bar."""
        progress = self._progress
        if isinstance(event, Event):
            style = {"log": "default", "done": "bold", "attempt_failed": "red", "worker_lost": "red"}
            progress.console.print(styled(plain_line(event) or "", style.get(event.type, "dim")))
            if event.type == EventType.PICKED_UP:
                progress.update(self._bar, description=f"attempt {tries_of(event)}", total=None, completed=0, note="")
        elif (line := plain_line(event)) is not None:
            progress.console.print(styled(line, "dim"))
        elif isinstance(event.data.get("progress"), int | float):
            note = one_line(str(event.data.get("note") or ""))
            progress.update(self._bar, total=1.0, completed=float(event.data["progress"]), note=note)

    def say(self, lines: Sequence[str]) -> None:
        """Print above the bar."""
        for line in lines:
            self._progress.console.print(styled(line))

    def pause(self) -> None:
        """Take the bar away."""
        self._progress.stop()

    def go_on(self) -> None:
        """Show the bar."""
        self._progress.start()


_STYLES = {
    State.RUNS: "cyan",
    State.RETRIES: "yellow",
    State.ASKS: "bold magenta",
    State.WAITS: "magenta",
    State.DONE: "green",
    State.FAILED: "red",
}


class LiveTree:
    """The steps as a tree that is painted anew as they go; it stays when the run has ended."""

    def __init__(self) -> None:
        from rich.live import Live

        self._tree = StepTree()
        self._console = console()
        self._live: Live = self._new()

    def _new(self) -> Any:
        from rich.live import Live

        return Live(
            console=self._console,
            refresh_per_second=_REFRESHES_PER_SECOND,
            get_renderable=self._picture,
            vertical_overflow="ellipsis",
        )

    def show(self, event: Event | LiveEvent) -> None:
        """Learn from the event; the next repaint shows it."""
        self._tree.take(event)
        if event.type in (EventType.LOG, "truncated"):
            self.say([plain_line(event) or ""])

    def say(self, lines: Sequence[str]) -> None:
        """Print above the tree."""
        for line in lines:
            self._console.print(styled(line))

    def pause(self) -> None:
        """Leave the tree as it is."""
        self._live.stop()

    def go_on(self) -> None:
        """Paint it again, below what was printed meanwhile."""
        self._live = self._new()
        self._live.start()

    def _picture(self) -> Any:
        from rich.console import Group

        return Group(*(_painted(row) for row in self._tree.rows(time.time_ns() // 1000)))


def _painted(row: Row) -> Text:
    text = styled("")
    text.no_wrap, text.overflow = True, "ellipsis"
    said = one_line(row.text)
    if row.depth == 0:
        return text.append(said, "bold")
    text.append("  " * row.depth)
    if row.node is None:
        return text.append(said, "dim italic")
    state = row.node.standing()
    text.append(f"{state.value:<8}", _STYLES[state])
    return text.append(said)


@contextmanager
def open_view(*, json: bool, steps: bool) -> Generator[View]:
    """The view that fits: for programs, for a pipe, or for a person at a terminal."""
    for_people = sys.stdout.isatty() and not json
    view: View = (LiveTree() if steps else ProgressBar()) if for_people else Lines(json=json)
    view.go_on()
    try:
        yield view
    finally:
        view.pause()
