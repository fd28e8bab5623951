"""Ids of responses and completions: the run, and where in its events the response begins.

`resp_` and the digits of the run's id stand for the whole run. A request that answers a question of a run continues
that run, and its response begins after the event with the number that follows the digits.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

RESPONSE: Final = "resp_"
COMPLETION: Final = "chatcmpl-"
_RUN: Final = "run_"
_ID: Final = re.compile(r"(?:resp_|chatcmpl-)([0-9a-f]{32})(?:_([1-9][0-9]{0,9}))?")


class AnswerId(NamedTuple):
    """The run of a response, and the number of the event that it begins after."""

    run_id: str
    after: int = 0

    def text(self, prefix: str) -> str:
        """Return the id for clients."""
        return f"{prefix}{self.digits}{f'_{self.after}' if self.after else ''}"

    @property
    def digits(self) -> str:
        return self.run_id.removeprefix(_RUN)

    @classmethod
    def parse(cls, text: str, prefix: str) -> AnswerId | None:
        """Return the id that a client sent; None if it is not one."""
        found = _ID.fullmatch(text) if text.startswith(prefix) else None
        return None if found is None else cls(f"{_RUN}{found[1]}", int(found[2] or 0))
