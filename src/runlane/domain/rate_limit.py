"""Limits of model providers, per credential: how they are said, and whether a call may begin under them.

A credential is a text such as "openai", "openai@tenant" or "openai:host"; what comes before the first ":" or "@" says
whose defaults it has. The decision is pure, so that it is the same wherever the numbers are kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Final

from runlane.errors import InvalidRequest

MAX_CREDENTIAL: Final = 200
MAX_IN_FLIGHT: Final = 100_000
MAX_PER_MINUTE: Final = 1_000_000_000
# A call counts in the second in which it began, and that second counts until all of it is a minute ago: in no span of
# 60 seconds is a limit passed.
WINDOW_SECONDS: Final = 60
# The longest that a provider's Retry-After is obeyed, and the longest that we choose ourselves.
MAX_RETRY_AFTER_SECONDS: Final = 3600.0
MAX_BACK_OFF_SECONDS: Final = 60.0
_FIRST_BACK_OFF_SECONDS: Final = 1.0
_DEFAULT_IN_FLIGHT: Final = {"ollama": 1, "anthropic": 4, "openai": 8}
_CREDENTIAL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:\[\]-]*")


@dataclass(frozen=True, slots=True)
class ProviderLimits:
    """What a credential may use in the whole cluster; None is no limit, 0 in flight is a pause."""

    in_flight: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __bool__(self) -> bool:
        return any(value is not None for value in asdict(self).values())


@dataclass(frozen=True, slots=True)
class LimitChange:
    """What to change; a field that is left out stays. `unlimited` names limits to remove, which None cannot say."""

    in_flight: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    unlimited: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CredentialLoad:
    """What is used of a credential at a moment; `ahead` are those who have waited longer than whoever asks."""

    in_flight: int = 0
    requests: int = 0
    tokens: int = 0
    ahead: int = 0
    slow_seconds: float = 0.0
    slow_reason: str = ""


class LimitKind(StrEnum):
    """Why a call has to wait."""

    SLOW = "slow"
    IN_FLIGHT = "in_flight"
    REQUESTS = "requests"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class LimitRefusal:
    """A call has to wait, in words. `firm_seconds` is how long at least, where that is known."""

    reason: str
    firm_seconds: float | None = None


def check_credential(credential: str) -> str:
    """The credential, if it is one."""
    if len(credential) > MAX_CREDENTIAL or _CREDENTIAL.fullmatch(credential) is None:
        raise InvalidRequest(
            f"{credential[:MAX_CREDENTIAL]!r} is no credential: it must have 1 to {MAX_CREDENTIAL} of letters, digits "
            "and . _ - @ : [ ], and begin with a letter or digit. Examples: openai, openai@acme, openai:llm.local:8000"
        )
    return credential


def default_limits(credential: str) -> ProviderLimits:
    """What holds while nobody has set anything."""
    return ProviderLimits(_DEFAULT_IN_FLIGHT.get(re.split("[:@]", credential, maxsplit=1)[0]))


def default_credentials() -> list[str]:
    """The credentials that have limits by themselves."""
    return sorted(_DEFAULT_IN_FLIGHT)


def changed_limits(limits: ProviderLimits, change: LimitChange) -> ProviderLimits:
    """The limits after a change."""
    names = set(asdict(limits))
    wrong = sorted(change.unlimited - names)
    if wrong:
        raise InvalidRequest(f"{wrong[0]} is no limit. Limits: {', '.join(asdict(limits))}.")
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
    """What a call reserves: never more than the limit, or it would wait for ever."""
    most = limits.tokens_per_minute
    return max(0, tokens) if most is None else min(max(0, tokens), most)


def refused_by(limits: ProviderLimits, load: CredentialLoad, tokens: int) -> LimitKind | None:
    """What stands in the way of one more call, or None. Those who wait longer come first."""
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
    """When enough of a minute's use is over, in seconds from now; `used` is by how many seconds ago it was."""
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
    """A refusal in words."""
    match kind:
        case LimitKind.SLOW:
            said = f" ({load.slow_reason})" if load.slow_reason else ""
            seconds = math.ceil(load.slow_seconds)
            return LimitRefusal(f"{credential}: everybody slows down for {seconds} s more{said}", load.slow_seconds)
        case LimitKind.IN_FLIGHT if limits.in_flight == 0:
            return LimitRefusal(f"{credential}: paused, its limit is 0 calls in flight")
        case LimitKind.IN_FLIGHT:
            waiting = "" if load.in_flight >= (limits.in_flight or 0) else f", and {load.ahead} wait before this one"
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


def back_off_seconds(streak: int, asked_seconds: float | None, jitter: float) -> float:
    """How long everybody waits after the provider said so for the streak-th time in a row; `jitter` in [0, 1)."""
    full = min(MAX_BACK_OFF_SECONDS, _FIRST_BACK_OFF_SECONDS * 2.0 ** min(max(streak, 1) - 1, 16))
    own = full * (0.5 + 0.5 * jitter)
    if asked_seconds is None or not math.isfinite(asked_seconds):
        return own
    return max(own, min(asked_seconds, MAX_RETRY_AFTER_SECONDS))
