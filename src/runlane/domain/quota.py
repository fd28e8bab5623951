"""Quotas of tenants: the resources that a tenant may have or start, and their use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from runlane.errors import InvalidRequest, QuotaReached

MAX_QUOTA: Final = 1_000_000_000_000
DAY_US: Final = 86_400_000_000
_SECOND_US: Final = 1_000_000
# The time at which a caller deletes something is unknown, so a retry is possible, but not soon.
_RETRY_SECONDS: Final = 60.0
WARNING_SHARE: Final = 0.8

RUNS_PER_DAY: Final = "runs_per_day"
CHAT_SESSIONS: Final = "chat_sessions"
STORED_BYTES: Final = "stored_bytes"
WEBHOOK_ENDPOINTS: Final = "webhook_endpoints"
TRIGGERS: Final = "triggers"
EVENTS_PER_MINUTE: Final = "events_per_minute"
COLLECTING_KEYS: Final = "collecting_keys"
MEMORIES: Final = "memories"

Period = Literal["second", "minute", "day"]


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """A quota of a tenant and its use."""

    name: str
    limit: Annotated[float | None, Field(description="Null is unlimited.")]
    used: Annotated[float | None, Field(description="Exact; null without a limit, because it is not counted then.")]
    per: Annotated[Period | None, Field(description="The period after which the count begins again; days are UTC.")]
    description: str


def check_quota_limit(limit: float) -> int:
    """Return the limit if it is a whole number within its bounds."""
    if isinstance(limit, bool) or limit != int(limit) or not 0 <= limit <= MAX_QUOTA:
        raise InvalidRequest(f"limit={limit} must be a whole number between 0 and {MAX_QUOTA}.")
    return int(limit)


def day_of(at_us: int) -> int:
    """Return the number of a day (UTC) since the epoch."""
    return at_us // DAY_US


def check_runs_per_day(tenant: str, limit: int, used: int, count: int, now_us: int) -> QuotaReached | None:
    """Return the refusal of this many more runs today, all or none."""
    if used + count <= limit:
        return None
    return QuotaReached(
        f'Tenant "{tenant}" has started {used} of at most {limit} runs today (quota {RUNS_PER_DAY}); {count} more '
        "would exceed it. The day ends at midnight UTC.",
        (DAY_US - now_us % DAY_US) / _SECOND_US,
    )


def check_stored_bytes(tenant: str, limit: int, used: int, size: int) -> QuotaReached | None:
    """Return the refusal of this many more bytes."""
    if used + size <= limit:
        return None
    return QuotaReached(
        f'Tenant "{tenant}" has stored {used} of at most {limit} bytes (quota {STORED_BYTES}); {size} more would '
        "exceed it. Shorten the retention of runs, or send references instead of content.",
        _RETRY_SECONDS,
    )


def check_collecting_keys(tenant: str, limit: int, used: int) -> QuotaReached | None:
    """Return the refusal of one more key whose starts are debounced or collected in a batch."""
    if used < limit:
        return None
    return QuotaReached(
        f'Tenant "{tenant}" has {used} of at most {limit} keys with a debounced run or a batch that is not due yet '
        f"(quota {COLLECTING_KEYS}). Retry when one of them is due.",
        _RETRY_SECONDS,
    )


def check_number(tenant: str, name: str, limit: int, used: int, count: int = 1) -> QuotaReached | None:
    """Return the refusal of this many more things of a kind, such as webhook endpoints."""
    if used + count <= limit:
        return None
    about = name.replace("_", " ")
    return QuotaReached(
        f'Tenant "{tenant}" has {used} of at most {limit} {about} (quota {name}); {count} more would exceed it. Delete '
        "some that are not needed, or have a platform admin raise the quota.",
        _RETRY_SECONDS,
    )


def is_warning(limit: int, before: int, after: int) -> bool:
    """Return whether this use is the first above the share at which a warning is due."""
    threshold = limit * WARNING_SHARE
    return before < threshold <= after
