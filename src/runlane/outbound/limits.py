"""Limits of one outbound request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# The maximum number of connections of one process for all tenants, and of one tenant.
MAX_CONNECTIONS: Final = 100
TENANT_CONNECTIONS: Final = 50


@dataclass(frozen=True, slots=True)
class OutboundLimits:
    """The limits of one request. None means no limit, which is for endless streams only.

    Bytes are counted before and after decompression. The total time includes redirects and the body. With
    `max_redirects` 0, a redirect is returned like any other response.
    """

    connect_seconds: float = 10.0
    read_seconds: float | None = 60.0
    total_seconds: float | None = 60.0
    max_body_bytes: int | None = 4 * 1024 * 1024
    max_header_bytes: int = 64 * 1024
    max_redirects: int = 5

    @property
    def timeouts(self) -> dict[str, float | None]:
        """The timeouts in the form that httpx2 expects."""
        return {
            "connect": self.connect_seconds,
            "read": self.read_seconds,
            "write": self.read_seconds,
            "pool": self.connect_seconds,
        }
