"""Keys that the database has confirmed recently, for requests for memories while the database is unavailable.

A node accepts changes of memories that it owns while it is cut off. It cannot check keys meanwhile, so it accepts a key
that it has checked shortly before. A key is remembered by its hash, with the time at which its check was sent, on the
clock of the node's lease. A later check that fails removes it, and an earlier one cannot restore it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from runlane.domain.access import Principal, parse_key

# This clock continues while the host is suspended, as that of the lease does.
_STEADY: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
MOST_REMEMBERED: Final = 1000


@dataclass(frozen=True, slots=True)
class _ConfirmedKey:
    principal: Principal
    asked_at: float


class RememberedKeys:
    """The principals of the last confirmed keys, each for `seconds` after its check; none if that is 0."""

    def __init__(self, seconds: float = 0.0, clock: Callable[[], float] = lambda: time.clock_gettime(_STEADY)) -> None:
        self._seconds = seconds
        self._clock = clock
        # By the hash of the key, the earliest check first.
        self._confirmed: OrderedDict[str, _ConfirmedKey] = OrderedDict()
        self._rejected_at: OrderedDict[str, float] = OrderedDict()
        self._distrusted_at = float("-inf")

    def now(self) -> float:
        """Return the time to pass as `asked_at`, read before a check is sent."""
        return self._clock()

    def remember(self, raw_key: str, principal: Principal, asked_at: float) -> None:
        """Remember a key that the database has confirmed."""
        hashed = parse_key(raw_key)
        if hashed is None or self._seconds <= 0:
            return
        known = self._confirmed.get(hashed)
        latest = max(self._distrusted_at, self._rejected_at.get(hashed, float("-inf")))
        if asked_at <= latest or (known is not None and asked_at < known.asked_at):
            return
        self._confirmed[hashed] = _ConfirmedKey(principal, asked_at)
        self._confirmed.move_to_end(hashed)
        while len(self._confirmed) > MOST_REMEMBERED:
            self._confirmed.popitem(last=False)

    def reject(self, raw_key: str) -> None:
        """Remove a key that the database has rejected."""
        hashed = parse_key(raw_key)
        if hashed is not None and self._seconds > 0:
            self._reject(hashed)

    def forget(self, which: Callable[[Principal], bool]) -> None:
        """Remove the keys of these principals, because this process has changed what they may do."""
        # A check that was sent before may still confirm one of them.
        self._distrusted_at = self.now()
        for hashed in [hashed for hashed, key in self._confirmed.items() if which(key.principal)]:
            del self._confirmed[hashed]

    def recall(self, raw_key: str) -> Principal | None:
        """Return the principal of a key that was confirmed in time and has not expired since."""
        hashed = parse_key(raw_key)
        key = None if hashed is None else self._confirmed.get(hashed)
        if key is None or self.now() - key.asked_at >= self._seconds:
            return None
        expires_at_us = key.principal.expires_at_us
        return None if expires_at_us is not None and expires_at_us <= time.time_ns() // 1000 else key.principal

    def key_ids(self) -> set[str]:
        """Return the ids of the keys that can still be recalled, and drop the others."""
        oldest = self.now() - self._seconds
        for hashed in [hashed for hashed, key in self._confirmed.items() if key.asked_at <= oldest]:
            del self._confirmed[hashed]
        return {key.principal.key_id for key in self._confirmed.values()}

    def update(self, asked: Collection[str], found: Mapping[str, Principal], asked_at: float) -> None:
        """Remove the keys with these ids that were not found, and update the others, which do not become younger."""
        for hashed, key in list(self._confirmed.items()):
            if key.asked_at >= asked_at or key.principal.key_id not in asked:
                continue
            principal = found.get(key.principal.key_id)
            if principal is None:
                self._reject(hashed)
            else:
                self._confirmed[hashed] = _ConfirmedKey(principal, key.asked_at)

    def _reject(self, hashed: str) -> None:
        self._confirmed.pop(hashed, None)
        self._rejected_at[hashed] = self.now()
        self._rejected_at.move_to_end(hashed)
        while len(self._rejected_at) > MOST_REMEMBERED:
            self._rejected_at.popitem(last=False)
