"""The header Retry-After, as a number of seconds or as a date."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

_MAX_SECONDS: Final = 86_400.0


def retry_after_seconds(text: str | None) -> float | None:
    """Return the seconds from now, at most a day; None if the value is not valid. Fractions are accepted, because some
    servers send them although the standard does not allow them."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            at = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            # A number of the date may exceed what a time can have.
            return None
        seconds = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), _MAX_SECONDS) if math.isfinite(seconds) else None
