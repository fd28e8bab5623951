"""The measurements, one module each. Each takes the servers and the sizes, and yields samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.servers import Workspace
from bench.systems import System
from bench.systems.runlane import Runlane


# Peers are imported only if they are measured, so that Runlane can be measured where they are not installed.
def _procrastinate(workspace: Workspace) -> System:
    from bench.systems.procrastinate import Procrastinate

    return Procrastinate(workspace.database_url)


def _taskiq_stream(workspace: Workspace) -> System:
    from bench.systems.taskiq import Taskiq

    return Taskiq("stream", workspace.redis_url, workspace.queue)


def _taskiq_list(workspace: Workspace) -> System:
    from bench.systems.taskiq import Taskiq

    return Taskiq("list", workspace.redis_url, workspace.queue)


# In the order in which they alternate.
SYSTEMS: dict[str, Callable[[Workspace], System]] = {
    "runlane": lambda workspace: Runlane(workspace.database_url),
    "procrastinate": _procrastinate,
    "taskiq-stream": _taskiq_stream,
    "taskiq-list": _taskiq_list,
}


# Only the measurement of steps includes this peer, and only that of graphs the other one.
STEP_PEER = "dbos"
GRAPH_PEER = "aegra"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the measurements. A quick run checks that they work; its figures mean nothing."""

    repeats: int = 3
    systems: tuple[str, ...] = (*SYSTEMS, STEP_PEER, GRAPH_PEER)
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
    peer_timeout_seconds: float = 30.0
    queued: tuple[int, ...] = (1_000, 100_000, 1_000_000)
    lanes: int = 20_000
    idle_seconds: float = 5.0
    idle_workers: int = 50
    idle_servers: int = 4
    footprint_runs: int = 20_000
    limit: int = 50_000
    flows: int = 2_000
    peer_flows: int = 300
    long_steps: int = 10_000
    followers: int = 2_000
    http_one: int = 1_000
    http_many: int = 5_000
    http_clients: int = 50
    http_batched: int = 20_000
    stream_events: int = 20_000
    stream_events_many: int = 5_000
    stream_followers: int = 200
    arrivals: int = 200
    arrivals_polled: int = 50
    tokens: int = 20_000
    token_followers: int = 50
    tokens_timed: int = 500
    agent_tasks: int = 1_000
    agent_tasks_asked: int = 400
    permit_seconds: float = 5.0
    schedules: int = 10_000
    webhooks: int = 10_000
    memories: int = 256
    memory_adds: int = 60_000
    memory_away_seconds: float = 60
    memory_vectors: int = 100_000
    memory_plain_adds: int = 3_000
    listed: int = 1_000_000
    graph_runs: int = 1_000
    graph_clients: int = 50
    graph_streams: int = 100
    graph_peer_timeout_seconds: float = 90.0
    dashboard_events: int = 50_000

    def select(self, *names: str) -> list[str]:
        """Return those of these systems that are measured."""
        return [name for name in names if name in self.systems]


QUICK = Sizes(
    repeats=1,
    graph_runs=60,
    graph_clients=10,
    graph_streams=5,
    graph_peer_timeout_seconds=1.0,
    memories=16,
    memory_adds=1_000,
    memory_away_seconds=1,
    memory_vectors=2_000,
    memory_plain_adds=50,
    drain=(("runlane", 400), ("procrastinate", 100), ("taskiq-stream", 400)),
    accept_one=30,
    accept_many=500,
    latency=3,
    latency_polled=2,
    kills=1,
    peer_timeout_seconds=0.5,
    queued=(1_000, 5_000),
    lanes=2_000,
    idle_seconds=0.5,
    idle_workers=2,
    idle_servers=1,
    footprint_runs=500,
    limit=500,
    flows=40,
    peer_flows=5,
    long_steps=3_000,
    followers=300,
    http_one=20,
    http_many=40,
    http_clients=5,
    http_batched=100,
    stream_events=300,
    stream_events_many=100,
    stream_followers=10,
    arrivals=5,
    arrivals_polled=3,
    tokens=300,
    token_followers=5,
    tokens_timed=5,
    agent_tasks=20,
    agent_tasks_asked=8,
    permit_seconds=1.0,
    schedules=200,
    webhooks=200,
    listed=5_000,
    dashboard_events=2_000,
)
