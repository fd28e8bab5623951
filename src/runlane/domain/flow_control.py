"""Flow control: rules that bound when and how often a target is started, per key.

A target declares a `FlowControl`, and a start may replace single rules of it. A key is a template over the input and
the tags of the run. `domain/flow_keys.py` has the rules of one run, with their keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from runlane.domain.concurrency import MAX_LIMITS, ConcurrencyRule, ConcurrencyStrategy
from runlane.domain.validation import listed_errors, too_many
from runlane.errors import InvalidFlowControl, nearest

MAX_FLOW_KEY: Final = 256
MAX_TEMPLATE: Final = 1000
MAX_PERIOD_SECONDS: Final = 31 * 86400.0
MAX_STARTS: Final = 1_000_000
MAX_BATCH_SIZE: Final = 1000
MAX_BATCH_BYTES: Final = 1024 * 1024
MAX_RULE_BACKLOG: Final = 1_000_000
DEFAULT_BACKLOG: Final = 10_000
# A debounced run starts at the latest after this many delays, unless the rule has another bound.
DELAYS_AT_MOST: Final = 10

_STRICT: Final = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
_KEY: Final = "Template over the input and the tags of the run; without it, all runs of the target share one key."

Key = Annotated[str, Field(max_length=MAX_TEMPLATE, description=_KEY)]
Seconds = Annotated[float, Field(gt=0, le=MAX_PERIOD_SECONDS)]
Starts = Annotated[int, Field(ge=1, le=MAX_STARTS)]


class UniqueRule(BaseModel):
    """At most one open run per key."""

    model_config = _STRICT

    key: Key = ""
    on_conflict: Literal["reject", "return", "replace", "skip"] = Field(
        default="reject",
        description="What a start does while a run with its key is open: it is rejected, returns that run, cancels it "
        "and takes its place, or is skipped.",
    )


class RateLimitRule(BaseModel):
    """At most `max` starts per period and key; further ones are rejected or dropped."""

    model_config = _STRICT

    key: Key = ""
    max: Starts = Field(description="Starts per period.")
    per_seconds: Seconds = Field(description="The period.")
    burst: Starts | None = Field(
        default=None, description="Starts that are allowed at once after a pause; `max` by default."
    )
    on_limit: Literal["reject", "drop"] = Field(
        default="reject", description="Whether a further start is an error or dropped."
    )


class ThrottleRule(BaseModel):
    """At most `max` runs become ready per period and key; further ones are accepted and get a later due time."""

    model_config = _STRICT

    key: Key = ""
    max: Starts = Field(description="Runs per period.")
    per_seconds: Seconds = Field(description="The period.")
    burst: Starts = Field(default=1, description="Runs that may become ready at once after a pause.")
    max_backlog: int = Field(
        default=DEFAULT_BACKLOG, ge=0, le=MAX_RULE_BACKLOG, description="Runs per key that may wait; more are rejected."
    )


class DebounceRule(BaseModel):
    """Starts with one key become one run, which is due when none came for `delay_seconds`."""

    model_config = _STRICT

    key: Key = ""
    delay_seconds: Seconds = Field(description="How long to wait for further starts.")
    max_delay_seconds: Seconds | None = Field(
        default=None,
        description=f"The longest delay since the first start; {DELAYS_AT_MOST} times delay_seconds by default.",
    )
    mode: Literal["trailing", "leading"] = Field(
        default="trailing", description="Which input the run uses: the last or the first."
    )

    @model_validator(mode="after")
    def _bounded(self) -> DebounceRule:
        if self.max_delay_seconds is not None and self.max_delay_seconds < self.delay_seconds:
            raise ValueError("max_delay_seconds must be at least delay_seconds")
        return self


class BatchRule(BaseModel):
    """The inputs of starts with one key are collected into the input of one run."""

    model_config = _STRICT

    key: Key = ""
    max_size: int = Field(ge=1, le=MAX_BATCH_SIZE, description="Starts per run. A run also has at most 1 MB of inputs.")
    max_wait_seconds: Seconds = Field(description="Maximum waiting time of the first start.")


class BacklogRule(BaseModel):
    """At most `max` runs per key wait for their first start; further starts are rejected."""

    model_config = _STRICT

    key: Key = ""
    max: int = Field(ge=0, le=MAX_RULE_BACKLOG, description="Runs per key that may wait.")


class ConcurrencyLimitRule(BaseModel):
    """At most `max_running` runs per key at once, or those that a shared limit allows."""

    model_config = _STRICT

    key: Key = ""
    max_running: Starts | None = Field(default=None, description="Runs per key; not with `limit`.")
    limit: str | None = Field(
        default=None, min_length=1, max_length=128, description="Name of a limit that targets share."
    )
    strategy: ConcurrencyStrategy = Field(
        default=ConcurrencyStrategy.QUEUE,
        strict=False,
        description="What a new run does while the limit is reached: it waits, cancels the oldest one, or is rejected.",
    )

    @model_validator(mode="after")
    def _one_number(self) -> ConcurrencyLimitRule:
        if (self.max_running is None) == (self.limit is None):
            raise ValueError("give exactly one of max_running and limit")
        if self.limit is not None and self.key:
            raise ValueError("leave out the key: every run of a target that names a shared limit counts for it")
        return self

    @cached_property
    def rule(self) -> ConcurrencyRule:
        """The rule as the store counts it."""
        return ConcurrencyRule(self.key, self.max_running, self.limit, self.strategy)


class FlowControl(BaseModel):
    """The rules of a target, or those of a start. An empty field is not a rule."""

    model_config = _STRICT

    unique: UniqueRule | None = Field(default=None, description="At most one open run per key.")
    idempotency_seconds: Seconds | None = Field(
        default=None, description="How long an idempotency key returns the same run, counted from its first use."
    )
    rate_limit: RateLimitRule | None = Field(default=None, description="At most N starts per period and key.")
    throttle: ThrottleRule | None = Field(default=None, description="Spread the starts of a key over time.")
    debounce: DebounceRule | None = Field(
        default=None, description="Combine starts that follow each other quickly into one run."
    )
    batch: BatchRule | None = Field(default=None, description="Collect the inputs of several starts into one run.")
    concurrency: list[ConcurrencyLimitRule] | None = Field(
        default=None,
        max_length=MAX_LIMITS,
        description="At most N runs per key at once. All limits of a run must have room.",
    )
    max_backlog: BacklogRule | None = Field(default=None, description="At most N runs per key wait for their start.")
    expires_after_seconds: Annotated[float, Field(gt=0, le=366 * 86400)] | None = Field(
        default=None, description="A run that has not started by then is cancelled with the code expired."
    )

    @model_validator(mode="after")
    def _one_due_time(self) -> FlowControl:
        timed = [name for name in ("debounce", "batch", "throttle") if getattr(self, name) is not None]
        if len(timed) > 1:
            raise ValueError(f"{' and '.join(timed)} exclude each other: each sets the due time. Keep one of them")
        return self

    @cached_property
    def has_only_limits(self) -> bool:
        """Whether concurrency limits are the only rules."""
        return all(getattr(self, name) is None for name in type(self).model_fields if name != "concurrency")

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in type(self).model_fields)

    @property
    def keys(self) -> dict[str, str]:
        """The template of each key, by the location of its field."""
        rules = {name: getattr(self, name) for name in KEYED}
        found = {f"{name}.key": cast("str", rule.key) for name, rule in rules.items() if rule is not None}
        for position, rule in enumerate(self.concurrency or ()):
            found[f"concurrency.{position}.key"] = rule.key
        return found


KEYED: Final = ("unique", "rate_limit", "throttle", "debounce", "batch", "max_backlog")


def parse_flow_control(value: FlowControl | Mapping[str, Any], where: str = "flow_control") -> FlowControl:
    """Return rules from JSON. InvalidFlowControl names each field that is not valid, with the reason."""
    if isinstance(value, FlowControl):
        return value
    if not isinstance(cast("object", value), Mapping):
        names = ", ".join(FlowControl.model_fields)
        raise InvalidFlowControl({where: f"{value!r} is not an object. Give rules by name: {names}."[:500]})
    try:
        return FlowControl.model_validate(dict(value))
    except ValidationError as error:
        problems = {
            ".".join([where, *(str(part) for part in item["loc"])]): _problem(cast("dict[str, Any]", item))
            for item in listed_errors(error)
        }
        problems = problems or {where: too_many(error)}
    raise InvalidFlowControl(problems) from None


def _problem(item: Mapping[str, Any]) -> str:
    if item["type"] == "extra_forbidden":
        name = str(item["loc"][-1])
        return f"is not a rule or field of flow control{nearest(name, _NAMES)}. Leave it out."
    given = "" if item["type"] == "missing" else f", not {str(item['input'])[:60]!r}"
    return f"{item['msg'].removeprefix('Value error, ')}{given}. Correct the rule, or leave it out."


def merge_flow_control(declared: FlowControl | None, given: FlowControl | Mapping[str, Any] | None) -> FlowControl:
    """Return the declared rules with the rules of a start, which replace them by name; a given null removes a rule."""
    if given is None:
        return NO_FLOW_CONTROL if declared is None else declared
    changes = parse_flow_control(given)
    if declared is None:
        return changes
    merged = {name: getattr(declared, name) for name in FlowControl.model_fields}
    merged |= {name: getattr(changes, name) for name in changes.model_fields_set}
    try:
        return FlowControl.model_validate(merged)
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise InvalidFlowControl({"flow_control": f"{message}: set the declared one to null."}) from None


_NAMES: Final = sorted(
    {
        name
        for kind in (
            FlowControl, UniqueRule, RateLimitRule, ThrottleRule, DebounceRule, BatchRule, BacklogRule,
            ConcurrencyLimitRule,
        )
        for name in kind.model_fields
    }
)  # fmt: skip
NO_FLOW_CONTROL: Final = FlowControl.model_validate({})
