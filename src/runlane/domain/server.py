"""Serving processes as operators see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, with_config

from runlane.domain.wire import WIRE, Timestamp


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class ServerReplica:
    """One serving process that has renewed its row within the last minute."""

    id: str
    hostname: str
    pid: int
    version: str
    started_at_us: Annotated[Timestamp, Field(alias="started_at")]
    heartbeat_at_us: Annotated[Timestamp, Field(alias="last_heartbeat")]
    figures: Annotated[
        Mapping[str, Any],
        Field(
            description="`followers`, `pages`, `memory_mb`, `bus`, `connected`, `worker`, and `slow_statements`: the "
            "slowest database statements of the last hour that took at least 0.1 s, each with `name`, `seconds`, `at` "
            "and `count`."
        ),
    ]
