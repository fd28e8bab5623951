"""Schedules: the times at which runs start automatically, and the decision about each slot.

A slot is a time at which a schedule is to start a run, such as 09:00 on a Monday. A firing is the decision about one
slot. `ScheduleSettings` is what people write: in files, in requests and in `Client`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
    model_validator,
    with_config,
)

from runlane.domain.firing import Firing
from runlane.domain.run import MAX_PRIORITY, MIN_PRIORITY
from runlane.domain.tags import MAX_TAG, MAX_TAGS, TAG_PATTERN
from runlane.domain.time_zones import DEFAULT_ZONE, MAX_ZONE
from runlane.domain.timestamps import format_timestamp
from runlane.domain.wire import WIRE, Timestamp

MAX_SPECS: Final = 10
MAX_EXCLUSIONS: Final = 20
MAX_CATCH_UP: Final = 1000
MAX_BACKFILL: Final = 1000
MAX_SPREAD_SECONDS: Final = 86_400.0
MAX_PERIOD_SECONDS: Final = 366 * 86_400.0
DEFAULT_MAX_SCHEDULES: Final = 1000
DEFAULT_MIN_PERIOD_SECONDS: Final = 10.0
# The source of crons, and the reason why other schedules have no target of their kind.
CRONS: Final = "crons"
CRONS_ONLY: Final = "only crons have a target of kind assistant. Create one: POST /runs/crons"
ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}$"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_STRICT: Final = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

Overlap = Literal["skip", "queue_one", "queue_all", "cancel_previous", "allow"]
CatchUp = Literal["none", "latest", "all"]
TargetKind = Literal["task", "orchestration", "agent", "chat", "assistant"]
# Policies that let a slot wait for the end of an earlier run.
BUFFERING: Final[frozenset[Overlap]] = frozenset({"queue_one", "queue_all", "cancel_previous"})


def moment_us(value: str) -> int:
    """Return a time with an offset in microseconds since the epoch."""
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("must be a time such as 2026-01-31T12:00:00Z") from None
    if at.tzinfo is None:
        raise ValueError("has no offset; write it as 2026-01-31T12:00:00Z or 2026-01-31T13:00:00+01:00")
    return (at - _EPOCH) // timedelta(microseconds=1)


def _parsed(value: Any) -> int:
    if not isinstance(value, str):
        # A number is rejected, because it might be seconds, milliseconds or microseconds.
        raise ValueError("must be a string such as 2026-01-31T12:00:00Z")  # noqa: TRY004 - pydantic reports ValueError
    return moment_us(value)


Moment = Annotated[
    int,
    Field(ge=0, le=253_402_300_799_000_000),
    BeforeValidator(_parsed),
    PlainSerializer(format_timestamp, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2026-01-31T12:00:00Z"]}),
]


class TimeSpec(BaseModel):
    """One rule for slots: a cron expression, a period, or one moment."""

    model_config = _STRICT

    cron: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Exactly five fields: minute, hour, day of month, month, day of week; or @hourly, @daily, @weekly, "
        "@monthly, @yearly.",
        examples=["0 9 * * MON-FRI"],
    )
    every_seconds: float | None = Field(
        default=None, ge=1, le=MAX_PERIOD_SECONDS, description="A period in absolute time."
    )
    anchor: Moment | None = Field(
        default=None,
        description="With every_seconds: slots are this time plus a multiple of the period. Default: creation.",
    )
    at: Moment | None = Field(default=None, description="One moment.")

    @model_validator(mode="after")
    def _one(self) -> TimeSpec:
        given = [name for name in ("cron", "every_seconds", "at") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of cron, every_seconds and at, not {' and '.join(given) or 'none'}")
        if self.anchor is not None and self.every_seconds is None:
            raise ValueError("anchor belongs to every_seconds; remove it")
        return self


class Exclusion(BaseModel):
    """A day in the schedule's zone, or a span of time, in which no slots are."""

    model_config = _STRICT

    date: str | None = Field(default=None, min_length=10, max_length=10, description="A day.", examples=["2026-12-25"])
    starts_at: Moment | None = Field(default=None, description="The first moment of a span.")
    ends_at: Moment | None = Field(default=None, description="The first moment after the span.")

    @model_validator(mode="after")
    def _one(self) -> Exclusion:
        if (self.date is None) == (self.starts_at is None) or (self.starts_at is None) != (self.ends_at is None):
            raise ValueError("give a date, or starts_at and ends_at")
        if self.date is not None:
            try:
                date.fromisoformat(self.date)
            except ValueError:
                raise ValueError(f"{self.date!r} is not a day; write it as 2026-12-25") from None
        elif self.starts_at is not None and self.ends_at is not None and self.starts_at >= self.ends_at:
            raise ValueError("ends_at must be later than starts_at")
        return self


class ScheduleTarget(BaseModel):
    """The target that the runs of a schedule execute."""

    model_config = _STRICT

    kind: TargetKind = Field(
        description="task, orchestration, agent, or chat: the next turn of a conversation. assistant is that of crons."
    )
    name: str = Field(min_length=1, max_length=200, description="The task, orchestration, agent or assistant.")
    session_id: str | None = Field(
        default=None, min_length=1, max_length=512, description="For chat: the conversation."
    )
    thread_id: str | None = Field(
        default=None, min_length=1, max_length=64, description="For crons: the thread of their runs."
    )

    @model_validator(mode="after")
    def _session(self) -> ScheduleTarget:
        if (self.kind == "chat") != (self.session_id is not None):
            raise ValueError("session_id is required for a target of kind chat, and only for it")
        if self.thread_id is not None and self.kind != "assistant":
            raise ValueError("thread_id belongs to crons; remove it")
        return self


class ScheduleTiming(BaseModel):
    """The times of the slots of a schedule."""

    model_config = _STRICT

    spec: list[TimeSpec] = Field(
        min_length=1, max_length=MAX_SPECS, description="The rules for slots, together; equal slots count once."
    )
    zone: str = Field(
        default=DEFAULT_ZONE,
        min_length=1,
        max_length=MAX_ZONE,
        description="The IANA name of the time zone of cron and dates.",
    )
    exclusions: list[Exclusion] = Field(
        default_factory=list[Exclusion], max_length=MAX_EXCLUSIONS, description="Days and spans without slots."
    )
    starts_at: Moment | None = Field(default=None, description="No slot is before it.")
    ends_at: Moment | None = Field(default=None, description="No slot is after it.")
    spread_seconds: float | None = Field(
        default=None,
        gt=0,
        le=MAX_SPREAD_SECONDS,
        description="Runs start later than their slot by an offset that is fixed for the schedule and below this.",
    )
    spread_percent: float | None = Field(
        default=None, gt=0, le=100, description="The same, as a share of the time to the following slot."
    )

    @model_validator(mode="after")
    def _bounds(self) -> ScheduleTiming:
        if self.starts_at is not None and self.ends_at is not None and self.starts_at >= self.ends_at:
            raise ValueError("ends_at must be later than starts_at")
        if self.spread_seconds is not None and self.spread_percent is not None:
            raise ValueError("give spread_seconds or spread_percent, not both")
        return self


class ScheduleSettings(ScheduleTiming):
    """A schedule as it is written. Unknown fields are errors."""

    id: str = Field(pattern=ID_PATTERN, description="Name in URLs and files.", examples=["nightly-report"])
    name: str = Field(default="", max_length=200, description="For people; the id if empty.")
    target: ScheduleTarget = Field(description="What its runs execute.")
    message: str = Field(
        default="", max_length=200_000, description="The message of an orchestration, agent or chat turn."
    )
    input: dict[str, Any] = Field(default_factory=dict[str, Any], description="The input of its runs.")
    max_firings: int | None = Field(
        default=None, ge=1, le=1_000_000_000, description="The schedule ends after this many started runs."
    )
    overlap: Overlap = Field(
        default="skip", description="What happens at a slot while an earlier run of it has not ended."
    )
    max_open: int = Field(
        default=10, ge=1, le=1000, description="With overlap allow: how many runs may be open at once."
    )
    paused_counts: bool = Field(
        default=True, description="Whether a run that waits for a person or an event counts as open."
    )
    catch_up: CatchUp = Field(
        default="latest", description="Which slots that no process started in time are started afterwards."
    )
    catch_up_window_seconds: float = Field(
        default=3600, ge=1, le=MAX_PERIOD_SECONDS, description="Missed slots older than this are not started."
    )
    priority: int = Field(default=0, ge=MIN_PRIORITY, le=MAX_PRIORITY, description="The priority of its runs.")
    ordering_key: str | None = Field(
        default=None, min_length=1, max_length=512, description="The ordering key of its runs."
    )
    on_dead: Literal["skip", "block"] = Field(
        default="skip",
        description="Whether later runs with the same ordering key continue or stay blocked after a failed run.",
    )
    tags: list[Annotated[str, StringConstraints(min_length=1, max_length=MAX_TAG, pattern=TAG_PATTERN)]] = Field(
        default_factory=list[str], max_length=MAX_TAGS, description="The tags of its runs."
    )
    webhook_url: str | None = Field(
        default=None, min_length=1, max_length=2000, description="Receives a webhook at the end of each of its runs."
    )

    @model_validator(mode="after")
    def _options(self) -> ScheduleSettings:
        kind = self.target.kind
        if kind == "task" and self.message:
            raise ValueError("message belongs to orchestrations, agents and chat turns, not to tasks")
        if kind in ("agent", "chat") and not self.message.strip():
            raise ValueError(f"a target of kind {kind} needs a message")
        if kind == "chat" and self.ordering_key is not None:
            raise ValueError("the session decides the order of chat turns; remove ordering_key")
        return self


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class UpcomingSlot:
    """A future slot."""

    slot_us: Annotated[Timestamp, Field(alias="slot")]
    due_at_us: Annotated[
        Timestamp, Field(alias="due_at", description="The slot, or later by the offset of the schedule's spread.")
    ]
    local: Annotated[str, Field(description="The slot in the schedule's zone.", examples=["2026-03-29T03:00:00+02:00"])]


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class SchedulePreview:
    """The meaning of a timing: in words, as its next slots, and with warnings."""

    description: Annotated[str, Field(description="The times in plain words.")]
    next: tuple[UpcomingSlot, ...]
    warnings: tuple[str, ...]


ScheduleStatus = Literal["active", "paused", "ended"]


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class Schedule:
    """A stored schedule."""

    id: str
    tenant: str
    name: str
    status: Annotated[ScheduleStatus, Field(description="ended: it has no further slots.")]
    settings: Annotated[dict[str, Any], Field(description="Its settings as they were written, without defaults.")]
    target: Annotated[dict[str, Any], Field(description="What its runs execute.")]
    description: Annotated[str, Field(description="Its times in plain words.")]
    overlap: Overlap
    catch_up: CatchUp
    next_slot_us: Annotated[Timestamp | None, Field(alias="next_slot")]
    next_due_at_us: Annotated[
        Timestamp | None, Field(alias="next_due_at", description="With the offset of its spread.")
    ]
    paused_at_us: Annotated[Timestamp | None, Field(alias="paused_at")]
    paused_by: str | None
    paused_reason: str | None
    fired: Annotated[int, Field(description="How many runs its slots have started.")]
    version: Annotated[int, Field(description="Changes on every update; send it as If-Match.")]
    generation: Annotated[int, Field(description="Changes when the times change.")]
    source: Annotated[str, Field(description="files or api: where it is changed.")]
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    created_by: str
    updated_at_us: Annotated[Timestamp, Field(alias="updated_at")]
    updated_by: str
    warnings: Annotated[
        tuple[str, ...],
        Field(description="Warnings about the written settings, such as slots that a change of clocks skips."),
    ] = ()
    latest_firings: Annotated[
        tuple[Firing, ...],
        Field(description="In lists with `firings`: the latest firings, newest first."),
    ] = ()


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class Backfill:
    """The slots of a backfill with their outcomes; with `dry_run`, those that they would have."""

    schedule_id: str
    dry_run: bool
    firings: tuple[Firing, ...]
