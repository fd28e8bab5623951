"""What providers' credentials use now, for people: read from whichever desk counts, without taking part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runlane.agents.desks import DeskAway
from runlane.agents.desks.database import DatabaseDesk
from runlane.settings import Settings
from runlane.store.database import Database
from runlane.store.provider_limits import SetLimits, list_limits, read_notices
from runlane.store.provider_slots import Busy


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A credential: what holds, what is used, until when everybody slows down. `busy` is None if nobody can say."""

    limits: SetLimits
    busy: Busy | None
    backing_off_until_us: int | None
    backing_off_reason: str


async def read_occupancy(settings: Settings, database: Database, credential: str | None = None) -> Sequence[Occupancy]:
    """Every known credential, or one that may not be known yet."""
    found = [item for item in await list_limits(database) if credential in (None, item[0].credential)]
    busy = await _busy(settings, database, [limits.credential for limits, _, _ in found])
    return [Occupancy(limits, busy.get(limits.credential), until, reason) for limits, until, reason in found]


async def _busy(settings: Settings, database: Database, credentials: Sequence[str]) -> dict[str, Busy]:
    desk = (await read_notices(database)).desk
    if desk.kind == "database":
        return dict(await DatabaseDesk(database).busy(credentials))
    if settings.redis_url is None:
        return {}
    from runlane.agents.desks.redis import RedisDesk
    from runlane.bus.redis_client import open_client

    reader = RedisDesk(open_client(settings.redis_url.get_secret_value()), settings.redis_prefix)
    reader.epoch = desk.epoch
    try:
        return dict(await reader.busy(credentials))
    except DeskAway:
        return {}
    finally:
        await reader.close()
