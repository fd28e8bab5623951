"""Lanes: how many runs of a lane may run at once in the whole cluster, and how free slots are shared out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

DEFAULT_LANE: Final = "default"
MAX_NAME: Final = 64
SLOT_BOUNDS: Final = (0, 10_000)
POLL_BOUNDS_MS: Final = (50, 120_000)


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane as operators see it. `max_slots` None means no cap, 0 means paused."""

    name: str
    enabled: bool
    max_slots: int | None
    poll_interval_ms: int
    running: int = 0
    queued: int = 0
    oldest_queued_at_us: int | None = None
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaneView:
    """What a claim needs to know of a lane, read under its lock. `head` is None when nothing is ready."""

    name: str
    enabled: bool
    max_slots: int | None
    running: int
    head: int | None

    @property
    def free(self) -> int | None:
        """Slots left in the cluster; None when there is no cap."""
        return None if self.max_slots is None else max(0, self.max_slots - self.running)


def share_slots(lanes: Sequence[LaneView], slots: int) -> dict[str, int]:
    """How many runs to claim from each lane that has some ready.

    Every such lane gets an even share, so that a long backlog in one cannot hold up the others; what a capped
    lane may not use goes to the rest. The lane whose head waits longest is served first.
    """
    open_lanes = sorted(
        (lane for lane in lanes if lane.enabled and lane.head is not None and lane.free != 0),
        key=lambda lane: lane.head or 0,
    )
    shares: dict[str, int] = {lane.name: 0 for lane in open_lanes}
    left = slots
    while left > 0 and open_lanes:
        even = max(1, left // len(open_lanes))
        still_open: list[LaneView] = []
        for lane in open_lanes:
            take = min(even, left) if lane.free is None else min(even, left, lane.free - shares[lane.name])
            shares[lane.name] += take
            left -= take
            if lane.free is None or shares[lane.name] < lane.free:
                still_open.append(lane)
        open_lanes = still_open
    return {name: count for name, count in shares.items() if count > 0}
