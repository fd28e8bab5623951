"""A page of a run's events. They are sent as stored, so the bytes of a page and of the stream are equal."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from runlane.api.schemas.fields import ResponseModel


class EventsPage(ResponseModel):
    """Events of a run, in the order of its stream."""

    run_id: str
    count: int
    events: list[dict[str, Any]] = Field(
        examples=[[{"type": "queued", "seq": 1, "run_id": "run_1", "attempt": 0, "at": "2026-01-31T12:00:00.000000Z"}]]
    )
    next_after: int = Field(description="Pass it as `after` to get the next page.")
    next_before: int | None = Field(
        description="With `order=desc`: pass it as `before` to get the next page; null on the last one."
    )
    last_seq: int
    first_seq: int = Field(description="The number of the oldest stored event.")
