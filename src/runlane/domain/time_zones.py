"""Time zones by their IANA name, from the `tzdata` package: the same on every host, even in images without zones."""

from __future__ import annotations

from datetime import UTC, tzinfo
from functools import cache
from importlib import resources
from typing import Final
from zoneinfo import ZoneInfo

import tzdata

from runlane.errors import InvalidRequest, nearest

DEFAULT_ZONE: Final = "UTC"
# The release of the zone database, such as 2026f: with another release, future times of a zone may differ.
ZONES_VERSION: Final[str] = tzdata.IANA_VERSION
MAX_ZONE: Final = 64


@cache
def zone_names() -> frozenset[str]:
    """Return the names of all zones."""
    return frozenset(resources.files("tzdata").joinpath("zones").read_text("utf-8").split())


def time_zone(name: str) -> tzinfo:
    """Return the zone of this name. InvalidRequest if there is none."""
    # The name is checked first, because it becomes a path.
    if name not in zone_names():
        similar = nearest(name[:MAX_ZONE], zone_names())
        raise InvalidRequest(
            f"zone={name[:MAX_ZONE]!r} is not a time zone of the IANA database {ZONES_VERSION}{similar}. Use a name "
            'such as "Europe/Berlin", or "UTC".'
        )
    return _zone(name)


@cache
def _zone(name: str) -> tzinfo:
    if name == DEFAULT_ZONE:
        return UTC
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)
