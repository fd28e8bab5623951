"""Concurrency limits: how many runs with the same key may be admitted to the queue at once.

A target declares `ConcurrencyRule`s, or a start gives them. A run has the `ConcurrencyLimit`s that follow from its
rules, its input and its tags.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class ConcurrencyStrategy(StrEnum):
    """What happens to a new run while the limit is reached."""

    QUEUE = "queue"  # it waits; keys with waiting runs take turns
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
