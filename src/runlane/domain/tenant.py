"""Tenants: the owners of runs, and their limits.

Keys that callers choose, for idempotency and ordering, belong to a tenant: a key is stored with its tenant as prefix,
so that no tenant can find or block another's runs by guessing a key. Those of the default tenant have no prefix.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal, cast

from pydantic import Field, with_config

from runlane.domain.start_tags import MAX_WEIGHT, MIN_WEIGHT
from runlane.domain.wire import WIRE, Timestamp
from runlane.errors import InvalidRequest, QueueLimited, RateLimited, RateQuota

OnCap = Literal["fail", "ask"]
ON_CAP: Final[tuple[OnCap, ...]] = ("fail", "ask")
DEFAULT_TENANT: Final = "default"
MAX_COST_USD: Final = 1_000_000_000.0
MAX_LIMIT: Final = 1_000_000_000
MAX_SCHEDULE_SECONDS: Final = 86_400.0
# Up to this rate, a nanosecond lost per run cannot add up to one more run in a second.
MAX_RATE: Final = 10_000.0
_ID: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
# Ids and keys must not contain the separator, or a tenant could write a key of another tenant.
_BETWEEN: Final = "\x1f"
_SECOND_NS: Final = 1_000_000_000
# The time at which a queue has room is unknown; retry soon, but not in a tight loop.
_QUEUE_RETRY_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """The limits of a tenant; None means unlimited.

    `max_queued` counts every run that has not ended and bounds accepts. `max_running` bounds the runs in execution
    in the whole cluster: further runs are accepted and wait.
    """

    max_queued: int | None = None
    max_running: int | None = None
    rate_per_second: float | None = None

    def __bool__(self) -> bool:
        return not (self.max_queued is None and self.max_running is None and self.rate_per_second is None)


@dataclass(frozen=True, slots=True)
class TenantBudget:
    """The daily cap of a tenant's model costs (UTC), and what happens at the cap. Runs are still accepted."""

    max_cost_usd_per_day: float | None = None
    on_cap: OnCap = "fail"


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant with its limits; null is unlimited."""

    id: str
    name: str
    enabled: bool
    max_queued: int | None
    max_running: int | None
    rate_per_second: float | None
    max_cost_usd_per_day: float | None
    on_cap: OnCap
    weight: Annotated[float, Field(description="Its share of the starts in a lane, relative to other tenants.")]
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    updated_at_us: Annotated[Timestamp, Field(alias="updated_at")]
    max_schedules: Annotated[int | None, Field(description="Its schedules; null for 1000.")] = None
    min_schedule_seconds: Annotated[
        float | None, Field(description="The shortest period of its schedules; null for 10 seconds.")
    ] = None

    @property
    def limits(self) -> TenantLimits:
        """Return the limits of its runs."""
        return TenantLimits(self.max_queued, self.max_running, self.rate_per_second)

    @property
    def budget(self) -> TenantBudget:
        """Return the budget of its models."""
        return TenantBudget(self.max_cost_usd_per_day, self.on_cap)


@dataclass(slots=True)
class TenantUsage:
    """The usage of a tenant at the time of a decision, under its lock."""

    open: int
    rate_paid_until_ns: int
    now_ns: int


def check_tenant_id(tenant: str) -> str:
    """Return the id if it is valid."""
    if not isinstance(cast("object", tenant), str) or _ID.fullmatch(tenant) is None:
        raise InvalidRequest(
            f"{tenant!r} is not a valid tenant id: it must have 1 to 63 of a-z, 0-9, '_', '.' and '-', "
            "and begin with a letter or digit."
        )
    return tenant


def check_limits(limits: TenantLimits) -> TenantLimits:
    """Return the limits if they are valid."""
    for name, value in (("max_queued", limits.max_queued), ("max_running", limits.max_running)):
        if value is not None and not 0 <= value <= MAX_LIMIT:
            raise InvalidRequest(f"{name}={value} must be between 0 and {MAX_LIMIT}.")
    rate = limits.rate_per_second
    if rate is not None and not (math.isfinite(rate) and 0.001 <= rate <= MAX_RATE):
        raise InvalidRequest(f"rate_per_second={rate} must be between 0.001 and {MAX_RATE:g}.")
    return limits


def check_weight(weight: float) -> float:
    """Return the weight if it is valid."""
    if not (math.isfinite(weight) and MIN_WEIGHT <= weight <= MAX_WEIGHT):
        raise InvalidRequest(f"weight={weight} must be between {MIN_WEIGHT:g} and {MAX_WEIGHT:g}.")
    return weight


def check_budget(budget: TenantBudget) -> TenantBudget:
    """Return the budget if it is valid."""
    most = budget.max_cost_usd_per_day
    if most is not None and not (math.isfinite(most) and 0 < most <= MAX_COST_USD):
        raise InvalidRequest(f"max_cost_usd_per_day={most} must be above 0 and at most {MAX_COST_USD:g}.")
    if budget.on_cap not in ON_CAP:
        raise InvalidRequest(f'on_cap="{budget.on_cap}" must be one of: {", ".join(ON_CAP)}.')
    return budget


def check_schedule_limits(max_schedules: int | None, min_schedule_seconds: float | None) -> None:
    """Raise InvalidRequest unless the limits of schedules are valid."""
    if max_schedules is not None and not 0 <= max_schedules <= MAX_LIMIT:
        raise InvalidRequest(f"max_schedules={max_schedules} must be between 0 and {MAX_LIMIT}.")
    if min_schedule_seconds is not None and not 1 <= min_schedule_seconds <= MAX_SCHEDULE_SECONDS:
        raise InvalidRequest(
            f"min_schedule_seconds={min_schedule_seconds:g} must be between 1 and {MAX_SCHEDULE_SECONDS:g}."
        )


def scoped_key(tenant: str, key: str) -> str:
    """Return a caller's key as it is stored."""
    if _BETWEEN in key:
        raise InvalidRequest("A key contains the control character U+001F. Remove it.")
    return key if tenant == DEFAULT_TENANT else f"{tenant}{_BETWEEN}{key}"


def bare_key(stored: str) -> str:
    """Return a stored key as its caller wrote it."""
    return stored.rpartition(_BETWEEN)[2]


def admit(tenant: str, limits: TenantLimits, usage: TenantUsage, count: int) -> RateLimited | None:
    """Check whether this many more runs may be accepted, all or none; if so, add them to `usage`.

    The rate is a token bucket that holds one second's worth of runs (at least one run) and fills at the rate: after a
    pause that many may be accepted at once, and in any span of s seconds at most rate * (s + 1). Its only state is the
    time up to which the accepted runs have used the rate, so nothing has to be counted.
    """
    paid_until_ns = usage.rate_paid_until_ns
    if limits.rate_per_second is not None:
        each_ns = _SECOND_NS / limits.rate_per_second
        room_ns = max(_SECOND_NS, math.ceil(each_ns))
        paid_until_ns = max(usage.now_ns, paid_until_ns) + math.floor(count * each_ns)
        over_ns = paid_until_ns - usage.now_ns - room_ns
        if over_ns > 0:
            return RateLimited(
                f'Tenant "{tenant}" may start {limits.rate_per_second:g} runs per second; {count} more would pass '
                "that. " + _never(count, math.floor(room_ns / each_ns)),
                over_ns / _SECOND_NS,
            )
    if limits.max_queued is not None and usage.open + count > limits.max_queued:
        return QueueLimited(
            f'Tenant "{tenant}" has {usage.open} open runs of at most {limits.max_queued}; {count} more would pass '
            "that. " + _never(count, limits.max_queued),
            _QUEUE_RETRY_SECONDS,
        )
    usage.open += count
    usage.rate_paid_until_ns = paid_until_ns
    return None


def rate_quota(limits: TenantLimits, usage: TenantUsage) -> RateQuota | None:
    """Return the remaining rate of the tenant; None without a rate."""
    if limits.rate_per_second is None:
        return None
    each_ns = _SECOND_NS / limits.rate_per_second
    room_ns = max(_SECOND_NS, math.ceil(each_ns))
    used_ns = max(0, usage.rate_paid_until_ns - usage.now_ns)
    remaining = max(0, math.floor((room_ns - used_ns) / each_ns))
    return RateQuota(math.floor(room_ns / each_ns), remaining, used_ns / _SECOND_NS)


def _never(count: int, most: int) -> str:
    if count > most:
        return f"At most {most} can be accepted at once: send fewer."
    return "Try again later."
