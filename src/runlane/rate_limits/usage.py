"""The limits and the current use of every credential, for display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runlane.rate_limits.slots import STALE_SECONDS
from runlane.store.rate_limits.limits import LimitSetting, list_limits
from runlane.store.rate_limits.usage import CredentialInUse, read_busy
from runlane.store.sql.database import Database


@dataclass(frozen=True, slots=True)
class CredentialUsage:
    """The limits of a credential, their current use, and the end of its back-off, if any."""

    limits: LimitSetting
    busy: CredentialInUse
    backing_off_until_us: int | None
    backing_off_reason: str


async def read_occupancy(database: Database) -> Sequence[CredentialUsage]:
    """Return every known credential."""
    busy = await read_busy(database, STALE_SECONDS)
    return [
        CredentialUsage(limits, busy.get(limits.credential, CredentialInUse()), until, reason)
        for limits, until, reason in await list_limits(database)
    ]
