"""Crash points: kill or freeze the current process when it reaches a named failpoint for the n-th time.

A crash is a real SIGKILL from inside the process, so no further code runs: no handler, no finally, no flush. A freeze
is a real SIGSTOP, which the test ends with SIGCONT. A test names the failpoint in TEST_CRASH_POINT, and the module that
its worker imports calls `install_from_environment()`. No other code reads that variable.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from runlane import failpoints

VARIABLE = "TEST_CRASH_POINT"


class Fate(StrEnum):
    """The effect on the process."""

    KILL = "kill"
    FREEZE = "freeze"


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """When `point` is reached for the `nth` time, `fate` happens.

    The text form is point, point:nth or point:nth:fate.
    """

    point: str
    nth: int = 1
    fate: Fate = Fate.KILL

    def __post_init__(self) -> None:
        if self.point not in failpoints.POINTS:
            raise ValueError(f'The crash point "{self.point}" does not exist. Points: {", ".join(failpoints.POINTS)}.')
        if self.nth < 1:
            raise ValueError(f"{self.point}:{self.nth} is never reached: counting begins with 1.")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form of a crash point."""
        point, _, rest = text.partition(":")
        nth, _, fate = rest.partition(":")
        return cls(point, int(nth or 1), Fate(fate or Fate.KILL))

    def __str__(self) -> str:
        return f"{self.point}:{self.nth}:{self.fate.value}"


def install(crash_point: CrashPoint) -> None:
    """Make this process crash or freeze at the crash point. This replaces an earlier hook of failpoints."""
    lock = threading.Lock()
    reached = 0

    def hook(point: str) -> None:
        nonlocal reached
        if point != crash_point.point:
            return
        # Failpoints are reached in several threads. Each time is counted once.
        with lock:
            reached += 1
            if reached != crash_point.nth:
                return
        os.kill(os.getpid(), signal.SIGKILL if crash_point.fate is Fate.KILL else signal.SIGSTOP)

    failpoints.install(hook)


def install_from_environment() -> None:
    """Install the crash point of TEST_CRASH_POINT, if it is set."""
    text = os.environ.get(VARIABLE)
    if text:
        install(CrashPoint.parse(text))
