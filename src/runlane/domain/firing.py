"""Firings: the decisions about slots of schedules, and the slot as its run receives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field, with_config

from runlane.domain.run import Status
from runlane.domain.wire import WIRE, Timestamp

# How many slots of a schedule may wait for the end of a run.
MAX_BUFFERED: Final = 100
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class FiringKind(StrEnum):
    """The reason for a decision about a slot: its time came, a person triggered it, or a backfill includes it."""

    TICK = "tick"
    MANUAL = "manual"
    BACKFILL = "backfill"


class FiringOutcome(StrEnum):
    """The decision about a slot."""

    STARTED = "started"
    SKIPPED_OVERLAP = "skipped_overlap"
    MISSED = "missed"
    REPLACED = "replaced"
    BUFFERED = "buffered"
    REFUSED = "refused"
    FAILED_TO_START = "failed_to_start"


class SlotTime(NamedTuple):
    """A slot and its due time, in microseconds."""

    slot_us: int
    due_us: int


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class Firing:
    """The decision about a slot. A `missed` firing stands for `count` slots up to `last_slot`."""

    slot_us: Annotated[Timestamp, Field(alias="slot")]
    due_at_us: Annotated[Timestamp, Field(alias="due_at")]
    decided_at_us: Annotated[Timestamp, Field(alias="decided_at")]
    kind: FiringKind
    outcome: FiringOutcome
    reason: Annotated[str | None, Field(description="A code, such as overlap, buffer_full or catch_up_window.")]
    detail: Annotated[str | None, Field(description="The error, if the run was not accepted.")]
    run_id: str | None
    last_slot_us: Annotated[Timestamp | None, Field(alias="last_slot")] = None
    count: int = 1
    run_status: Annotated[
        Status | None,
        Field(description="The status of the started run, as long as the run is kept; null in responses to changes."),
    ] = None


@dataclass(frozen=True, slots=True)
class ScheduledSlot:
    """The value of `ctx.schedule` in a task: the schedule that started its run, and the slot."""

    id: str
    slot: datetime
    previous_slot: datetime | None
    kind: FiringKind

    @classmethod
    def of(cls, origin: Mapping[str, Any]) -> ScheduledSlot | None:
        """Return it from the origin of a run; None if no schedule started the run."""
        if "schedule" not in origin:
            return None
        previous = origin.get("previous_slot")
        return cls(
            origin["schedule"],
            _EPOCH + timedelta(microseconds=origin["slot"]),
            None if previous is None else _EPOCH + timedelta(microseconds=previous),
            FiringKind(origin["kind"]),
        )
