"""What must not be in the log lines and traces of this process: its own passwords and keys, and secrets of tenants.

It is compared with nothing that a tenant or a caller over HTTP can read: whoever can have their own text compared with
a secret, and see the outcome, can find the secret letter by letter.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable
from typing import Final

from runlane.redaction.forms import SecretForms, value_of
from runlane.redaction.search import ValueIndex, ValueSearch

# Thousands of tokens. Values of the settings are kept in any case.
MAX_BYTES: Final = 16 * 1024 * 1024


class LogRedactor(ValueSearch):
    """Values by owner, the least recently used of which are forgotten when they take too much. For any thread."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._own = ValueIndex()
        self._tenants = ValueIndex()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to look for."""
        return not self._own.values and not self._tenants.values

    @property
    def size_bytes(self) -> int:
        """What the values take."""
        return self._own.size_bytes + self._tenants.size_bytes

    def learn(self, value: str) -> None:
        """Replace a value of this process itself, for as long as it lives."""
        known = value_of(value)
        if known is not None:
            with self._lock:
                _put(self._own, known, known, self._max_bytes)

    def learn_secret(self, owner: Hashable, value: str) -> None:
        """Replace a tenant's value until its owner has another one. Learning it again makes it recently used."""
        known = value_of(value)
        with self._lock:
            if known is None:
                self._tenants.remove(owner)
            else:
                _put(self._tenants, owner, known, self._max_bytes)

    def forget_secret(self, owner: Hashable) -> None:
        """The owner has no value any more."""
        with self._lock:
            self._tenants.remove(owner)

    def forget_all(self) -> None:
        """Know nothing. For tests: a process keeps what it has learned."""
        with self._lock:
            self._own, self._tenants = ValueIndex(), ValueIndex()

    def _candidates(self, text: str) -> Collection[SecretForms]:
        with self._lock:
            return [*self._own.candidates(text), *self._tenants.candidates(text)]


def _put(index: ValueIndex, owner: Hashable, value: SecretForms, max_bytes: int) -> None:
    if index.values.get(owner) is value:
        # Recently used is last.
        index.values[owner] = index.values.pop(owner)
        return
    index.add(owner, value)
    while index.size_bytes > max_bytes and len(index.values) > 1:
        index.remove(next(iter(index.values)))


LOGS: Final = LogRedactor()
