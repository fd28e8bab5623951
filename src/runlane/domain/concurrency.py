"""Concurrency limits: how many runs with the same key may be admitted to the queue at once.

A target declares `ConcurrencyRule`s, or a start gives them. A run has the `ConcurrencyLimit`s that follow from its
rules, its input and its tags.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Final, NamedTuple

from pydantic import Field, with_config

from runlane.domain.text import dump_json, load_json
from runlane.domain.wire import WIRE, Timestamp
from runlane.errors import InvalidRequest

MAX_RUNNING: Final = 1_000_000
MAX_LIMIT_NAME: Final = 128
# A run has at most this many limits.
MAX_LIMITS: Final = 8
_NAME: Final = re.compile(rf"[a-zA-Z0-9][a-zA-Z0-9_.-]{{0,{MAX_LIMIT_NAME - 1}}}")
# The separator between the tenant and the name of a shared limit. Keys of callers cannot contain it.
_SHARED: Final = "\x1flimit\x1f"


class ConcurrencyStrategy(StrEnum):
    """The effect on a new run while the limit is reached."""

    QUEUE = "queue"  # the new run waits; keys with waiting runs take turns
    CANCEL_RUNNING = (
        "cancel_running"  # the oldest run with the key is cancelled, and the new one starts when it has ended
    )
    REJECT_NEW = "reject_new"  # the start is refused with 429


@dataclass(frozen=True, slots=True)
class ConcurrencyRule:
    """A declared limit. `key` is a template over input and tags; without it all runs of the target share the limit.

    With `limit` it is a limit that the tenant stores under this name and that several targets share; its number is
    stored with it, and `max_running` is None.
    """

    key: str = ""
    max_running: int | None = None
    limit: str | None = None
    strategy: ConcurrencyStrategy = ConcurrencyStrategy.QUEUE


class ConcurrencyLimit(NamedTuple):
    """A limit of one run: the key under which it is counted, and its number, which is None for a shared limit.

    `key` begins with the tenant. `label` names the key to people, as in "3 of 3 runs for customer-7 are running".
    """

    key: str
    max_running: int | None
    label: str
    limit: str | None = None
    strategy: ConcurrencyStrategy = ConcurrencyStrategy.QUEUE


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class SharedLimit:
    """A concurrency limit that a tenant stores under a name, and its use."""

    name: str
    tenant: str
    max_running: Annotated[int, Field(description="The most runs that are admitted at once; 0 starts none.")]
    admitted: Annotated[int, Field(description="The runs that are queued or running under this limit.")]
    waiting: Annotated[int, Field(description="The runs that wait for this limit, counted up to 10,000.")]
    updated_at_us: Annotated[Timestamp, Field(alias="updated_at")]
    updated_by: str


def shared_limit_key(tenant: str, name: str) -> str:
    """Return the key under which the runs of a shared limit are counted."""
    return f"{tenant}{_SHARED}{name}"


def check_limit_name(name: str) -> str:
    """Return the name of a shared limit if it is valid."""
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{name!r} is not a valid name of a concurrency limit: it must have 1 to {MAX_LIMIT_NAME} letters, digits, "
            "'_', '.' and '-', and begin with a letter or digit."
        )
    return name


def check_max_running(max_running: int) -> int:
    """Return the number of a limit if it is valid."""
    if not 0 <= max_running <= MAX_RUNNING:
        raise InvalidRequest(f"max_running={max_running} must be between 0 and {MAX_RUNNING}.")
    return max_running


def counted_limits(tenant: str, limits: Sequence[Sequence[object]]) -> tuple[ConcurrencyLimit, ...]:
    """Return the limits of a run as they are counted: each key once, the shared limits last, under their own keys."""
    if len(limits) == 1 and isinstance(limits[0], ConcurrencyLimit) and limits[0].limit is None:
        return (limits[0],)
    found: dict[str, ConcurrencyLimit] = {}
    for values in limits:
        limit = _limit(values)
        if limit.limit is not None:
            limit = limit._replace(key=shared_limit_key(tenant, limit.limit), max_running=None)
        found.setdefault(limit.key, limit)
    if len(found) > MAX_LIMITS:
        raise InvalidRequest(f"A run has {len(found)} concurrency limits. It can have at most {MAX_LIMITS}.")
    return tuple(sorted(found.values(), key=lambda limit: limit.limit is not None))


@lru_cache(maxsize=4096)
def limits_to_text(limits: tuple[ConcurrencyLimit, ...]) -> str | None:
    """Return limits as they are stored with a run; None without any."""
    return dump_json([list(limit) for limit in limits]) if limits else None


def limits_of_text(text: str | None) -> tuple[ConcurrencyLimit, ...]:
    """Return stored limits."""
    return tuple(_limit(values) for values in load_json(text)) if text else ()


def _limit(values: Sequence[object]) -> ConcurrencyLimit:
    limit = ConcurrencyLimit(*values)  # type: ignore[arg-type]
    return limit._replace(strategy=ConcurrencyStrategy(limit.strategy))


def describe_full(label: str, admitted: int, running: int, most: int) -> str:
    """Return why a run waits, such as "3 of 3 runs for customer-7 are running"."""
    if most == 0:
        return f"The concurrency limit for {label} is 0, so no run starts"
    doing = "running" if running == admitted else "queued or running"
    return f"{admitted} of {most} runs for {label} are {doing}"
