"""The kinds of fields that requests and answers are made of, and their bounds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from runlane.domain.run import MAX_PRIORITY, MIN_PRIORITY
from runlane.submit.orchestrations import MAX_URL
from runlane.submit.tasks import MAX_DELAY_SECONDS, MAX_KEY

MAX_BATCH = 1000
MAX_BULK = 1000
MAX_PAGE = 1000
MAX_WAIT_SECONDS = 60

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Neither NUL nor a control character can be part of a name or key; Postgres could not even store the first.
_CLEAN = r"^[^\x00-\x1f\x7f]*$"


def text_only(value: str) -> str:
    """The value, if it is text."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is not text") from None
    return value


def moment_us(value: str) -> int:
    """A moment in microseconds since the epoch; without an offset it is UTC."""
    at = datetime.fromisoformat(value)
    return ((at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def _moment(value: str) -> str:
    try:
        moment_us(value)
    except (ValueError, OverflowError):
        raise ValueError("a moment is written 2026-01-31T12:00:00Z") from None
    return value


Moment = Annotated[str, StringConstraints(max_length=40), AfterValidator(_moment)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=MAX_KEY, pattern=_CLEAN), AfterValidator(text_only)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=_CLEAN), AfterValidator(text_only)]
StepPath = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=_CLEAN), AfterValidator(text_only)]
Priority = Annotated[int, Field(ge=MIN_PRIORITY, le=MAX_PRIORITY, description="Higher runs earlier.")]
Delay = Annotated[float, Field(ge=0, le=MAX_DELAY_SECONDS, description="Seconds before the run may start.")]
WebhookUrl = Annotated[
    str, Field(min_length=1, max_length=MAX_URL, description="Stored with the run, to be called when it ends.")
]
At = Annotated[str, Field(description="RFC 3339, UTC.", examples=["2026-01-31T12:00:00.000000Z"])]


class RequestModel(BaseModel):
    """Base of every request body."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class ResponseModel(BaseModel):
    """Base of every answer."""
