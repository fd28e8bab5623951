"""How much a long test does: enough for its promise in `make test`, and much more in `make soak`."""

from __future__ import annotations

import os
from typing import Final, TypeVar

Number = TypeVar("Number", int, float, str, tuple[str, ...])

SOAK: Final = os.environ.get("TEST_SOAK") == "1"


def scaled(test: Number, soak: Number) -> Number:
    """Return the number, or the list of names, for the target that runs."""
    return soak if SOAK else test
