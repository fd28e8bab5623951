"""The flow control of one run: its rules with their keys, and the arithmetic of rates.

A rate is kept as one number per key, the theoretical arrival time (GCRA): the time up to which the accepted starts have
used the rate. In any span of s seconds, at most `burst + s / interval` starts conform.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import Field, with_config

from runlane.domain.wire import WIRE, Timestamp

SECOND_US: Final = 1_000_000
SECOND_NS: Final = 1_000_000_000
_BETWEEN: Final = "\x1f"


class FlowRule(StrEnum):
    """The rules, by the names of their fields."""

    UNIQUE = "unique"
    RATE_LIMIT = "rate_limit"
    THROTTLE = "throttle"
    DEBOUNCE = "debounce"
    BATCH = "batch"
    MAX_BACKLOG = "max_backlog"
    CONCURRENCY = "concurrency"


class StartOutcome(StrEnum):
    """The outcome of a start under flow control. With `skipped` and `dropped`, no run exists."""

    STARTED = "started"
    EXISTING = "existing"
    DEBOUNCED = "debounced"
    BATCHED = "batched"
    SKIPPED = "skipped"
    DROPPED = "dropped"


class UniqueKey(NamedTuple):
    """At most one open run has this key."""

    key: str
    label: str
    on_conflict: str = "reject"


class RateKey(NamedTuple):
    """One start per interval, after a burst."""

    key: str
    label: str
    interval_ns: int
    burst: int
    on_limit: str = "reject"


class ThrottleKey(NamedTuple):
    """One run becomes ready per interval, after a burst."""

    key: str
    label: str
    interval_ns: int
    burst: int
    max_backlog: int


class DebounceKey(NamedTuple):
    """Starts become one run until it is due."""

    key: str
    label: str
    delay_us: int
    max_delay_us: int
    leading: bool = False


class BatchKey(NamedTuple):
    """Inputs are collected in one run until it is full or due. `item` is the JSON of this start."""

    key: str
    label: str
    max_size: int
    max_wait_us: int
    start_id: str
    item: str


class BacklogKey(NamedTuple):
    """At most `most` runs wait for their first start."""

    key: str
    label: str
    most: int


class RunFlow(NamedTuple):
    """The rules of one run. A tuple of plain values, because it is stored with buffered slots of schedules."""

    unique: UniqueKey | None = None
    rate_limit: RateKey | None = None
    throttle: ThrottleKey | None = None
    debounce: DebounceKey | None = None
    batch: BatchKey | None = None
    max_backlog: BacklogKey | None = None
    expires_us: int | None = None
    idempotency_us: int | None = None

    @property
    def keys(self) -> list[str]:
        """The keys whose rows are locked while the start is decided."""
        return [rule.key for rule in self[:6] if rule is not None]

    @classmethod
    def of_list(cls, stored: Sequence[Any] | None) -> Self | None:
        """Return the rules that were stored as JSON."""
        if stored is None:
            return None
        kinds = (UniqueKey, RateKey, ThrottleKey, DebounceKey, BatchKey, BacklogKey)
        keyed = [None if given is None else kind(*given) for kind, given in zip(kinds, stored[:6], strict=True)]
        return cls(*keyed, *stored[6:])  # type: ignore[arg-type]  # pyright does not follow the kinds


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class FlowKeyUse:
    """A key of a rule of flow control, and the outcome of its starts. It is deleted after a day without use."""

    id: Annotated[str, Field(description="Identifies the key in a list; a cursor.")]
    rule: FlowRule
    target: str
    key: Annotated[str, Field(description="The key as it was rendered; empty for a rule without a key.")]
    skipped: Annotated[int, Field(description="Starts that were skipped (`unique`) or dropped (`rate_limit`).")]
    run_id: Annotated[str | None, Field(description="The debounced run or batch that further starts join.")]
    starts: Annotated[int | None, Field(description="The starts that have become this run.")]
    due_at_us: Annotated[Timestamp | None, Field(alias="due_at", description="When this run is due.")]


def scoped_flow_key(tenant: str, rule: FlowRule, target: str, key: str) -> str:
    """Return a key as it is stored: it belongs to a tenant, a rule and a target."""
    return _BETWEEN.join((tenant, rule, target, key))


def flow_key_prefix(tenant: str, rule: FlowRule, target: str | None) -> str:
    """Return how the stored keys of a rule begin, of one target or of all."""
    return _BETWEEN.join((tenant, rule.value, "" if target is None else f"{target}{_BETWEEN}"))


def parts_of_key(stored: str) -> tuple[FlowRule, str, str]:
    """Return the rule, the target and the key as it was rendered."""
    _, rule, target, label = stored.split(_BETWEEN, 3)
    return FlowRule(rule), target, label


def rule_of_key(stored: str) -> FlowRule:
    """Return the rule of a stored key."""
    return FlowRule(stored.split(_BETWEEN, 2)[1])


def label_of_key(stored: str) -> str:
    """Return a stored key as it was rendered."""
    return stored.split(_BETWEEN, 3)[3]


@lru_cache(maxsize=1024)
def interval_ns(most: int, per_seconds: float) -> int:
    """Return the time that one start uses. Rounded up, so that a period never has more than `most`."""
    return math.ceil(per_seconds * SECOND_NS / most)


def wait_ns(tat_ns: int, now_ns: int, interval: int, burst: int) -> int:
    """Return how long after now a start conforms to the rate; at most 0 if it does now."""
    return tat_ns - (burst - 1) * interval - now_ns


def next_tat_ns(tat_ns: int, now_ns: int, interval: int) -> int:
    """Return the theoretical arrival time after one more start."""
    return max(tat_ns, now_ns) + interval


def backlog_of(wait: int, interval: int) -> int:
    """Return how many waiting starts are ahead of a start that waits this long."""
    return 0 if wait <= 0 else math.ceil(wait / interval)
