"""RUNLANE_REDIS_URL: its forms are parsed, and an invalid one is refused without showing a password."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.bus.redis_client import Cluster, OneServer, _credentials, _hosts, open_client
from runlane.errors import InvalidSettings


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "rediss://user:secret@host:6380/3",
        "unix:///run/redis.sock",
        "redis+sentinel://one:26379,two,three:26381/service",
        "rediss+sentinel://user:secret@one/service/2?sentinel_password=other",
    ],
)
def test_one_server_at_a_time(url: str) -> None:
    assert isinstance(open_client(url), OneServer)


async def test_a_cluster() -> None:
    client = open_client("redis+cluster://user:secret@one:7000,two")
    assert isinstance(client, Cluster)
    await client.close()


@pytest.mark.parametrize(
    ("rest", "hosts"),
    [
        ("one", [("one", 6379)]),
        ("one:1,two:2/service/0?x=y", [("one", 1), ("two", 2)]),
        ("u:p@one, two", [("one", 6379), ("two", 6379)]),
        ("[::1]:7000,[fe80::1]", [("::1", 7000), ("fe80::1", 6379)]),
    ],
)
def test_hosts(rest: str, hosts: list[tuple[str, int]]) -> None:
    assert _hosts(rest, 6379) == hosts


@pytest.mark.parametrize(
    ("rest", "found"),
    [
        ("one:1", {}),
        ("user:se%40cret@one", {"username": "user", "password": "se@cret"}),
        (":secret@one", {"password": "secret"}),
    ],
)
def test_credentials(rest: str, found: dict[str, Any]) -> None:
    assert _credentials(rest) == found


@pytest.mark.parametrize(
    "url",
    [
        "http://user:secret@host",
        "redis://user:secret@host:port/0",
        "redis+sentinel://user:secret@host",
        "redis+sentinel://user:secret@host/service/first",
        "redis+sentinel://user:secret@host/service/0/more",
        "redis+cluster://user:secret@",
        "redis+cluster://user:secret@host:port",
    ],
)
def test_an_invalid_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidSettings, match="RUNLANE_REDIS_URL") as caught:
        open_client(url)
    assert "secret" not in str(caught.value)
