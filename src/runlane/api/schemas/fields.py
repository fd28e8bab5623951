"""Field types of requests and responses, and their bounds."""

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
# Names and keys must not contain control characters; Postgres cannot even store NUL.
_CLEAN = r"^[^\x00-\x1f\x7f]*$"


def text_only(value: str) -> str:
    """Return the value if it can be encoded."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("must not contain half of a surrogate pair") from None
    return value


def moment_us(value: str) -> int:
    """Return a time in microseconds since the epoch. Without an offset it is UTC."""
    at = datetime.fromisoformat(value)
    return ((at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def _moment(value: str) -> str:
    try:
        moment_us(value)
    except (ValueError, OverflowError):
        raise ValueError("must be a time such as 2026-01-31T12:00:00Z") from None
    return value


Moment = Annotated[str, StringConstraints(max_length=40), AfterValidator(_moment)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=MAX_KEY, pattern=_CLEAN), AfterValidator(text_only)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=_CLEAN), AfterValidator(text_only)]
StepPath = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=_CLEAN), AfterValidator(text_only)]
Priority = Annotated[int, Field(ge=MIN_PRIORITY, le=MAX_PRIORITY, description="Higher runs earlier.")]
Delay = Annotated[float, Field(ge=0, le=MAX_DELAY_SECONDS, description="Seconds before the run may start.")]
WebhookUrl = Annotated[
    str, Field(min_length=1, max_length=MAX_URL, description="Stored with the run, and called when it ends.")
]
At = Annotated[str, Field(description="RFC 3339, UTC.", examples=["2026-01-31T12:00:00.000000Z"])]


class RequestModel(BaseModel):
    """Base of every request body."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class ResponseModel(BaseModel):
    """Base of every response body."""
