"""The limits and the current use of every credential, for display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from runlane.domain.rate_limit import CredentialInUse, CredentialUsage
from runlane.rate_limits.slots import STALE_SECONDS
from runlane.store.rate_limits.limits import list_limits
from runlane.store.rate_limits.usage import read_busy
from runlane.store.sql.database import Database


async def read_occupancy(database: Database) -> Sequence[CredentialUsage]:
    """Return every known credential."""
    busy = await read_busy(database, STALE_SECONDS)
    return [
        CredentialUsage(
            **asdict(limits),
            now=busy.get(limits.credential, CredentialInUse()),
            backing_off_until_us=until,
            backing_off_reason=reason,
        )
        for limits, until, reason in await list_limits(database)
    ]
