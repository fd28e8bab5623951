"""Publish model answers as deltas, and repeat their text so far for readers that join later.

Pieces are not stored. When a reader is announced on the bus, the text so far of the run's open answers is sent again,
as one piece at offset 0, to the readers that have joined recently. Repeats are limited in frequency per run. An answer
that is too long is not kept; its stored event has the text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from runlane.bus import Bus
from runlane.domain.events import Delta
from runlane.domain.text import dump_json
from runlane.llm.models import ModelDelta

MAX_CHARACTERS: Final = 100_000
# Readers that join at about the same time are served by one repeat.
GATHER_SECONDS: Final = 0.02
EVERY_SECONDS: Final = 0.25


@dataclass(slots=True)
class _Text:
    """One kind of text of an answer: its content, its reasoning, or the arguments of one call."""

    first: ModelDelta
    parts: list[str] = field(default_factory=list[str])

    def add(self, piece: ModelDelta) -> None:
        if piece.offset == 0:
            self.parts.clear()
        if piece.offset + len(piece.text) > MAX_CHARACTERS:
            self.parts.clear()
        elif self.parts or piece.offset == 0:
            self.parts.append(piece.text)

    def whole(self) -> ModelDelta | None:
        return replace(self.first, text="".join(self.parts), offset=0) if self.parts else None


@dataclass(slots=True)
class _Run:
    """The open answers of a run by the path of their step."""

    steps: dict[str, StepAnswers] = field(default_factory=dict[str, "StepAnswers"])
    timer: asyncio.TimerHandle | None = None
    repeated_at: float = float("-inf")


@dataclass(frozen=True, slots=True)
class StepAnswers:
    """Sends the pieces of one step's answers and keeps them until the answer is closed."""

    answers: OpenAnswers
    run_id: str
    attempt: int
    step_id: str
    path: str
    send_delta: Callable[[Delta], None]
    texts: dict[tuple[str, str, str | None], _Text] = field(default_factory=dict[tuple[str, str, str | None], _Text])

    def __call__(self, piece: ModelDelta) -> None:
        key = (piece.answer, piece.kind, piece.call_id)
        text = self.texts.get(key)
        if text is None:
            self.answers.open(self)
            text = self.texts[key] = _Text(piece)
        text.add(piece)
        self.send(piece)

    def send(self, piece: ModelDelta, *, repeat: bool = False) -> None:
        """Send a piece to the readers of the run; a repeat only to those that have just joined."""
        data: dict[str, Any] = {
            "orch_step_id": self.step_id,
            "path": self.path,
            "answer": piece.answer,
            "offset": piece.offset,
            "text": piece.text,
        }
        if piece.call_id is not None:
            data |= {"call_id": piece.call_id, "tool_name": piece.tool}
        self.send_delta(Delta(self.run_id, self.attempt, piece.kind, dump_json(data), repeat))

    def repeat(self) -> None:
        """Send the text so far again."""
        for text in self.texts.values():
            if (whole := text.whole()) is not None:
                self.send(whole, repeat=True)


class OpenAnswers:
    """The open answers of a worker's runs. stop() ends the repeats."""

    def __init__(self, bus: Bus) -> None:
        self._runs: dict[str, _Run] = {}
        self._unsubscribe = bus.on_reader(self._repeat_soon)

    def stop(self) -> None:
        """Stop repeating. Safe to call twice."""
        self._unsubscribe()
        for run in self._runs.values():
            if run.timer is not None:
                run.timer.cancel()
        self._runs.clear()

    def open(self, step: StepAnswers) -> None:
        """Repeat the answers of a step for readers that join from now on."""
        self._runs.setdefault(step.run_id, _Run()).steps[step.path] = step

    def close(self, run_id: str, path: str) -> None:
        """Drop the answer of a step, which is stored or void."""
        run = self._runs.get(run_id)
        if run is None:
            return
        step = run.steps.pop(path, None)
        if step is not None:
            step.texts.clear()
        if not run.steps:
            del self._runs[run_id]
            if run.timer is not None:
                run.timer.cancel()

    def _repeat_soon(self, run_id: str) -> None:
        run = self._runs.get(run_id)
        if run is None or run.timer is not None:
            return
        loop = asyncio.get_running_loop()
        delay = max(GATHER_SECONDS, run.repeated_at + EVERY_SECONDS - loop.time())
        run.timer = loop.call_later(delay, self._repeat, run)

    def _repeat(self, run: _Run) -> None:
        run.timer = None
        run.repeated_at = asyncio.get_running_loop().time()
        for step in run.steps.values():
            step.repeat()
