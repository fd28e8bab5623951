"""The measurements, one module each. Each takes the ground and the sizes, and yields samples as they are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.ground import Place
from bench.systems import System
from bench.systems.procrastinate import Procrastinate
from bench.systems.runlane import Runlane
from bench.systems.taskiq import Taskiq

MakeSystem = Callable[[Place], System]

# In the order in which they take turns.
SYSTEMS: dict[str, MakeSystem] = {
    "runlane": lambda place: Runlane(place.database_url),
    "procrastinate": lambda place: Procrastinate(place.database_url),
    "taskiq-stream": lambda place: Taskiq("stream", place.redis_url, place.queue),
    "taskiq-list": lambda place: Taskiq("list", place.redis_url, place.queue),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything; a quick run proves that the harness works and measures nothing."""

    repeats: int = 3
    drain: tuple[tuple[str, int], ...] = (
        ("runlane", 30_000),
        ("procrastinate", 2_500),
        ("taskiq-stream", 15_000),
        ("taskiq-list", 15_000),
    )
    slots: int = 100
    many_slots: int = 1_000
    accept_one: int = 1_000
    accept_many: int = 20_000
    latency: int = 200
    latency_polled: int = 100
    kills: int = 20
    peer_patience_seconds: float = 30.0
    queued: tuple[int, ...] = (1_000, 100_000, 1_000_000)
    idle_seconds: float = 5.0
    limit: int = 50_000


QUICK = Sizes(
    repeats=1,
    drain=(("runlane", 400), ("procrastinate", 100), ("taskiq-stream", 400)),
    accept_one=30,
    accept_many=500,
    latency=3,
    latency_polled=2,
    kills=1,
    peer_patience_seconds=0.5,
    queued=(1_000, 5_000),
    idle_seconds=0.5,
    limit=500,
)
