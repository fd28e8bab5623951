"""Timestamps: microseconds since the epoch, and RFC 3339 on the wire."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def format_timestamp(at_us: int) -> str:
    """Return microseconds since the epoch in RFC 3339."""
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_timestamp(at: Any) -> Any:
    """Return a time in RFC 3339 as microseconds since the epoch; any other value as it is."""
    if not isinstance(at, str):
        return at
    moment = datetime.fromisoformat(at)
    return int(moment.replace(microsecond=0).timestamp()) * 1_000_000 + moment.microsecond
