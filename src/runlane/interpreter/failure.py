"""The exception of performers: a step could not be performed. It becomes the outcome of the step."""

from __future__ import annotations

from runlane.interpreter.values import Failed


def timeout_message(seconds: float) -> str:
    """Describe the failure of a step that exceeded its time limit."""
    return f"The step took longer than its {seconds:g} s."


class StepFailed(Exception):
    """A failure of a step. `retryable` means that a retry may succeed."""

    def __init__(self, code: str, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable

    @property
    def outcome(self) -> Failed:
        """The failure as an outcome."""
        return Failed(self.code, self.message, self.retryable)
