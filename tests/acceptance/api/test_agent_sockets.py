"""Sockets of threads outlive the check of their key: revocation, limits per key, and paused servers apply to them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import orjson
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from runlane.app import App
from runlane.settings import Settings
from runlane.store.access.keys import revoke_key
from runlane.store.threads.thread_search import ThreadFilter, count_threads
from tests.acceptance.api.agent_client import host
from tests.acceptance.api.serving import Api, copy_of, serving
from tests.acceptance.api.shop import app as shop

THREAD = "11111111-1111-4111-8111-111111111111"
MOST = 2


@pytest.fixture
async def limited(settings: Settings) -> AsyncGenerator[Api]:
    async with serving(copy_of(shop, settings.model_copy(update={"api_max_streams_per_key": MOST}))) as api:
        await host(api)
        yield api


def _socket(api: Api, key: str) -> connect:
    address = f"{api.url.replace('http:', 'ws:')}/threads/{THREAD}/stream/events"
    return connect(address, additional_headers={"x-api-key": key})


async def _ask(socket: ClientConnection, method: str, **params: Any) -> dict[str, Any]:
    await socket.send(orjson.dumps({"id": 1, "method": method, "params": params}).decode())
    return orjson.loads(await socket.recv())


async def _revoke(api: Api, key: str) -> None:
    principal = await api.parts.authenticator.identify(key)
    await revoke_key(api.parts.database, principal.key_id, actor="test")


async def test_a_command_with_a_revoked_key_is_refused(limited: Api) -> None:
    key = await limited.key("developer")
    async with _socket(limited, key) as socket:
        assert (await _ask(socket, "agent.getTree"))["error"] == "not_supported"
        await _revoke(limited, key)
        with pytest.raises(ConnectionClosedError):
            await _ask(socket, "run.start", assistant_id="three")
        assert socket.close_code == 4401
    assert await count_threads(limited.parts.database, "default", ThreadFilter()) == 0


async def test_a_socket_without_subscriptions_ends_with_its_key(limited: Api) -> None:
    key = await limited.key("developer")
    async with _socket(limited, key) as socket:
        assert (await _ask(socket, "agent.getTree"))["error"] == "not_supported"
        await _revoke(limited, key)
        await limited.parts.revocation.run_once()
        with pytest.raises(ConnectionClosedError):
            await socket.recv()
        assert socket.close_code == 4401


async def test_sockets_count_as_streams_of_their_key(limited: Api) -> None:
    key = await limited.key("developer")
    async with _socket(limited, key) as first, _socket(limited, key) as second:
        for socket in (first, second):
            assert (await _ask(socket, "agent.getTree"))["error"] == "not_supported"
        async with _socket(limited, key) as third:
            with pytest.raises(ConnectionClosedError):
                await third.recv()
            assert third.close_code == 4429
        # A socket is one stream, whatever it subscribes to, and its subscriptions leave nothing behind.
        await limited.client.post("/threads", json={"thread_id": THREAD})
        for _ in range(MOST + 1):
            name = (await _ask(first, "subscription.subscribe", channels=["values"]))["result"]["subscription_id"]
            assert (await _ask(first, "subscription.unsubscribe", subscription_id=name))["type"] == "success"
    async with _socket(limited, key) as socket:
        assert (await _ask(socket, "agent.getTree"))["error"] == "not_supported"


async def test_a_paused_server_has_no_sockets(own_app: App, settings: Settings) -> None:
    async with serving(own_app) as api:
        key = await api.key("developer")
    async with serving(copy_of(shop, settings.model_copy(update={"paused": True}))) as api:
        with pytest.raises(InvalidStatus):
            async with _socket(api, key) as socket:
                await socket.recv()
