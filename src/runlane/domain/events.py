"""Events: the numbered, durable lines of a run's stream, and the names they may have."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


class EventType(StrEnum):
    """One name per fact. These names are stored and read by clients: they do not change."""

    QUEUED = "queued"
    APPROVED = "approved"
    PICKED_UP = "worker_picked_up"
    LOG = "log"
    CHECKPOINT = "checkpoint"
    ATTEMPT_FAILED = "attempt_failed"
    RETRY_LATER = "retry_later"
    HANDED_BACK = "handed_back"
    WORKER_LOST = "worker_lost"
    KEY_FREE = "key_free"
    CANCEL_REQUESTED = "cancel_requested"
    REVIVED = "revived"
    RESUMED = "resumed"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Event:
    """One event as readers see it."""

    run_id: str
    seq: int
    type: str
    attempt: int
    at_us: int
    data: dict[str, Any] = field(default_factory=dict[str, Any])


class StoredEvent(NamedTuple):
    """One event as it is stored: `data` is JSON text, and what a reader gets is made from these fields alone."""

    seq: int
    type: str
    attempt: int
    at_us: int
    data: str


class Notice(NamedTuple):
    """What the parts of a system tell each other after a commit: a run has events up to `last_seq`.

    `lines` may be its newest events, or nothing; whoever misses one reads the database.
    """

    run_id: str
    last_seq: int
    lines: tuple[StoredEvent, ...] = ()


class Delta(NamedTuple):
    """Something live that has no number and is not stored, such as progress. `data` is JSON text.

    A repeat says again what was said before, for readers that have joined since.
    """

    run_id: str
    attempt: int
    type: str
    data: str
    repeat: bool = False
