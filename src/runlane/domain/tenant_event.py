"""Events of a tenant, which callers and webhooks send or the ends of runs write, and the outcomes of triggers.

The dotted name of an event describes what happened. Names that begin with `run.` are those of ended runs and cannot be
sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from runlane.domain.text import check_text, dump_json
from runlane.domain.wire import Timestamp
from runlane.errors import InvalidRequest

MAX_EVENT_NAME: Final = 128
# Events of one request, and bytes of one event.
MAX_EVENTS: Final = 100
MAX_EVENT_BYTES: Final = 1024 * 1024
MAX_SENT_ID: Final = 256
# Triggers between a caller and an event; a longer chain is a loop.
MAX_DEPTH: Final = 20
RUN_EVENT: Final = "run."
RUN_EVENTS: Final = ("run.completed", "run.failed", "run.cancelled")
NAME_PATTERN: Final = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"
# A trigger may name all events that begin with the same words.
LISTEN_PATTERN: Final = r"^([A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*(\.\*)?|\*)$"
_NAME: Final = re.compile(NAME_PATTERN)


class Outcome(StrEnum):
    """The outcome of an event for a trigger."""

    PENDING = "pending"
    STARTED = "started"
    FILTERED = "filtered"
    FAILED = "failed"
    RESUMED = "resumed"


# This name stands for the runs that wait for an event in the list of its outcomes. No trigger has this name.
WAITING_RUNS: Final = "(waiting runs)"


class NewEvent(NamedTuple):
    """A checked event to store. `data` is JSON; `sent_id` is the sender's id of it."""

    name: str
    data: str
    sent_id: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class TenantEvent:
    """A stored event."""

    id: Annotated[str, Field(alias="event_id")]
    tenant: str
    name: str
    sent_id: Annotated[str | None, Field(alias="id", description="The sender's id of the event.")]
    key: str | None
    data: Any
    source: Annotated[str, Field(description="api, run, or webhook:NAME.")]
    depth: Annotated[int, Field(description="How many triggers led to it; 0 for events of callers.")]
    received_at_us: Annotated[Timestamp, Field(alias="received_at")]

    def to_scope(self) -> dict[str, Any]:
        """Return the value of `event` in conditions and placeholders of triggers."""
        return {
            "id": self.sent_id or self.id,
            "name": self.name,
            "key": self.key,
            "data": self.data,
            "source": self.source,
            "received_at_us": self.received_at_us,
        }


# The fields of `event` in conditions and placeholders.
SCOPE_FIELDS: Final = ("id", "name", "key", "data", "source", "received_at_us")


@dataclass(frozen=True, slots=True)
class EventReceipt:
    """A sent event as it was stored. With `duplicate` it is an earlier event with the same id."""

    event_id: str
    name: str
    duplicate: bool


@dataclass(frozen=True, slots=True)
class TriggerOutcome:
    """The outcome of an event for a trigger, with its run if one was started."""

    event_id: str
    trigger: str
    outcome: Outcome
    run_id: str | None
    reason: str | None
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    decided_at_us: Annotated[Timestamp | None, Field(alias="decided_at")]


@dataclass(frozen=True, slots=True)
class TriggerReplay:
    """The events of a replay: those that are evaluated for the trigger, and those that had started a run before."""

    trigger: str
    dry_run: bool
    events: tuple[str, ...]
    started_before: int
    next_cursor: Annotated[
        str | None, Field(description="Pass it as `after` to continue; null when no event is left.")
    ] = None


def listens(pattern: str, name: str) -> bool:
    """Return whether a trigger for this pattern gets events of this name. Only `run.` patterns get ends of runs."""
    if name.startswith(RUN_EVENT) and not pattern.startswith(RUN_EVENT):
        return False
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def check_event_name(name: Any) -> str:
    """Return the name if an event of a sender may have it."""
    if not isinstance(name, str) or len(name) > MAX_EVENT_NAME or _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{str(name)[:MAX_EVENT_NAME]!r} is not a valid event name. Use words of A-Z, a-z, 0-9, '_' and '-', "
            f"separated by dots, such as order.paid, at most {MAX_EVENT_NAME} characters."
        )
    if name.startswith(RUN_EVENT):
        raise InvalidRequest(
            f'"{name}" cannot be sent: names that begin with "{RUN_EVENT}" are those of ended runs. Use another name.'
        )
    return name


def new_event(name: Any, data: Any = None, sent_id: str | None = None, key: str | None = None) -> NewEvent:
    """Return an event to store, after checking it."""
    check_event_name(name)
    if sent_id is not None:
        check_text(sent_id, "The event's id", MAX_SENT_ID)
    if key is not None:
        check_text(key, "The event's key", MAX_SENT_ID)
    try:
        text = dump_json(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f'The data of the event "{name}" is not JSON: {error}.') from None
    size = len(text.encode())
    if size > MAX_EVENT_BYTES:
        raise InvalidRequest(
            f'The data of the event "{name}" has {size} bytes as JSON; at most {MAX_EVENT_BYTES} are allowed. Store '
            "the data elsewhere and send a reference."
        )
    return NewEvent(name, text, sent_id, key)
