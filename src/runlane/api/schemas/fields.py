"""Field types of requests and responses, with their bounds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from runlane.domain.run import MAX_PRIORITY, MIN_PRIORITY, Status
from runlane.domain.start_tags import MAX_FAIRNESS_KEY
from runlane.domain.tags import MAX_TAG, MAX_TAGS, TAG_PATTERN
from runlane.domain.webhook import MAX_URL
from runlane.submit.tasks import MAX_DELAY_SECONDS, MAX_KEY, WEBHOOK_SECRET_CHARACTERS

MAX_BATCH = 1000
MAX_BULK = 1000
MAX_PAGE = 1000
MAX_WAIT_SECONDS = 60

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Names and keys must not contain control characters. Postgres cannot store NUL.
_CLEAN = r"^[^\x00-\x1f\x7f]*$"

# Names of other job systems for statuses, which filters accept.
_OTHER_STATUSES: Final = {"pending": Status.QUEUED, "approved": Status.QUEUED, "processing": Status.RUNNING}


def _known_status(value: Any) -> Any:
    return _OTHER_STATUSES.get(value, value) if isinstance(value, str) else value


WantedStatus = Annotated[Status, BeforeValidator(_known_status)]


def text_only(value: str) -> str:
    """Return the value. Raise ValueError if it cannot be encoded as UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("must not contain half of a surrogate pair") from None
    return value


def moment_us(value: str) -> int:
    """Return a time in microseconds since the epoch. A time without an offset is in UTC."""
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
RunId = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=_CLEAN), AfterValidator(text_only)]
StepPath = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=_CLEAN), AfterValidator(text_only)]
Note = Annotated[str, StringConstraints(min_length=1, max_length=2000), AfterValidator(text_only)]
Priority = Annotated[int, Field(ge=MIN_PRIORITY, le=MAX_PRIORITY, description="Higher runs earlier.")]
Delay = Annotated[float, Field(ge=0, le=MAX_DELAY_SECONDS, description="Seconds before the run may start.")]
FairnessKey = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_FAIRNESS_KEY, pattern=_CLEAN),
    AfterValidator(text_only),
    Field(description="Runs with different keys get equal shares of the tenant's starts in a lane."),
]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TAG, pattern=TAG_PATTERN)]
Tags = Annotated[Sequence[Tag], Field(max_length=MAX_TAGS, description="Words that lists of runs can be filtered by.")]
WebhookUrl = Annotated[
    str, Field(min_length=1, max_length=MAX_URL, description="Receives a webhook at the end; see the webhooks how-to.")
]
WebhookSecretText = Annotated[
    str,
    Field(
        min_length=WEBHOOK_SECRET_CHARACTERS[0],
        max_length=WEBHOOK_SECRET_CHARACTERS[1],
        description="Signs the webhook of the run. It is stored encrypted, and never shown.",
    ),
]
At = Annotated[str, Field(description="RFC 3339, UTC.", examples=["2026-01-31T12:00:00.000000Z"])]


class RequestModel(BaseModel):
    """Base class of request bodies."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class ResponseModel(BaseModel):
    """Base class of response bodies.

    The validator is built at its first use, because most models are only described.
    """

    model_config = ConfigDict(defer_build=True)
