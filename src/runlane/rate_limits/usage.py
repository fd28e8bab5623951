"""What providers' credentials use now, for people: read from whichever desk counts, without taking part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runlane.rate_limits.backend import BackendUnavailable
from runlane.rate_limits.database import DatabaseBackend
from runlane.settings import Settings
from runlane.store.rate_limits.limits import LimitSetting, list_limits, read_notices
from runlane.store.rate_limits.slots import CredentialInUse
from runlane.store.sql.database import Database


@dataclass(frozen=True, slots=True)
class CredentialUsage:
    """A credential: what holds, what is used, until when everybody slows down. `busy` is None if nobody can say."""

    limits: LimitSetting
    busy: CredentialInUse | None
    backing_off_until_us: int | None
    backing_off_reason: str


async def read_occupancy(
    settings: Settings, database: Database, credential: str | None = None
) -> Sequence[CredentialUsage]:
    """Every known credential, or one that may not be known yet."""
    found = [item for item in await list_limits(database) if credential in (None, item[0].credential)]
    busy = await _busy(settings, database, [limits.credential for limits, _, _ in found])
    return [CredentialUsage(limits, busy.get(limits.credential), until, reason) for limits, until, reason in found]


async def _busy(settings: Settings, database: Database, credentials: Sequence[str]) -> dict[str, CredentialInUse]:
    desk = (await read_notices(database)).desk
    if desk.kind == "database":
        return dict(await DatabaseBackend(database).busy(credentials))
    if settings.redis_url is None:
        return {}
    from runlane.bus.redis_client import open_client
    from runlane.rate_limits.redis import RedisBackend

    reader = RedisBackend(open_client(settings.redis_url.get_secret_value()), settings.redis_prefix)
    reader.epoch = desk.epoch
    try:
        return dict(await reader.busy(credentials))
    except BackendUnavailable:
        return {}
    finally:
        await reader.close()
