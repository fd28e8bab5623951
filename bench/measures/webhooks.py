"""Webhooks: how many messages per second workers deliver to 50 endpoints, and what sick endpoints cost the others.

The messages are stored as fast as possible, each for one endpoint, while one worker or two are idle. The receiver is a
process of its own that answers every request at once. The time is from the storage of the first message to the record
of the last delivery.

The lag is measured with five endpoints and messages that arrive one after another, from the storage of a message to the
record of its delivery. Three endpoints answer at once; the other two do so, too, or one hangs and one answers 500.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from typing import Final

from bench.measures import SYSTEMS, Sizes
from bench.process import running
from bench.samples import Sample
from bench.servers import Servers, Workspace, query, wait_for_rows
from runlane.access.keyring import Keyring
from runlane.bus.memory import MemoryBus
from runlane.maintenance.webhook_delivery import WebhookService
from runlane.settings import Settings, load_settings
from runlane.store.sql.database import Database, open_database
from runlane.store.webhooks.endpoints import EndpointFields
from runlane.store.webhooks.outbox import NewMessage, add_messages
from runlane.webhooks.endpoints import WebhookManager

ENDPOINTS: Final = 50
_AT_ONCE: Final = 500
_POLL_SECONDS: Final = 0.05
_MOST_SECONDS: Final = 300.0
_ONLINE: Final = "select count(*) as n from workers where status = 'online'"
_DELIVERED: Final = "select count(*) as n from webhook_deliveries where status = 'delivered' and tries = 1"
_SECONDS: Final = "select (max(ended_at) - min(created_at)) / 1e6 as seconds from webhook_deliveries"
_RECEIVER: Final = """
import asyncio

async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\\r\\n\\r\\n")).lower()
            length = int(head.split(b"content-length:")[1].split(b"\\r\\n")[0])
            await reader.readexactly(length)
            if head.startswith(b"post /hangs"):
                await asyncio.sleep(3600)
            status = b"500 Sick" if head.startswith(b"post /fails") else b"204 No Content"
            writer.write(b"HTTP/1.1 " + status + b"\\r\\ncontent-length: 0\\r\\n\\r\\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


HEALTHY, SICK = "five healthy endpoints", "three of five endpoints healthy"
_PATHS: Final = {
    HEALTHY: ("one", "two", "three", "four", "five"),
    SICK: ("one", "two", "three", "hangs", "fails"),
}
_COUNTED: Final = _PATHS[HEALTHY][:3]
_LAGS: Final = """
select (deliveries.ended_at - deliveries.created_at) / 1000.0 as ms from webhook_deliveries as deliveries
join webhook_endpoints as endpoints on endpoints.id = deliveries.endpoint_id
where deliveries.status = 'delivered' and endpoints.description = any($1)
"""


def variant(count: int, workers: int) -> str:
    """Return the name of the sample for this many messages and workers."""
    return f"{count} messages, {ENDPOINTS} endpoints, {'one worker' if workers == 1 else f'{workers} workers'}"


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield per repeat the rates of deliveries, and the lags with and without sick endpoints."""
    for repeat in range(sizes.repeats):
        for workers in (1, 2):
            with servers.workspace() as workspace:
                rate = await _rate(servers, workspace, sizes.webhooks, workers)
            yield Sample("webhooks", "runlane", variant(sizes.webhooks, workers), repeat, "messages/s", [rate])
        for name in (HEALTHY, SICK):
            with servers.workspace() as workspace:
                lags = await _lags(workspace, name, max(1, sizes.webhooks // 50))
            yield Sample("webhooks", "runlane", name, repeat, "ms", lags)


@asynccontextmanager
async def _installation(workspace: Workspace) -> AsyncGenerator[tuple[Database, Settings, int]]:
    await SYSTEMS["runlane"](workspace).prepare()
    settings = load_settings(
        database_url=workspace.database_url,
        outbound_allow="127.0.0.0/8",
        secret_key=base64.b64encode(bytes(32)).decode(),
    )
    database = await open_database(settings)
    try:
        async with _receiver() as port:
            yield database, settings, port
    finally:
        await database.close()


async def _lags(workspace: Workspace, name: str, rounds: int) -> list[float]:
    """Return the lags of the endpoints that are healthy in both variants; each gets a message per round."""
    async with _installation(workspace) as (database, settings, port):
        manager = WebhookManager(database, settings, Keyring(settings))
        for path in _PATHS[name]:
            url = f"http://127.0.0.1:{port}/{path}"
            fields = EndpointFields(url=url, description=path, filter={"target": [path]}, rate_per_second=1000.0)
            await manager.create("default", fields, actor="bench")
        service = WebhookService(settings, database, MemoryBus())
        service.start()
        try:
            for number in range(rounds):
                messages = [
                    NewMessage("default", "run.completed", {"target": path, "number": number}) for path in _PATHS[name]
                ]
                await database.transact(lambda session, messages=messages: add_messages(session, messages))
                service.wake()
                await asyncio.sleep(_POLL_SECONDS)
            wanted = rounds * len(_COUNTED)
            # A message to a healthy endpoint that is not delivered must not keep the measurement waiting forever.
            async with asyncio.timeout(_MOST_SECONDS):
                # Another process would have to set an event.
                while len(found := await query(workspace.database_url, _LAGS, _COUNTED)) < wanted:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_SECONDS)
        finally:
            await service.stop()
    return [float(row["ms"]) for row in found]


@asynccontextmanager
async def _receiver() -> AsyncGenerator[int]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _RECEIVER, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


async def _fill(database: Database, settings: Settings, port: int, count: int) -> None:
    manager = WebhookManager(database, settings, Keyring(settings))
    for number in range(ENDPOINTS):
        fields = EndpointFields(
            url=f"http://127.0.0.1:{port}/{number}",
            filter={"target": [f"t{number}"]},
            rate_per_second=1000.0,
            max_in_flight=100,
        )
        await manager.create("default", fields, actor="bench")
    messages = [
        NewMessage("default", "run.completed", {"target": f"t{number % ENDPOINTS}", "number": number})
        for number in range(count)
    ]
    for start in range(0, count, _AT_ONCE):
        part = messages[start : start + _AT_ONCE]
        await database.transact(lambda session, part=part: add_messages(session, part))


async def _rate(servers: Servers, workspace: Workspace, count: int, workers: int) -> float:
    url = workspace.database_url
    async with _installation(workspace) as (database, settings, port):
        assert settings.secret_key is not None
        environment = {
            **servers.environment(workspace),
            "RUNLANE_SECRET_KEY": settings.secret_key.get_secret_value(),
            "RUNLANE_OUTBOUND_ALLOW": settings.outbound_allow or "",
        }
        with ExitStack() as stack:
            for _ in range(workers):
                stack.enter_context(running(SYSTEMS["runlane"](workspace).worker(None), environment, servers.log))
            await wait_for_rows(url, _ONLINE, workers, 60)
            await _fill(database, settings, port, count)
            await wait_for_rows(url, _DELIVERED, count, _MOST_SECONDS)
        return count / float((await query(url, _SECONDS))[0]["seconds"])
