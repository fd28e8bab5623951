"""Outputs of earlier steps for prompts: the last ones, bounded in number and size."""

from __future__ import annotations

from collections import deque
from typing import Any

from runlane.steps.context import PreviousStep
from runlane.templates.template import size_of

# A run of many thousand steps must not keep all of them in memory.
MAX_HISTORY = 100
MAX_HISTORY_BYTES = 16 * 1024 * 1024


class History:
    """The earlier outputs of a run, oldest first. The last one is kept regardless of its size."""

    def __init__(self, max_bytes: int = MAX_HISTORY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept: deque[tuple[str, PreviousStep, int]] = deque()
        self._bytes = 0

    def add(self, path: str, step_id: str, title: str, output: Any) -> None:
        """Add the output of a step."""
        size = size_of(output)
        self._kept.append((_scope(path), PreviousStep(step_id, title, output), size))
        self._bytes += size
        while len(self._kept) > MAX_HISTORY or (self._bytes > self._max_bytes and len(self._kept) > 1):
            self._bytes -= self._kept.popleft()[2]

    def before(self, path: str) -> list[PreviousStep]:
        """Return the outputs of earlier steps of the same orchestration."""
        scope = _scope(path)
        return [earlier for inside, earlier, _ in self._kept if inside == scope]


def _scope(path: str) -> str:
    """Return the part of a path that identifies the orchestration of a step."""
    return path.rpartition(">")[0]
