"""Lanes: how many runs of a lane may run at once in the whole cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_LANE: Final = "default"
MAX_NAME: Final = 64
SLOT_BOUNDS: Final = (0, 10_000)
POLL_BOUNDS_MS: Final = (50, 120_000)


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane. `max_slots` is None without a cap and 0 while the lane is paused."""

    name: str
    enabled: bool
    max_slots: int | None
    poll_interval_ms: int
    running: int = 0
    queued: int = 0
    oldest_queued_at_us: int | None = None
    kinds: tuple[str, ...] = ()
