"""Ids of responses and completions: the run, and the event at which the response begins.

`resp_` with the digits of the run's id names the whole run. A request that answers a question of a run continues that
run; its response begins after the event whose number follows the digits.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

RESPONSE: Final = "resp_"
COMPLETION: Final = "chatcmpl-"
_RUN: Final = "run_"
_ID: Final = re.compile(r"(?:resp_|chatcmpl-)([0-9a-f]{32})(?:_([1-9][0-9]{0,9}))?")


class AnswerId(NamedTuple):
    """The run of a response, and the number of the event after which it begins."""

    run_id: str
    after: int = 0

    def text(self, prefix: str) -> str:
        """Return the id with a prefix, as clients receive it."""
        return f"{prefix}{self.digits}{f'_{self.after}' if self.after else ''}"

    @property
    def digits(self) -> str:
        return self.run_id.removeprefix(_RUN)

    @classmethod
    def parse(cls, text: str, prefix: str) -> AnswerId | None:
        """Parse the id that a client sent. Return None if it is not valid."""
        found = _ID.fullmatch(text) if text.startswith(prefix) else None
        return None if found is None else cls(f"{_RUN}{found[1]}", int(found[2] or 0))
