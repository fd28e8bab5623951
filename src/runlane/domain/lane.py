"""Lanes: how many runs of a lane may run at once in the whole cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field, computed_field, with_config

from runlane.domain.wire import WIRE, Timestamp

DEFAULT_LANE: Final = "default"
MAX_NAME: Final = 64
SLOT_BOUNDS: Final = (0, 10_000)
POLL_BOUNDS_MS: Final = (50, 120_000)


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class Lane:
    """A lane. `max_slots` is None without a cap and 0 while the lane is paused."""

    name: str
    enabled: bool
    max_slots: int | None
    poll_interval_ms: int
    running: int = 0
    queued: int = 0
    oldest_queued_at_us: Annotated[Timestamp | None, Field(alias="oldest_queued_at")] = None
    kinds: tuple[str, ...] = ()

    @computed_field
    @property
    def running_jobs(self) -> int:
        """Return `running`, by the name that it has in the lane design."""
        return self.running

    @computed_field
    @property
    def queued_jobs(self) -> int:
        """Return `queued`, by the name that it has in the lane design."""
        return self.queued

    @computed_field(description="For platform admins; null without a cap.")
    @property
    def slots_available(self) -> int | None:
        """Return the free slots; None without a cap."""
        return None if self.max_slots is None else max(0, self.max_slots - self.running)
