"""The slowest database statements of this process within the last hour.

A fast statement costs one comparison. Each name is stored once, with its slowest execution and a count, so the memory
is limited by the number of different statements.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SLOW_SECONDS: Final = 0.1
KEPT_SECONDS: Final = 3600.0
_MOST: Final = 5


@dataclass(frozen=True, slots=True)
class SlowStatement:
    """The slowest execution of a statement, its time, and the number of slow executions since the first one."""

    name: str
    seconds: float
    at: float
    count: int


class SlowStatements:
    """Collects slow executions by the name of their statement."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._found: dict[str, SlowStatement] = {}

    def add(self, name: str, seconds: float) -> None:
        """Count a slow execution.

        If the slowest execution of the statement is more than an hour old, the record begins again.
        """
        now = self._clock()
        known = self._found.get(name)
        if known is None or now - known.at > KEPT_SECONDS:
            self._found[name] = SlowStatement(name, seconds, now, 1)
        elif seconds >= known.seconds:
            self._found[name] = SlowStatement(name, seconds, now, known.count + 1)
        else:
            self._found[name] = SlowStatement(name, known.seconds, known.at, known.count + 1)

    def slowest(self) -> list[SlowStatement]:
        """Return the slowest statements of the last hour, slowest first."""
        oldest = self._clock() - KEPT_SECONDS
        self._found = {name: one for name, one in self._found.copy().items() if one.at >= oldest}
        return sorted(self._found.values(), key=lambda one: -one.seconds)[:_MOST]
