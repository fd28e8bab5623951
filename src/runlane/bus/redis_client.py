"""Clients of Redis, by the form of the URL: one server, a primary that sentinels name, or a cluster.

In a cluster the bells are lists that share one slot, so that a worker waits for all of them with one command. Messages
are published without sharding: every node forwards them to all others, so one connection to any node receives
everything, whichever runs are followed, and still does when a node is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any, Protocol, cast
from urllib.parse import parse_qs, unquote, urlsplit

import redis.asyncio as redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError, ResponseError

from runlane.errors import InvalidSettings

# All errors of Redis. Some errors of a cluster have another base class.
REDIS_ERRORS = (RedisError, RedisClusterException, OSError, TimeoutError)
# Tokens that a bell may hold: enough to wake a cluster, too few to accumulate behind a backlog.
BELL_CAP = 64
_BELL_SECONDS = 60
_RING = (
    "if redis.call('llen', KEYS[1]) < tonumber(ARGV[1]) then "
    "redis.call('rpush', KEYS[1], '1') redis.call('expire', KEYS[1], ARGV[2]) end return 0"
)
_SECONDS = 2.0
# The loops of the bus retry. The ten retries of the library would only delay the error.
_QUICK: dict[str, Any] = {
    "socket_timeout": _SECONDS,
    "socket_connect_timeout": _SECONDS,
    "retry": Retry(NoBackoff(), 0),
}
# With a timeout of the socket a command that waits on the server would never return.
_BLOCKING: dict[str, Any] = {**_QUICK, "socket_timeout": None}
# A broken subscription stays broken until the receive loop creates a new one. The library would reconnect on its own,
# and so would a concurrent change of channels: then neither receives anything. The socket has no timeout, because with
# one the library writes one iteration of the event loop later, possibly to a closed connection.
_SUBSCRIBING: dict[str, Any] = {**_BLOCKING, "retry": Retry(NoBackoff(), 0, supported_errors=())}


class RedisClient(Protocol):
    """The connections of one process. Every method may raise REDIS_ERRORS and may be called again after that."""

    async def send(self, bells: Sequence[str], messages: Sequence[tuple[str, bytes]]) -> None:
        """Put a token into each of these lists, and publish these messages, each with its channel."""
        ...

    async def take(self, bells: Sequence[str], timeout_seconds: float) -> bool:
        """Take a token from one of these lists; return False on timeout."""
        ...

    async def subscribe(self, channels: Sequence[str]) -> Any:
        """Subscribe to these channels on a separate connection; the caller closes it."""
        ...

    async def renew(self) -> None:
        """Close connections that no command uses: those to a server that was unavailable are broken."""
        ...

    async def ping(self) -> None:
        """Check that the server responds."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


def open_client(url: str) -> RedisClient:
    """Return the client for a URL. It does not connect yet."""
    scheme, _, rest = url.partition("://")
    match scheme:
        case "redis" | "rediss" | "unix":
            try:
                return OneServer(
                    *(redis.Redis.from_url(url, **options) for options in (_QUICK, _BLOCKING, _SUBSCRIBING))
                )
            except ValueError:
                # The error omits the message of the library, which may contain a part of a password.
                raise InvalidSettings(
                    "RUNLANE_REDIS_URL cannot be read. Form: redis://user:password@host:6379/0"
                ) from None
        case "redis+sentinel" | "rediss+sentinel":
            return _by_sentinel(rest, tls=scheme.startswith("rediss"))
        case "redis+cluster" | "rediss+cluster":
            return Cluster(_hosts(rest, 6379), {**_credentials(rest), "ssl": scheme.startswith("rediss")})
        case _:
            raise InvalidSettings(
                "RUNLANE_REDIS_URL must begin with redis://, rediss://, redis+sentinel:// or redis+cluster://."
            )


class OneServer:
    """One server at a time: that of the URL, or the primary that the sentinels report."""

    def __init__(
        self,
        quick: redis.Redis,
        blocking: redis.Redis,
        subscriber: redis.Redis,
        *,
        sentinels: Sequence[redis.Redis] = (),
    ) -> None:
        self._quick = quick
        self._blocking = blocking
        self._subscriber = subscriber
        self._sentinels = sentinels
        self._sender: Any = None

    async def send(self, bells: Sequence[str], messages: Sequence[tuple[str, bytes]]) -> None:
        # One connection, which is kept: a pipeline of the library would check and return it each time, and would write
        # some iterations of the event loop later, after the runs that a claim has started.
        connection, self._sender = self._sender, None
        if connection is not None and _is_closed(connection):
            await self._give_back(connection)
            connection = None
        if connection is None:
            connection = await self._blocking.connection_pool.get_connection()
        rings = [("EVAL", _RING, 1, bell, BELL_CAP, _BELL_SECONDS) for bell in bells]
        commands = [*rings, *(("PUBLISH", channel, message) for channel, message in messages)]
        try:
            async with asyncio.timeout(_SECONDS):
                await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
                for _ in commands:
                    with contextlib.suppress(ResponseError):  # the others are sent nevertheless
                        await connection.read_response()
        except BaseException:
            await self._give_back(connection)
            raise
        self._sender = connection

    async def _give_back(self, connection: Any) -> None:
        with contextlib.suppress(*REDIS_ERRORS):
            await connection.disconnect(nowait=True)
        await self._blocking.connection_pool.release(connection)

    async def take(self, bells: Sequence[str], timeout_seconds: float) -> bool:
        return await _take(self._blocking, bells, timeout_seconds)

    async def subscribe(self, channels: Sequence[str]) -> Any:
        return await _subscribe(self._subscriber, channels)

    async def renew(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            await self._give_back(sender)
        for client in (self._quick, self._blocking):
            await client.connection_pool.disconnect(inuse_connections=False)

    async def ping(self) -> None:
        await cast("Any", self._quick).ping()

    async def close(self) -> None:
        await _close(self._quick, self._blocking, self._subscriber, *self._sentinels)


class Cluster:
    """A cluster: bells where their slot is, everything else through any one node."""

    def __init__(self, hosts: Sequence[tuple[str, int]], access: dict[str, Any]) -> None:
        self._access = access
        self._quick = self._cluster(hosts, _SECONDS)
        self._blocking = self._cluster(hosts, None)
        self._publisher: redis.Redis | None = None
        self._subscriber: redis.Redis | None = None

    async def send(self, bells: Sequence[str], messages: Sequence[tuple[str, bytes]]) -> None:
        if messages:
            if self._publisher is None:
                self._publisher = await self._any_node(_QUICK)
            try:
                async with self._publisher.pipeline(transaction=False) as pipe:
                    await _publish(pipe, messages)
            except BaseException:
                # That node may have been removed: the next call selects a node of the current cluster.
                gone, self._publisher = self._publisher, None
                await _close(gone, self._quick)
                raise
        for bell in bells:
            await cast("Any", self._quick).eval(_RING, 1, bell, BELL_CAP, _BELL_SECONDS)

    async def take(self, bells: Sequence[str], timeout_seconds: float) -> bool:
        return await _take(self._blocking, bells, timeout_seconds)

    async def subscribe(self, channels: Sequence[str]) -> Any:
        gone, self._subscriber = self._subscriber, None
        if gone is not None:
            await _close(gone)
        self._subscriber = await self._any_node(_SUBSCRIBING)
        return await _subscribe(self._subscriber, channels)

    async def renew(self) -> None:
        gone, self._publisher = self._publisher, None
        if gone is not None:
            await _close(gone)
        # The client finds the nodes again with the next command.
        await _close(self._quick)

    async def ping(self) -> None:
        await cast("Any", self._quick).ping()

    async def close(self) -> None:
        clients = [client for client in (self._publisher, self._subscriber) if client is not None]
        await _close(*clients, self._quick, self._blocking)

    def _cluster(self, hosts: Sequence[tuple[str, int]], timeout_seconds: float | None) -> RedisCluster:
        return RedisCluster(
            startup_nodes=[ClusterNode(host, port) for host, port in hosts],
            socket_timeout=timeout_seconds,
            socket_connect_timeout=_SECONDS,
            **self._access,
        )

    async def _any_node(self, options: dict[str, Any]) -> redis.Redis:
        """Return a client of a random node of the current cluster. If it is dead, the next attempt selects another."""
        await self._quick.initialize()
        node = random.choice(self._quick.get_nodes())  # noqa: S311 - load balancing
        return redis.Redis(host=node.host, port=cast("int", node.port), **self._access, **options)


def _is_closed(connection: Any) -> bool:
    """Return whether the server has closed a connection, for example because it was idle for long."""
    reader = connection._reader  # noqa: SLF001 - the library notices it only by a read
    return reader is None or reader.at_eof()


async def _publish(pipe: Any, messages: Sequence[tuple[str, bytes]]) -> None:
    for channel, message in messages:
        pipe.publish(channel, message)
    await pipe.execute(raise_on_error=False)


async def _take(client: Any, bells: Sequence[str], timeout_seconds: float) -> bool:
    return await client.blpop(list(bells), timeout=timeout_seconds) is not None


async def _subscribe(client: redis.Redis, channels: Sequence[str]) -> Any:
    pubsub = client.pubsub()
    try:
        # A server that accepted the connection but does not respond must not block this process.
        async with asyncio.timeout(2 * _SECONDS):
            await pubsub.subscribe(*channels)
    except BaseException:
        with contextlib.suppress(*REDIS_ERRORS):
            await pubsub.aclose()
        raise
    return pubsub


async def _close(*clients: redis.Redis | RedisCluster) -> None:
    for client in clients:
        with contextlib.suppress(*REDIS_ERRORS):
            await client.aclose()


def _by_sentinel(rest: str, *, tls: bool) -> OneServer:
    parts = urlsplit(f"sentinel://{rest}")
    hosts = _hosts(rest, 26379)
    path = [part for part in parts.path.split("/") if part]
    if not path or len(path) > 2 or not all(part.isdigit() for part in path[1:]):
        raise InvalidSettings(
            "RUNLANE_REDIS_URL must name a service, and may name a database. "
            "Form: redis+sentinel://host:26379,host:26379/service/0"
        )
    number = int(path[1]) if len(path) > 1 else 0
    password = parse_qs(parts.query).get("sentinel_password", [None])[0]

    sentinel = Sentinel(hosts, sentinel_kwargs={**_QUICK, "password": password, "ssl": tls})
    options: dict[str, Any] = {"db": number, "ssl": tls, **_credentials(rest)}
    clients = (sentinel.master_for(path[0], **options, **more) for more in (_QUICK, _BLOCKING, _SUBSCRIBING))
    return OneServer(*clients, sentinels=sentinel.sentinels)


def _hosts(rest: str, default_port: int) -> list[tuple[str, int]]:
    authority = rest.split("/", 1)[0].split("?", 1)[0].rpartition("@")[2]
    hosts: list[tuple[str, int]] = []
    for item in authority.split(","):
        try:
            found = urlsplit(f"//{item.strip()}")
            host, port = found.hostname, found.port
        except ValueError:
            host, port = None, None
        if not host:
            raise InvalidSettings(f'RUNLANE_REDIS_URL: "{item}" is not host:port.')
        hosts.append((host, port or default_port))
    return hosts


def _credentials(rest: str) -> dict[str, Any]:
    user, _, host = rest.split("/", 1)[0].rpartition("@")
    if not host or not user:
        return {}
    name, _, password = user.partition(":")
    found = {"username": unquote(name), "password": unquote(password)}
    return {key: value for key, value in found.items() if value}
