"""Views of a run while it is followed: JSON lines, plain lines, a progress bar, or a live tree of its steps."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from runlane.cli.event_text import json_line, plain_line, tries_of
from runlane.cli.step_tree import StepState, StepTree, TreeRow
from runlane.cli.terminal import console, one_line, styled, write_line
from runlane.domain.events import Event, EventType, LiveType

if TYPE_CHECKING:
    from rich.text import Text

    from runlane.domain.views import LiveEvent

_REFRESHES_PER_SECOND = 8
_EVENT_STYLES: Mapping[str, str] = {
    EventType.LOG: "default",
    EventType.DONE: "bold",
    EventType.ATTEMPT_FAILED: "red",
    EventType.WORKER_LOST: "red",
}


class RunView(Protocol):
    """Shows events as they arrive."""

    def show(self, event: Event | LiveEvent) -> None: ...

    def print_lines(self, lines: Sequence[str]) -> None:
        """Print lines that are not events."""
        ...

    def pause(self) -> None:
        """Stop drawing, so that a question can be asked."""
        ...

    def resume(self) -> None:
        """Draw again."""
        ...


class Lines:
    """Prints one line per event. It never redraws, so there is nothing to pause."""

    def __init__(self, *, json: bool) -> None:
        self._json = json

    def show(self, event: Event | LiveEvent) -> None:
        """Print the event; live events only as JSON."""
        line = json_line(event) if self._json else plain_line(event)
        if line is not None:
            write_line(line)

    def print_lines(self, lines: Sequence[str]) -> None:
        """Print lines for people; JSON has events only."""
        if not self._json:
            for line in lines:
                write_line(line)

    def pause(self) -> None:
        """Nothing to do."""

    def resume(self) -> None:
        """Nothing to do."""


class ProgressBar:
    """Prints events above a bar, which shows the progress of the run and starts again with each attempt."""

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
        """Print an event, or update the bar."""
        progress = self._progress
        if isinstance(event, Event):
            progress.console.print(styled(plain_line(event) or "", _EVENT_STYLES.get(event.type, "dim")))
            if event.type == EventType.PICKED_UP:
                progress.update(self._bar, description=f"attempt {tries_of(event)}", total=None, completed=0, note="")
        elif (line := plain_line(event)) is not None:
            progress.console.print(styled(line, "dim"))
        elif isinstance(event.data.get("progress"), int | float):
            note = one_line(str(event.data.get("note") or ""))
            progress.update(self._bar, total=1.0, completed=float(event.data["progress"]), note=note)

    def print_lines(self, lines: Sequence[str]) -> None:
        """Print above the bar."""
        for line in lines:
            self._progress.console.print(styled(line))

    def pause(self) -> None:
        """Remove the bar."""
        self._progress.stop()

    def resume(self) -> None:
        """Show the bar."""
        self._progress.start()


_STATE_STYLES = {
    StepState.RUNS: "cyan",
    StepState.RETRIES: "yellow",
    StepState.ASKS: "bold magenta",
    StepState.WAITS: "magenta",
    StepState.DONE: "green",
    StepState.FAILED: "red",
}


class LiveTree:
    """Draws the steps as a tree and redraws it while they run. The tree stays on the screen when the run has ended."""

    def __init__(self) -> None:
        self._tree = StepTree()
        self._console = console()
        self._live = self._new_live()

    def _new_live(self) -> Any:
        from rich.live import Live

        return Live(
            console=self._console,
            refresh_per_second=_REFRESHES_PER_SECOND,
            get_renderable=self._render,
            vertical_overflow="ellipsis",
        )

    def show(self, event: Event | LiveEvent) -> None:
        """Update the tree; the next redraw shows it."""
        self._tree.apply(event)
        if event.type in (EventType.LOG, LiveType.TRUNCATED):
            self.print_lines([plain_line(event) or ""])

    def print_lines(self, lines: Sequence[str]) -> None:
        """Print above the tree."""
        for line in lines:
            self._console.print(styled(line))

    def pause(self) -> None:
        """Leave the tree on the screen."""
        self._live.stop()

    def resume(self) -> None:
        """Draw it again, below the lines printed since."""
        self._live = self._new_live()
        self._live.start()

    def _render(self) -> Any:
        from rich.console import Group

        return Group(*(_render_row(row) for row in self._tree.rows(time.time_ns() // 1000)))


def _render_row(row: TreeRow) -> Text:
    text = styled("")
    text.no_wrap, text.overflow = True, "ellipsis"
    line = one_line(row.text)
    if row.depth == 0:
        return text.append(line, "bold")
    text.append("  " * row.depth)
    if row.node is None:
        return text.append(line, "dim italic")
    state = row.node.current_state()
    text.append(f"{state.value:<8}", _STATE_STYLES[state])
    return text.append(line)


@contextmanager
def open_view(*, json: bool, steps: bool) -> Generator[RunView]:
    """Choose the view: for programs, for a pipe, or for a person at a terminal."""
    for_people = sys.stdout.isatty() and not json
    view: RunView = (LiveTree() if steps else ProgressBar()) if for_people else Lines(json=json)
    view.resume()
    try:
        yield view
    finally:
        view.pause()
