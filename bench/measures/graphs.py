"""Graphs: runs of a hosted LangGraph graph of three trivial nodes over HTTP, with one and with two workers.

Each of many clients starts a run in a thread of its own and waits for its values, then starts the next. The first event
is measured by one client that streams: from its request to the first event of the run. Checkpoints, writes and events
are stored as in production (durability `async`). LangGraph alone, with checkpoints in the memory of one process and
nothing stored, shows what the graph itself costs.

Also measured: the time from SIGKILL of a worker in a node to the start of the node in another worker, and the memory of
idle streams of runs and of threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import orjson

from bench.http_client import HOST
from bench.measures import SYSTEMS, Sizes
from bench.measures.idle_followers import FIRST, allow_open_files, following
from bench.measures.takeover import KILL, takeover_seconds
from bench.process import cpu_seconds, memory_mb, running
from bench.samples import Sample
from bench.server import ApiServer, serving
from bench.servers import Servers, Workspace

WORKERS = (1, 2)
FIRST_EVENT = "first event"
CPU = ", CPU of a run"
PEER = "langgraph"
ALONE = "in memory"
STREAMS = ("runs", "threads")
_WORKER = ("-m", "runlane", "worker", "bench.systems.graphs:app")
_BODY = orjson.dumps({"assistant_id": "three", "input": {"value": 1, "items": []}})
_READY_SECONDS = 60
_ANSWERED = b"\r\n\r\n"


def rate(workers: int) -> str:
    """Return the variant of the runs per second with this many workers."""
    return f"{workers} workers"


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield the rate with each number of workers, the times of the first event, takeovers, and idle streams."""
    if not sizes.select("runlane"):
        return
    allow_open_files(sizes.followers + 1000)
    for repeat in range(sizes.repeats):
        for workers in WORKERS:
            async for sample in _rates(servers, sizes, workers, repeat):
                yield sample
        yield Sample("graphs", PEER, ALONE, repeat, "runs/s", [await _alone(sizes.graph_runs, sizes.graph_clients)])
        for kind in STREAMS:
            with servers.workspace() as workspace:
                await SYSTEMS["runlane"](workspace).prepare()
                kilobytes = await _stream_kilobytes(servers, workspace, sizes, kind)
            yield Sample("graphs", "runlane", idle(kind), repeat, "kB", [kilobytes])
    yield await _takeovers(servers, sizes.kills)


def idle(kind: str) -> str:
    """Return the variant of the memory of idle streams of this kind."""
    return f"idle streams of {kind}"


async def _rates(servers: Servers, sizes: Sizes, workers: int, repeat: int) -> AsyncGenerator[Sample]:
    with servers.workspace() as workspace, ExitStack() as processes:
        await SYSTEMS["runlane"](workspace).prepare()
        async with serving(servers, workspace) as server:
            # The bus of the server, so that its runs wake the workers.
            environment = servers.environment(workspace, redis=True)
            pids = [processes.enter_context(running(_WORKER, environment, servers.log)).pid for _ in range(workers)]
            await _until_hosted(server, "three")
            await _finish_runs(server, sizes.graph_clients, sizes.graph_clients)
            await servers.checkpoint()
            used = {pid: cpu_seconds(pid) for pid in (server.pid, *pids)}
            started = time.perf_counter()
            await _finish_runs(server, sizes.graph_runs, sizes.graph_clients)
            figure = sizes.graph_runs / (time.perf_counter() - started)
            yield Sample("graphs", "runlane", rate(workers), repeat, "runs/s", [figure])
            for name, members in (("server", [server.pid]), ("workers", pids)):
                spent = sum(cpu_seconds(pid) - used[pid] for pid in members)
                milliseconds = spent * 1000 / sizes.graph_runs
                yield Sample("graphs", "runlane", f"{rate(workers)}{CPU}, {name}", repeat, "ms", [milliseconds])
            if workers == 1:
                times = [await _first_event_ms(server) for _ in range(sizes.graph_streams)]
                yield Sample("graphs", "runlane", FIRST_EVENT, repeat, "ms", times)


async def _alone(count: int, clients: int) -> float:
    """Return how many runs of the graph LangGraph alone executes per second."""
    # Imported here: the table of a report needs neither.
    from langgraph.checkpoint.memory import InMemorySaver

    from bench.systems.graphs import three

    graph: Any = three().compile(checkpointer=InMemorySaver())
    numbers = iter(range(count))

    async def use() -> None:
        for number in numbers:
            config = {"configurable": {"thread_id": str(number)}}
            async for _ in graph.astream({"value": 1, "items": []}, config, stream_mode=["values"]):
                pass

    started = time.perf_counter()
    await asyncio.gather(*(use() for _ in range(clients)))
    return count / (time.perf_counter() - started)


async def _takeovers(servers: Servers, kills: int) -> Sample:
    with servers.workspace() as workspace:
        await SYSTEMS["runlane"](workspace).prepare()
        async with serving(servers, workspace) as server:

            async def accept(key: int) -> None:
                await _until_hosted(server, "held")
                body = orjson.dumps({"assistant_id": "held", "input": {"key": key, "items": []}})
                async with server.connection() as connection:
                    status, answer = await connection.request("POST", "/runs", body)
                if status != 200:
                    raise RuntimeError(f"A run was refused: {answer[:500]!r}")

            environment = servers.environment(workspace, redis=True)
            seconds = await takeover_seconds(servers, workspace, _WORKER, environment, accept, kills)
    return Sample("graphs", "runlane", KILL, 0, "s", seconds)


async def _stream_kilobytes(servers: Servers, workspace: Workspace, sizes: Sizes, kind: str) -> float:
    """Return the memory of the server for each idle stream. The runs wait, because no worker is left."""
    async with serving(servers, workspace) as server:
        with running(_WORKER, servers.environment(workspace, redis=True), servers.log):
            await _until_hosted(server, "three")
        paths = await _waiting_streams(server, sizes.followers + FIRST, kind)
        head = f"authorization: Bearer {server.key}\r\n"
        # The first streams cause one-time costs: late imports, buffers, prepared statements.
        async with following(server.port, paths[:FIRST], _ANSWERED, head):
            await asyncio.sleep(sizes.idle_seconds)
        used = memory_mb(server.pid)[0]
        async with following(server.port, paths[FIRST:], _ANSWERED, head):
            await asyncio.sleep(sizes.idle_seconds)
            return (memory_mb(server.pid)[0] - used) * 1024 / sizes.followers


async def _waiting_streams(server: ApiServer, count: int, kind: str) -> list[str]:
    """Start runs in threads of their own, and return the paths of their streams or of those of their threads."""
    paths: list[str] = []
    async with server.connection() as connection:
        while len(paths) < count:
            body = orjson.dumps([orjson.Fragment(_BODY)] * min(100, count - len(paths)))
            status, answer = await connection.request("POST", "/runs/batch", body)
            if status != 200:
                raise RuntimeError(f"Runs were refused: {answer[:500]!r}")
            for run in orjson.loads(answer):
                thread = f"/threads/{run['thread_id']}"
                paths.append(f"{thread}/stream" if kind == "threads" else f"{thread}/runs/{run['run_id']}/stream")
    return paths


async def _until_hosted(server: ApiServer, graph: str) -> None:
    """Wait until a worker has registered a graph."""
    async with asyncio.timeout(_READY_SECONDS), server.connection() as connection:
        # The server has no event for it.
        while (await connection.request("GET", f"/assistants/{graph}"))[0] != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def _finish_runs(server: ApiServer, count: int, clients: int) -> None:
    """Start runs and wait for each, with as many clients."""
    share = max(1, count // clients)

    async def use(stack: AsyncExitStack) -> None:
        reader, writer = await asyncio.open_connection(HOST, server.port)
        stack.callback(writer.close)
        for _ in range(share):
            writer.write(_request(server, "/runs/wait"))
            answer = await _chunked(reader)
            if b'"value":4' not in answer:
                raise RuntimeError(f"A run returned {answer[:500]!r}")

    async with AsyncExitStack() as stack:
        await asyncio.gather(*(use(stack) for _ in range(clients)))


async def _first_event_ms(server: ApiServer) -> float:
    reader, writer = await asyncio.open_connection(HOST, server.port)
    try:
        started = time.perf_counter()
        writer.write(_request(server, "/runs/stream"))
        await reader.readuntil(b"event: ")
        found = time.perf_counter() - started
        await reader.readuntil(b"event: end")
        return found * 1000
    finally:
        writer.close()


def _request(server: ApiServer, path: str) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {HOST}:{server.port}\r\nauthorization: Bearer {server.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(_BODY)}\r\n\r\n"
    )
    return head.encode() + _BODY


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    """Return the body of a chunked response."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise RuntimeError(f"A request was answered with {head!r}")
    found: list[bytes] = []
    while length := int(await reader.readuntil(b"\r\n"), 16):
        found.append(await reader.readexactly(length))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(found)
