"""Limits of one outbound request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Connections of one process, for the requests of all tenants; and how many of them one tenant may use.
MAX_CONNECTIONS: Final = 100
TENANT_CONNECTIONS: Final = 50


@dataclass(frozen=True, slots=True)
class OutboundLimits:
    """Bytes are counted before and after decompression; the total time includes redirects and the body. None means no
    limit, which is for endless streams only. With `max_redirects` 0, a redirect is returned like any other response."""

    connect_seconds: float = 10.0
    read_seconds: float | None = 60.0
    total_seconds: float | None = 60.0
    max_body_bytes: int | None = 4 * 1024 * 1024
    max_header_bytes: int = 64 * 1024
    max_redirects: int = 5

    @property
    def timeouts(self) -> dict[str, float | None]:
        """The timeouts that httpx2 enforces."""
        return {
            "connect": self.connect_seconds,
            "read": self.read_seconds,
            "write": self.read_seconds,
            "pool": self.connect_seconds,
        }
