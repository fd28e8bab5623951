"""Rate limits of model providers, per credential, and the pure decision whether a call may begin.

A credential is a string such as "openai", "openai@tenant" or "openai:host". The part before the first ":" or "@" is the
provider, which determines the defaults.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, computed_field, with_config

from runlane.domain.backoff import backoff_seconds
from runlane.domain.wire import WIRE, Timestamp
from runlane.errors import InvalidRequest

MAX_CREDENTIAL: Final = 200
MAX_IN_FLIGHT: Final = 100_000
MAX_PER_MINUTE: Final = 1_000_000_000
# A call counts in the second in which it began. That second counts until it ended a full minute ago, so a limit is not
# exceeded in any span of 60 seconds.
WINDOW_SECONDS: Final = 60
# The longest Retry-After of a provider that is obeyed, and the longest back-off without one.
MAX_RETRY_AFTER_SECONDS: Final = 3600.0
MAX_BACK_OFF_SECONDS: Final = 60.0
_DEFAULT_IN_FLIGHT: Final = {"ollama": 1, "anthropic": 4, "openai": 8}
_CREDENTIAL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:\[\]-]*")


@dataclass(frozen=True, slots=True)
class ProviderLimits:
    """The bounds of a credential in the whole cluster. None means unlimited; 0 in flight pauses it."""

    in_flight: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __bool__(self) -> bool:
        return any(value is not None for value in asdict(self).values())


@dataclass(frozen=True, slots=True)
class LimitChange:
    """Limits to change; None leaves a limit unchanged. `unlimited` names the limits to remove."""

    in_flight: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    unlimited: frozenset[str] = frozenset()


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class CredentialLimits:
    """A credential's limits; null is unlimited. `default` means that they were never set."""

    credential: str
    in_flight: int | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    updated_at_us: Annotated[Timestamp | None, Field(alias="updated_at")]
    updated_by: str | None

    @computed_field
    @property
    def default(self) -> bool:
        """Return whether they are the defaults."""
        return self.updated_by is None

    @property
    def limits(self) -> ProviderLimits:
        """Return only the limits."""
        return ProviderLimits(self.in_flight, self.requests_per_minute, self.tokens_per_minute)


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class CredentialInUse:
    """The current use of a credential. Calls of a credential without limits are not counted."""

    in_flight: int = 0
    requests: Annotated[int, Field(alias="requests_this_minute")] = 0
    tokens: Annotated[int, Field(alias="tokens_this_minute")] = 0
    waiting: Annotated[int, Field(alias="waiting_processes")] = 0


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class CredentialUsage(CredentialLimits):
    """The limits of a credential, their current use, and the end of its back-off, if any."""

    now: CredentialInUse
    backing_off_until_us: Annotated[Timestamp | None, Field(alias="backing_off_until")]
    backing_off_reason: Annotated[str | None, Field(description="For platform admins.")]


@dataclass(frozen=True, slots=True)
class CredentialLoad:
    """The current use of a credential. `ahead` counts the processes that have waited longer than this one."""

    in_flight: int = 0
    requests: int = 0
    tokens: int = 0
    ahead: int = 0
    slow_seconds: float = 0.0
    slow_reason: str = ""


class LimitKind(StrEnum):
    """The limit for which a call has to wait."""

    SLOW = "slow"
    IN_FLIGHT = "in_flight"
    REQUESTS = "requests"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class LimitRefusal:
    """The reason why a call has to wait. `firm_seconds` is the shortest wait, if it is known."""

    reason: str
    firm_seconds: float | None = None


def check_credential(credential: str) -> str:
    """Return the credential if it is valid."""
    if len(credential) > MAX_CREDENTIAL or _CREDENTIAL.fullmatch(credential) is None:
        raise InvalidRequest(
            f"{credential[:MAX_CREDENTIAL]!r} is not a valid credential. Use 1 to {MAX_CREDENTIAL} letters, digits and "
            ". _ - @ : [ ], beginning with a letter or digit. Examples: openai, openai@acme, openai:llm.local:8000"
        )
    return credential


def default_limits(credential: str) -> ProviderLimits:
    """Return the limits of a credential for which none were set."""
    return ProviderLimits(_DEFAULT_IN_FLIGHT.get(re.split("[:@]", credential, maxsplit=1)[0]))


def default_credentials() -> list[str]:
    """Return the credentials that have default limits."""
    return sorted(_DEFAULT_IN_FLIGHT)


def changed_limits(limits: ProviderLimits, change: LimitChange) -> ProviderLimits:
    """Return the limits after a change."""
    names = set(asdict(limits))
    wrong = sorted(change.unlimited - names)
    if wrong:
        raise InvalidRequest(f"{wrong[0]} is not a limit. Limits: {', '.join(asdict(limits))}.")
    given: Mapping[str, int | None] = {
        name: value for name in names if (value := getattr(change, name)) is not None or name in change.unlimited
    }
    both = sorted(name for name in given if given[name] is not None and name in change.unlimited)
    if both:
        raise InvalidRequest(f"{both[0]} cannot be set and removed at once.")
    if not given:
        raise InvalidRequest(f"Nothing to change: give one of {', '.join(asdict(limits))}.")
    bounds = {"in_flight": (0, MAX_IN_FLIGHT)}
    for name, value in given.items():
        least, most = bounds.get(name, (1, MAX_PER_MINUTE))
        if value is not None and not least <= value <= most:
            raise InvalidRequest(f"{name}={value} is out of bounds: it must be between {least} and {most}.")
    return replace(limits, **given)


def counted_tokens(limits: ProviderLimits, tokens: int) -> int:
    """Return the tokens that a call reserves: at most the limit, because more would never be available."""
    most = limits.tokens_per_minute
    return max(0, tokens) if most is None else min(max(0, tokens), most)


def refused_by(limits: ProviderLimits, load: CredentialLoad, tokens: int) -> LimitKind | None:
    """Return which limit does not admit one more call, or None. Processes that have waited longer come first."""
    if load.slow_seconds > 0:
        return LimitKind.SLOW
    if limits.in_flight is not None and limits.in_flight - load.in_flight <= load.ahead:
        return LimitKind.IN_FLIGHT
    if limits.requests_per_minute is not None and limits.requests_per_minute - load.requests <= load.ahead:
        return LimitKind.REQUESTS
    if limits.tokens_per_minute is not None and (
        load.ahead or load.tokens + counted_tokens(limits, tokens) > limits.tokens_per_minute
    ):
        return LimitKind.TOKENS
    return None


def seconds_until_room(used: Mapping[int, int], limit: int, need: int) -> float | None:
    """Return in how many seconds enough of a minute's use has expired. `used` is keyed by its age in seconds."""
    total = sum(used.values())
    if total + need <= limit:
        return None
    for ago in sorted(used, reverse=True):
        total -= used[ago]
        if total + need <= limit:
            return float(max(0, WINDOW_SECONDS + 1 - ago))
    return float(WINDOW_SECONDS)


def describe_refusal(
    credential: str,
    limits: ProviderLimits,
    load: CredentialLoad,
    kind: LimitKind,
    tokens: int,
    firm_seconds: float | None,
) -> LimitRefusal:
    """Describe a refusal."""
    match kind:
        case LimitKind.SLOW:
            reason = f" ({load.slow_reason})" if load.slow_reason else ""
            seconds = math.ceil(load.slow_seconds)
            return LimitRefusal(f"{credential}: backing off for {seconds} s more{reason}", load.slow_seconds)
        case LimitKind.IN_FLIGHT if limits.in_flight == 0:
            return LimitRefusal(f"{credential}: paused, its limit is 0 calls in flight")
        case LimitKind.IN_FLIGHT:
            waiting = "" if load.in_flight >= (limits.in_flight or 0) else f", and {load.ahead} processes wait longer"
            return LimitRefusal(f"{credential}: {load.in_flight} of {limits.in_flight} calls are in flight{waiting}")
        case LimitKind.REQUESTS:
            return LimitRefusal(
                f"{credential}: {load.requests} of {limits.requests_per_minute} requests of this minute are used",
                firm_seconds,
            )
        case LimitKind.TOKENS:
            return LimitRefusal(
                f"{credential}: {load.tokens} of {limits.tokens_per_minute} tokens of this minute are used, and this "
                f"call needs about {counted_tokens(limits, tokens)}",
                firm_seconds,
            )


def back_off_seconds(streak: int, retry_after_seconds: float | None, jitter: float) -> float:
    """Return the back-off after the streak-th 429 in a row; `jitter` is in [0, 1)."""
    own = backoff_seconds(streak, jitter, longest_seconds=MAX_BACK_OFF_SECONDS)
    if retry_after_seconds is None or not math.isfinite(retry_after_seconds):
        return own
    return max(own, min(retry_after_seconds, MAX_RETRY_AFTER_SECONDS))
