"""What a task raises to end or requeue its run, and what the worker raises inside a task."""

from __future__ import annotations

from runlane.errors.base import RunlaneError

__all__ = ["Fail", "Interrupted", "LeaseLost", "Retry", "RunCancelled"]


class Fail(RunlaneError):
    """Raised by a task to end its run as failed, without more attempts."""

    code = "failed"


class Retry(RunlaneError):
    """Raised by a task to requeue its run. It does not count as a failure."""

    code = "retry"

    def __init__(self, after_seconds: float = 0.0, reason: str = "") -> None:
        if not 0 <= after_seconds <= 366 * 86400:
            raise ValueError(f"Retry(after_seconds={after_seconds!r}) must be between 0 and a year, in seconds.")
        self.after_seconds = after_seconds
        self.reason = reason
        super().__init__(reason or f"retry after {after_seconds:g} s")


class Interrupted(BaseException):
    """The worker stops a task. Not an Exception, so that `except Exception` cannot swallow it."""


class RunCancelled(Interrupted):
    """The run was cancelled."""


class LeaseLost(Interrupted):
    """The run belongs to another attempt; what this one writes is rejected."""
