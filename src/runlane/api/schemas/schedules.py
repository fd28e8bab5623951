"""Schedules: settings, and requests and responses of the operations on them."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, create_model

from runlane.api.schemas.fields import RequestModel, ResponseModel
from runlane.api.schemas.listing import Listing
from runlane.domain.firing import Firing
from runlane.domain.schedule import (
    CatchUp,
    Moment,
    Overlap,
    Schedule,
    ScheduleSettings,
    ScheduleTiming,
    UpcomingSlot,
)
from runlane.submit.schedules import MAX_REASON, MAX_UPCOMING

_EXAMPLE: dict[str, Any] = {
    "id": "nightly-report",
    "target": {"kind": "task", "name": "report"},
    "spec": [{"cron": "0 2 * * *"}],
    "zone": "Europe/Berlin",
}


class PutSchedule(ScheduleSettings):
    """A schedule. Unknown fields are errors. If a part is not valid, nothing is stored."""

    # FastAPI reads the schema of a request body when the route is declared.
    model_config = ConfigDict(defer_build=False, json_schema_extra={"examples": [_EXAMPLE]})


class PreviewSchedule(ScheduleTiming):
    """Times to describe. Nothing is stored."""

    model_config = ConfigDict(
        defer_build=False,
        json_schema_extra={"examples": [{"spec": [{"cron": "30 2 * * *"}], "zone": "Europe/Berlin", "count": 3}]},
    )

    count: int = Field(10, ge=1, le=MAX_UPCOMING, description="The number of slots.")

    def timing(self) -> ScheduleTiming:
        """Return only the timing."""
        return ScheduleTiming.model_construct(
            **{name: getattr(self, name) for name in ScheduleTiming.model_fields}, _fields_set=self.model_fields_set
        )


def _optional_fields() -> dict[str, Any]:
    return {
        name: (field.annotation | None, Field(None, description=field.description))  # type: ignore[operator]
        for name, field in ScheduleSettings.model_fields.items()
        if name != "id" and field.annotation is not None
    }


# The change is validated together with the stored settings, so the same rules apply as for a new schedule.
PatchSchedule = create_model(
    "PatchSchedule",
    __base__=RequestModel,
    __doc__="The settings to change; null restores a default.",
    __cls_kwargs__={"json_schema_extra": {"examples": [{"overlap": "queue_one"}]}},
    **_optional_fields(),
)


class PauseSchedule(RequestModel):
    """The reason for a pause."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "The warehouse is being moved."}]})

    reason: str = Field(min_length=1, max_length=MAX_REASON)


class ResumeSchedule(RequestModel):
    """Options of a resume."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"catch_up": "latest"}]})

    catch_up: CatchUp = Field("none", description="Which slots of the pause are started: none, the latest, or all.")


class TriggerSchedule(RequestModel):
    """Options of a run outside of the slots."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": {"full": True}}]})

    input: dict[str, Any] | None = Field(None, description="In place of the schedule's input.")
    overlap: Overlap = Field("allow", description="What to do while another run of the schedule is open.")


class BackfillSchedule(RequestModel):
    """A range of past slots. Slots that started no run are decided again."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"from": "2026-01-01T00:00:00Z", "to": "2026-01-08T00:00:00Z", "dry_run": True}]
        }
    )

    from_at: Moment = Field(alias="from", description="The first moment.")
    to_at: Moment = Field(alias="to", description="The last moment; not in the future.")
    overlap: Overlap = Field("queue_all", description="By default they run one after the other.")
    dry_run: bool = Field(False, description="Return the decisions without storing them.")


class ResumedSchedule(ResponseModel):
    """A resumed schedule, and the slots during the pause that were started."""

    schedule: Schedule
    firings: list[Firing]


class UpcomingSlots(ResponseModel):
    """The next slots of a schedule."""

    schedule_id: str
    next: list[UpcomingSlot]


class FiringPage(ResponseModel):
    """The decisions about slots, newest first."""

    firings: list[Firing]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null on the last one.")


SCHEDULES = Listing("schedules", Schedule, cursor="id")
