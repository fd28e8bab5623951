"""Redaction of the log lines and traces of this process: its own passwords and keys, and the secrets of all tenants.

It is never applied to what a tenant or a caller over HTTP can read: a caller whose own text is compared with a secret,
and who sees the outcome, can find the secret character by character.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable
from typing import Final

from runlane.redaction.forms import SecretForms, value_of
from runlane.redaction.search import ValueIndex, ValueSearch

# Enough for thousands of tokens. Values of the settings are always kept.
MAX_BYTES: Final = 16 * 1024 * 1024


class LogRedactor(ValueSearch):
    """Values by owner. The least recently used are dropped when they take too much memory. Thread-safe."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._own = ValueIndex()
        self._tenants = ValueIndex()

    @property
    def is_empty(self) -> bool:
        """Whether it holds no values."""
        return not self._own.values and not self._tenants.values

    @property
    def size_bytes(self) -> int:
        """Memory of the values."""
        return self._own.size_bytes + self._tenants.size_bytes

    def learn(self, value: str) -> None:
        """Replace a value of this process for its lifetime."""
        known = value_of(value)
        if known is not None:
            with self._lock:
                _put(self._own, known, known, self._max_bytes)

    def learn_secret(self, owner: Hashable, value: str) -> None:
        """Replace a tenant's value until its owner gets another one. Learning it again marks it as recently used."""
        known = value_of(value)
        with self._lock:
            if known is None:
                self._tenants.remove(owner)
            else:
                _put(self._tenants, owner, known, self._max_bytes)

    def forget_secret(self, owner: Hashable) -> None:
        """Stop replacing the value of this owner."""
        with self._lock:
            self._tenants.remove(owner)

    def forget_all(self) -> None:
        """Remove all values. For tests only."""
        with self._lock:
            self._own, self._tenants = ValueIndex(), ValueIndex()

    def _candidates(self, text: str) -> Collection[SecretForms]:
        with self._lock:
            return [*self._own.candidates(text), *self._tenants.candidates(text)]


def _put(index: ValueIndex, owner: Hashable, value: SecretForms, max_bytes: int) -> None:
    if index.values.get(owner) is value:
        # The most recently used value is last.
        index.values[owner] = index.values.pop(owner)
        return
    index.add(owner, value)
    while index.size_bytes > max_bytes and len(index.values) > 1:
        index.remove(next(iter(index.values)))


LOGS: Final = LogRedactor()
