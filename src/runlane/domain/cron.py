"""Crons: schedules of the runs of an assistant, as clients of LangGraph see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, with_config

from runlane.domain.wire import WIRE, Timestamp


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class Cron:
    """A cron. Without a thread, each run has one of its own, which `on_run_completed` deletes or keeps."""

    id: Annotated[str, Field(alias="cron_id")]
    assistant_id: str
    thread_id: str | None
    user_id: str
    end_time_us: Annotated[Timestamp | None, Field(alias="end_time")]
    schedule: str
    timezone: str | None
    payload: dict[str, Any]
    next_run_date_us: Annotated[Timestamp | None, Field(alias="next_run_date")]
    metadata: dict[str, Any]
    on_run_completed: str | None
    enabled: bool
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    updated_at_us: Annotated[Timestamp, Field(alias="updated_at")]
