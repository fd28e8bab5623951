"""What one request may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Of one process, for the requests of all tenants; and how many of them one tenant uses at once.
MAX_CONNECTIONS: Final = 100
TENANT_CONNECTIONS: Final = 50


@dataclass(frozen=True, slots=True)
class OutboundLimits:
    """Bytes are counted before and after unpacking; the total time includes redirects and the body. None is no limit,
    which only streams without an end should have."""

    connect_seconds: float = 10.0
    read_seconds: float | None = 60.0
    total_seconds: float | None = 60.0
    max_body_bytes: int | None = 4 * 1024 * 1024
    max_header_bytes: int = 64 * 1024
    max_redirects: int = 5

    @property
    def timeouts(self) -> dict[str, float | None]:
        """The part that httpx2 watches."""
        return {
            "connect": self.connect_seconds,
            "read": self.read_seconds,
            "write": self.read_seconds,
            "pool": self.connect_seconds,
        }
