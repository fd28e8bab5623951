"""Request bodies for crons."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from runlane.api.agent_server.assistant_schemas import Json, Limit, Offset, SearchedText, SortOrder
from runlane.api.agent_server.run_schemas import ThreadRunBody
from runlane.api.schemas.fields import Name, RequestModel
from runlane.domain.timestamps import format_timestamp
from runlane.errors import InvalidRequest
from runlane.submit.graphs import GraphRunRequest

CronField = Literal[
    "cron_id",
    "assistant_id",
    "thread_id",
    "end_time",
    "schedule",
    "timezone",
    "created_at",
    "updated_at",
    "user_id",
    "payload",
    "next_run_date",
    "metadata",
    "now",
    "on_run_completed",
    "enabled",
]
# Fields that have no meaning for runs that a schedule starts later.
_NOT_FOR_CRONS: Final = frozenset(
    {
        "command",
        "checkpoint",
        "checkpoint_id",
        "if_not_exists",
        "on_disconnect",
        "on_completion",
        "after_seconds",
        "strict_resume",
    }
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class CronBody(ThreadRunBody):
    """A new cron: its schedule and the options of its runs."""

    schedule: Annotated[
        str,
        Field(
            min_length=1,
            max_length=200,
            description="Five fields: minute, hour, day of month, month, day of week.",
            examples=["*/5 * * * *"],
        ),
    ]
    timezone: Annotated[str | None, Field(max_length=100, description="The IANA name of a time zone; else UTC.")] = None
    end_time: Annotated[str | None, Field(max_length=40, description="ISO 8601; no run starts after it.")] = None
    enabled: bool | None = None
    on_run_completed: Literal["delete", "keep"] | None = None

    @model_validator(mode="after")
    def _check_cron(self) -> CronBody:
        refused = sorted(self.model_fields_set & _NOT_FOR_CRONS)
        if refused:
            raise ValueError(f"{refused[0]} is not supported for crons; omit it")
        return self

    @property
    def ends_at(self) -> str | None:
        """Return the end in the form of schedule settings."""
        return None if self.end_time is None else end_moment(self.end_time)

    def payload(self, assistant_id: str, cron_id: str) -> Json:
        """Return the request without its input, as responses show it."""
        given = self.model_dump(exclude_unset=True, exclude_none=True, exclude={"input"})
        config = dict(given.get("config", {}))
        config["configurable"] = {**config.get("configurable", {}), "cron_id": cron_id}
        return {**given, "assistant_id": assistant_id, "config": config}

    def to_run(self, thread_id: str | None) -> GraphRunRequest:
        """Return the request for the runs of the cron."""
        completed = self.model_copy(update={"on_completion": self.on_run_completed})
        return completed.to_request(thread_id, None)


class CronPatch(RequestModel):
    """Changes of a cron. Omitted fields keep their value; a null `end_time` removes the end."""

    schedule: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    timezone: Annotated[str, Field(max_length=100)] | None = None
    end_time: Annotated[str, Field(max_length=40)] | None = None
    enabled: bool | None = None
    on_run_completed: Literal["delete", "keep"] | None = None
    input: Any = None
    metadata: Json | None = None
    config: Json | None = None
    context: Any = None
    webhook: str | None = None
    interrupt_before: Any = None
    interrupt_after: Any = None
    stream_mode: Any = None
    stream_subgraphs: bool | None = None
    stream_resumable: bool | None = None
    durability: str | None = None
    multitask_strategy: str | None = None

    def changed(self) -> Json:
        """Return the fields that change. Only `end_time` may become null."""
        given = self.model_dump(exclude_unset=True)
        return {name: value for name, value in given.items() if value is not None or name == "end_time"}


class CronCount(RequestModel):
    """The filters of a count of crons."""

    assistant_id: Name | None = None
    thread_id: SearchedText | None = None
    metadata: Json | None = None


class CronSearch(CronCount):
    """The filters, order and page of a search for crons."""

    enabled: bool | None = None
    limit: Limit = 10
    offset: Offset = 0
    sort_by: (
        Literal["cron_id", "assistant_id", "thread_id", "created_at", "updated_at", "next_run_date", "end_time"] | None
    ) = None
    sort_order: SortOrder | None = None
    select: list[CronField] | None = None


def end_moment(text: str) -> str:
    """Return a time in the form of schedule settings. A time without an offset is in UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f'end_time: "{text[:40]}" is not a time. Write it as 2026-01-31T12:00:00+00:00.') from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return format_timestamp((at - _EPOCH) // (_EPOCH.resolution))
