"""Hints: messages that something has changed, without the change itself. Pages then read the data again."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

# The key under which hints are followed on the bus. The id of a run cannot begin with "#".
HINTS_KEY: Final = "#hints"
# The maximum number of ids of a hint; a hint about more objects has no ids.
MAX_HINT_IDS: Final = 100


class Topic(StrEnum):
    """The subject of a hint. `ALL` means that anything may have changed."""

    ALL = "all"
    RUNS = "runs"
    INBOX = "inbox"
    DEAD_LETTERS = "dead_letters"
    LANES = "lanes"
    WORKERS = "workers"
    SCHEDULES = "schedules"
    DEFINITIONS = "definitions"
    DELIVERIES = "deliveries"
    TRIGGERS = "triggers"
    CHAT = "chat"
    LIMITS = "limits"
    MEMORY = "memory"
    BULK = "bulk"
    ACCESS = "access"
    SECRETS = "secrets"
    VIEWS = "views"


class Hint(NamedTuple):
    """Something of a topic has changed, of one tenant or of every tenant. Without ids, any object may have changed."""

    topic: str
    tenant: str | None = None
    ids: tuple[str, ...] = ()


class HintSet:
    """Hints that wait to be sent. Hints of the same topic and tenant are merged."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str | None], dict[str, None] | None] = {}

    def __bool__(self) -> bool:
        return bool(self._ids)

    def add(self, hint: Hint) -> None:
        """Add a hint. One without ids, or with too many, stands for all of its topic."""
        key = (hint.topic, hint.tenant)
        known = self._ids.setdefault(key, {})
        if known is None:
            return
        if hint.ids:
            known.update(dict.fromkeys(hint.ids))
        if not hint.ids or len(known) > MAX_HINT_IDS:
            self._ids[key] = None

    def take(self) -> list[Hint]:
        """Return all and forget them."""
        taken, self._ids = self._ids, {}
        return [Hint(topic, tenant, tuple(ids or ())) for (topic, tenant), ids in taken.items()]
