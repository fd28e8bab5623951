"""Redis clients for one process, by the form of the URL: one server, Sentinel, or a cluster."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import redis.asyncio as redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from runlane.errors import InvalidSettings

_SECONDS = 2.0


@dataclass(slots=True)
class Clients:
    """`commands` answers soon or fails; `waiting` blocks at bells; `hearing` belongs to the subscriptions."""

    commands: Any
    waiting: Any
    hearing: Any
    clustered: bool

    async def close(self) -> None:
        """Close every connection."""
        for client in {id(client): client for client in (self.commands, self.waiting, self.hearing)}.values():
            with contextlib.suppress(RedisError, OSError):
                await client.aclose()


def open_clients(url: str) -> Clients:
    """Clients for a URL. Nothing connects yet."""
    scheme, _, rest = url.partition("://")
    # Our loops wait and try again themselves; the library's own ten tries would only hide how long it took.
    quick: dict[str, Any] = {
        "socket_timeout": _SECONDS,
        "socket_connect_timeout": _SECONDS,
        "retry": Retry(NoBackoff(), 0),
    }
    # With a timeout a blocking read would never return, see the library's default of five seconds.
    patient: dict[str, Any] = {**quick, "socket_timeout": None, "health_check_interval": 0}
    # A broken subscription stays broken until its reader makes a new one. The library would mend it behind the reader's
    # back, and whoever changes a channel in that moment would mend it too: then neither hears anything more.
    hearing: dict[str, Any] = {**patient, "retry": Retry(NoBackoff(), 0, supported_errors=())}
    match scheme:
        case "redis" | "rediss" | "unix":
            return Clients(
                redis.Redis.from_url(url, **quick),
                redis.Redis.from_url(url, **patient),
                redis.Redis.from_url(url, **hearing),
                clustered=False,
            )
        case "redis+sentinel" | "rediss+sentinel":
            return _by_sentinel(rest, quick, patient, hearing, tls=scheme.startswith("rediss"))
        case "redis+cluster" | "rediss+cluster":
            return _by_cluster(rest, tls=scheme.startswith("rediss"))
        case _:
            raise InvalidSettings(
                "RUNLANE_REDIS_URL must begin with redis://, rediss://, redis+sentinel:// or redis+cluster://."
            )


def _by_sentinel(
    rest: str, quick: dict[str, Any], patient: dict[str, Any], hearing: dict[str, Any], *, tls: bool
) -> Clients:
    parts = urlsplit(f"sentinel://{rest}")
    hosts = _hosts(rest, 26379)
    path = [part for part in parts.path.split("/") if part]
    if not path:
        raise InvalidSettings("RUNLANE_REDIS_URL names no service. Form: redis+sentinel://host:26379,host/service/0")
    credentials = _credentials(rest)
    number = int(path[1]) if len(path) > 1 else 0
    sentinel_password = parse_qs(parts.query).get("sentinel_password", [None])[0]

    def master(options: dict[str, Any]) -> Any:
        sentinel = Sentinel(hosts, sentinel_kwargs={**quick, "password": sentinel_password, "ssl": tls})
        return sentinel.master_for(path[0], db=number, ssl=tls, **credentials, **options)

    return Clients(master(quick), master(patient), master(hearing), clustered=False)


def _by_cluster(rest: str, *, tls: bool) -> Clients:
    nodes = [ClusterNode(host, port) for host, port in _hosts(rest, 6379)]

    def cluster(timeout: float | None) -> Any:
        return RedisCluster(
            startup_nodes=nodes, socket_timeout=timeout, socket_connect_timeout=_SECONDS, ssl=tls, **_credentials(rest)
        )

    return Clients(cluster(_SECONDS), cluster(None), cluster(None), clustered=True)


def _hosts(rest: str, default_port: int) -> list[tuple[str, int]]:
    authority = rest.split("/", 1)[0].rpartition("@")[2].split("?", 1)[0]
    hosts: list[tuple[str, int]] = []
    for item in authority.split(","):
        host, _, port = item.strip().rpartition(":") if ":" in item else (item.strip(), "", "")
        if not host or (port and not port.isdigit()):
            raise InvalidSettings(f'RUNLANE_REDIS_URL: "{item}" is no host:port.')
        hosts.append((host, int(port) if port else default_port))
    return hosts


def _credentials(rest: str) -> dict[str, Any]:
    user, _, host = rest.split("/", 1)[0].rpartition("@")
    if not host or not user:
        return {}
    name, _, password = user.partition(":")
    found = {"username": unquote(name), "password": unquote(password)}
    return {key: value for key, value in found.items() if value}
