"""The base of all errors, and the parts that their messages share."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar, Final

__all__ = ["RunlaneError"]

# The characters of a name that are compared, because a comparison takes time for each of them.
_COMPARED: Final = 200


class RunlaneError(Exception):
    """Base of every error that a caller can catch."""

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500

    @property
    def public_message(self) -> str:
        """The message for callers over HTTP, without details of the server."""
        return str(self)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ' (did you mean "x"?)', or an empty string."""
    close = get_close_matches(name[:_COMPARED], list(known), n=1)
    return f' (did you mean "{close[0]}"?)' if close else ""


def listing(label: str, names: list[str]) -> str:
    """Return the first names after a label."""
    if not names:
        return f"{label}: none."
    shown = ", ".join(names[:10])
    return f"{label}: {shown}{', …' if len(names) > 10 else ''}."
