"""Desks: who counts the calls in flight. One over Redis, one over the database, with the same rules.

A desk is asked by one process for its oldest waiter; between processes, whoever has waited longest comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from runlane.domain.rate_limit import LimitRefusal, ProviderLimits
from runlane.store.rate_limits.slots import CredentialInUse, SlotGrant, SlotRequest

# A lease that was not renewed for so long is a dead worker's. All leases of a process are renewed together.
LEASE_SECONDS: Final = 12.0
RENEW_SECONDS: Final = 3.0
# A process that waits says so at least this often; after so long without a word it is not waited for.
ASK_SECONDS: Final = 0.5
STALE_SECONDS: Final = 2.0


class BackendUnavailable(Exception):
    """The desk cannot be asked now."""


class BackendStateLost(Exception):
    """The desk has lost what it knew."""


@dataclass(slots=True)
class HeldSlot:
    """A slot that this process holds. `entered` is on the monotonic clock; `second` is the desk's, in its epoch."""

    id: str
    credential: str
    tokens: int
    entered: float
    epoch: int
    second: int


@dataclass(frozen=True, slots=True)
class UsedSecond:
    """What this process used of a credential in one second of the last minute."""

    credential: str
    seconds_ago: int
    requests: int
    tokens: int


class LimitBackend(Protocol):
    """Counts calls in flight. Every method may raise DeskAway, or DeskForgot, and may be asked again after that."""

    async def take(self, ask: SlotRequest, limits: ProviderLimits) -> SlotGrant | LimitRefusal:
        """A slot, or why there is none; whoever is refused is remembered as waiting."""
        ...

    async def wait(self, ask: SlotRequest, seconds: float) -> None:
        """Return when there may be room, after so many seconds at the latest."""
        ...

    async def hold(self, held: Sequence[HeldSlot], used: Sequence[UsedSecond] = ()) -> None:
        """Renew these slots, or make them known to a desk that does not know them, with what was used before."""
        ...

    async def leave(self, held: HeldSlot, limits: ProviderLimits, second: int | None, more_tokens: int) -> None:
        """Give a slot back, and correct the tokens that were reserved."""
        ...

    async def withdraw(self, credential: str, holder: str) -> None:
        """This process waits no longer."""
        ...

    async def busy(self, credentials: Sequence[str]) -> Mapping[str, CredentialInUse]:
        """What these credentials use now."""
        ...
