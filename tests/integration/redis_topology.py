"""Redis as large installations run it: a primary with a replica watched by sentinels, and a cluster. On loopback."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import redis

from runlane.testing import RedisServer
from runlane.testing.local import HOST
from tests.server_process import free_port

SERVICE = "bells"
SLOTS = 16_384
# Sentinels and the other nodes of a cluster replace a primary that is silent for this time.
DOWN_AFTER_MS = 1_000
READY_SECONDS = 60.0
# Longer than a handshake may take.
INTRODUCTION_SECONDS = 5.0


class SentinelServer(RedisServer):
    """A sentinel that watches one primary. It stores its state in its configuration file."""

    name = "Sentinel"

    def __init__(self, primary: RedisServer, quorum: int) -> None:
        super().__init__()
        self._primary = primary
        self._quorum = quorum

    def _prepare(self, home: Path) -> None:
        super()._prepare(home)
        (home / "sentinel.conf").write_text(
            f"sentinel monitor {SERVICE} {HOST} {self._primary.port} {self._quorum}\n"
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {SERVICE} 5000\n"
        )

    def _command(self, home: Path) -> list[str]:
        options = ["--port", str(self.port), "--bind", HOST, "--dir", str(home)]
        return [str(self._program), str(home / "sentinel.conf"), "--sentinel", *options]

    def _ready(self, home: Path) -> bool:
        # A sentinel has no QUIT, which the check of the other servers uses.
        try:
            return f"process_id:{self.pid}\r" in _query(self, "info", "server")
        except redis.RedisError:
            return False


@dataclass(frozen=True, slots=True)
class Watched:
    """A primary, its replica, and the URL by which clients find the present primary."""

    primary: RedisServer
    replica: RedisServer
    url: str

    def replica_leads(self) -> bool:
        """Return whether the replica has taken over."""
        return ask(self.replica, "role")[0] == b"master"


@contextmanager
def watched_redis() -> Generator[Watched]:
    """Yield one primary with one replica and three sentinels."""
    with ExitStack() as stack:
        primary = stack.enter_context(RedisServer())
        replica = stack.enter_context(RedisServer({"replicaof": f"{HOST} {primary.port}"}))
        sentinels = [stack.enter_context(SentinelServer(primary, quorum=2)) for _ in range(3)]
        wait_until(lambda: ask(primary, "role")[0] == b"master" and len(ask(primary, "role")[2]) == 1, "the replica")
        for sentinel in sentinels:
            wait_until(
                lambda sentinel=sentinel: _has_found_all(sentinel),
                "the sentinels have found each other and the replica",
            )
        addresses = ",".join(f"{HOST}:{sentinel.port}" for sentinel in sentinels)
        yield Watched(primary, replica, f"redis+sentinel://{addresses}/{SERVICE}/0")


def _has_found_all(sentinel: RedisServer) -> bool:
    items = [bytes(item).decode() for item in ask(sentinel, "sentinel", "master", SERVICE)]
    fields = dict(zip(items[::2], items[1::2], strict=True))
    return (fields["num-slaves"], fields["num-other-sentinels"]) == ("1", "2")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Three primaries that share the slots, and a replica of the one that has a given key."""

    nodes: list[RedisServer]
    owner: RedisServer
    replica: RedisServer
    url: str

    def replica_leads(self) -> bool:
        """Return whether the replica has taken over and the cluster works again."""
        return ask(self.replica, "role")[0] == b"master" and b"cluster_state:ok" in ask(self.replica, "cluster", "info")


@contextmanager
def redis_cluster(key: str) -> Generator[Cluster]:
    """Yield a cluster in which the node with this key has a replica."""
    with ExitStack() as stack:
        servers = [stack.enter_context(_cluster_node()) for _ in range(4)]
        primaries, replica = servers[:3], servers[3]
        bounds = [SLOTS * number // 3 for number in range(4)]
        for number, node in enumerate(primaries):
            ask(node, "cluster", "addslotsrange", str(bounds[number]), str(bounds[number + 1] - 1))
        _introduce(servers)
        slot = int(ask(servers[0], "cluster", "keyslot", key))
        owner = next(node for number, node in enumerate(primaries) if slot < bounds[number + 1])
        owner_id = _query(owner, "cluster", "myid")
        wait_until(lambda: owner_id in _query(replica, "cluster", "nodes"), "the replica has found its primary")
        ask(replica, "cluster", "replicate", owner_id)
        for node in servers:
            wait_until(
                lambda node=node: (
                    "cluster_state:ok" in _query(node, "cluster", "info")
                    and f"slave {owner_id}" in _query(node, "cluster", "nodes")
                ),
                "the cluster",
            )
        wait_until(lambda: ask(replica, "role")[3] == b"connected", "the replica is in step")
        # One address is enough for a client; this one is not of a node that tests end.
        first = next(node for node in primaries if node is not owner)
        yield Cluster(primaries, owner, replica, f"redis+cluster://{HOST}:{first.port}")


def _introduce(servers: list[RedisServer]) -> None:
    """Introduce all nodes to each other."""
    first, *others = servers
    asked_at = -math.inf

    def have_met() -> bool:
        nonlocal asked_at
        known = [_query(node, "cluster", "nodes") for node in servers]
        if all(len(nodes.splitlines()) == len(servers) and "handshake" not in nodes for nodes in known):
            return True
        # A node forgets a handshake that takes longer than it may be silent, so repeat the introduction.
        if time.monotonic() > asked_at + INTRODUCTION_SECONDS:
            asked_at = time.monotonic()
            for node in others:
                ask(first, "cluster", "meet", HOST, str(node.port), node_bus_port(node))
        return False

    wait_until(have_met, "the nodes have met")


def _cluster_node() -> RedisServer:
    return RedisServer(
        {
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": str(DOWN_AFTER_MS),
            "cluster-replica-validity-factor": "0",
            # The default, the port plus 10,000, may be taken by an outgoing connection.
            "cluster-port": str(free_port()),
        }
    )


def node_bus_port(server: RedisServer) -> str:
    return bytes(ask(server, "config", "get", "cluster-port")[1]).decode()


def ask(server: RedisServer, *command: str) -> Any:
    """Send one command on a connection of its own and return the raw answer."""
    with redis.Redis(host=HOST, port=server.port, socket_timeout=5, protocol=2) as client:
        client.response_callbacks.clear()
        return cast("Any", client.execute_command(*command))


def _query(server: RedisServer, *command: str) -> str:
    return bytes(ask(server, *command)).decode()


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {READY_SECONDS:g} s")
        time.sleep(0.02)
