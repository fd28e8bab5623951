"""Lanes: how many runs of a lane may run at once in the whole cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field, computed_field, with_config

from runlane.domain.start_tags import PRIORITY_SECONDS
from runlane.domain.wire import WIRE, Timestamp

DEFAULT_LANE: Final = "default"
MAX_NAME: Final = 64
SLOT_BOUNDS: Final = (0, 10_000)
POLL_BOUNDS_MS: Final = (50, 120_000)
STALE_BOUNDS_MINUTES: Final = (5, 1440)
MAX_HOLDS: Final = 100
MAX_OWNER: Final = 200
MAX_REASON: Final = 500
MAX_HOLD_SECONDS: Final = 30 * 86_400
MAX_KINDS: Final = 100


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class LaneHold:
    """A reason for which a lane starts nothing. A lane may have several; each is released on its own or expires."""

    id: Annotated[str, Field(alias="hold_id")]
    lane: str
    owner: str
    reason: str
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    expires_at_us: Annotated[Timestamp | None, Field(alias="expires_at", description="Null: until it is released.")]


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class Lane:
    """A lane. `max_slots` is None without a cap and 0 while the lane is paused."""

    name: str
    enabled: bool
    max_slots: int | None
    poll_interval_ms: int
    fair: Annotated[
        bool, Field(description="Tenants share the lane fairly. Without it, the time of acceptance decides.")
    ] = True
    priority_seconds: Annotated[int, Field(description="How long a point of priority may delay other runs.")] = (
        PRIORITY_SECONDS
    )
    stale_timeout_minutes: Annotated[
        int | None, Field(description="The longest time that a running run may be without progress.")
    ] = None
    running: int = 0
    queued: int = 0
    oldest_queued_at_us: Annotated[Timestamp | None, Field(alias="oldest_queued_at")] = None
    kinds: tuple[str, ...] = ()
    held: Annotated[bool, Field(description="A hold is active, so nothing starts.")] = False
    holds: Annotated[tuple[LaneHold, ...], Field(description="For platform admins: its active holds.")] = ()

    @computed_field
    @property
    def running_jobs(self) -> int:
        """Return `running`, by the name that worker consoles use."""
        return self.running

    @computed_field
    @property
    def queued_jobs(self) -> int:
        """Return `queued`, by the name that worker consoles use."""
        return self.queued

    @computed_field(description="For platform admins; null without a cap.")
    @property
    def slots_available(self) -> int | None:
        """Return the free slots; None without a cap."""
        return None if self.max_slots is None else max(0, self.max_slots - self.running)
