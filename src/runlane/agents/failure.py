"""The one exception of tools: a call did not give a result."""

from __future__ import annotations


class ToolFailed(Exception):
    """There is no result. `passing` means that another try may go well, `retry_after_seconds` when the server wants
    it. The message is for people and models, and contains no secret."""

    def __init__(
        self, code: str, message: str, *, passing: bool = False, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.passing = passing
        self.retry_after_seconds = retry_after_seconds
