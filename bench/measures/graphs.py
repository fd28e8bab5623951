"""Graphs: runs of a hosted LangGraph graph of three trivial nodes over HTTP, with one and with two workers.

Each of many clients starts a run in a thread of its own and waits for its values, then starts the next. The first event
is measured by one client that streams: from its request to the first event of the run. Checkpoints, writes and events
are stored as in production (durability `async`). Aegra hosts the same graph for the same clients after each of these:
one process with its defaults, one with Redis, and two with Redis. LangGraph alone, with checkpoints in the memory of
one process and nothing stored, shows what the graph itself costs.

Also measured: the time from SIGKILL of a worker in a node to the start of the node in another worker, and the memory of
idle streams of runs and of threads.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack
from typing import Any

import orjson

from bench.graph_clients import BODY, finish_runs, first_event_ms
from bench.measures import GRAPH_PEER, SYSTEMS, Sizes
from bench.measures.idle_followers import FIRST, allow_open_files, following
from bench.measures.takeover import KILL, takeover_seconds
from bench.process import cpu_seconds, memory_mb, running
from bench.samples import Sample
from bench.server import ApiServer, serving
from bench.servers import Servers, Workspace
from bench.systems.aegra import Aegra, NotInstalled, install

WORKERS = (1, 2)
FIRST_EVENT = "first event"
CPU = ", CPU of a run"
WITH_REDIS = ", with Redis"
INSTALLED = "installed"
PEER = "langgraph"
ALONE = "in memory"
STREAMS = ("runs", "threads")
_WORKER = ("-m", "runlane", "worker", "bench.systems.graphs:app")
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
    aegra: Aegra | None = None
    if sizes.select(GRAPH_PEER):
        try:
            aegra = await install(servers.log)
            yield Sample("graphs", GRAPH_PEER, INSTALLED, 0, "", [], remark=aegra.versions)
        except NotInstalled as error:
            yield Sample("graphs", GRAPH_PEER, INSTALLED, 0, "", [], remark=f"not installed: {error}")
    for repeat in range(sizes.repeats):
        for workers in WORKERS:
            async for sample in _rates(servers, sizes, workers, repeat):
                yield sample
            if aegra is not None:
                async for sample in _peer_rates(aegra, servers, sizes, workers, repeat):
                    yield sample
        yield Sample("graphs", PEER, ALONE, repeat, "runs/s", [await _alone(sizes.graph_runs, sizes.graph_clients)])
        for kind in STREAMS:
            with servers.workspace() as workspace:
                await SYSTEMS["runlane"](workspace).prepare()
                kilobytes = await _stream_kilobytes(servers, workspace, sizes, kind)
            yield Sample("graphs", "runlane", idle(kind), repeat, "kB", [kilobytes])
    yield await _takeovers(servers, sizes.kills)
    if aegra is not None:
        yield await _peer_takeover(aegra, servers, sizes.graph_peer_timeout_seconds)


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
            members = {"server": [server.pid], "workers": pids}
            for sample in await _finished(servers, sizes, [server], members, "runlane", rate(workers), repeat):
                yield sample
            if workers == 1:
                times = [await first_event_ms(server) for _ in range(sizes.graph_streams)]
                yield Sample("graphs", "runlane", FIRST_EVENT, repeat, "ms", times)


async def _peer_rates(
    aegra: Aegra, servers: Servers, sizes: Sizes, processes: int, repeat: int
) -> AsyncGenerator[Sample]:
    """Yield the rate of the peer with as many processes. More than one process needs Redis."""
    for redis in (False, True) if processes == 1 else (True,):
        way = WITH_REDIS if redis else ""
        with servers.workspace() as workspace:
            async with aegra.serving(servers, workspace, processes, redis=redis) as found:
                members = {"process": [server.pid for server in found]}
                variant = f"{rate(processes)}{way}"
                for sample in await _finished(servers, sizes, found, members, GRAPH_PEER, variant, repeat):
                    yield sample
                if processes == 1:
                    times = [await first_event_ms(found[0]) for _ in range(sizes.graph_streams)]
                    yield Sample("graphs", GRAPH_PEER, f"{FIRST_EVENT}{way}", repeat, "ms", times)


async def _finished(
    servers: Servers,
    sizes: Sizes,
    found: Sequence[ApiServer],
    members: dict[str, list[int]],
    system: str,
    variant: str,
    repeat: int,
) -> list[Sample]:
    """Return the rate at which clients of these servers finish runs, and the CPU time of a run in these processes."""
    await finish_runs(found, sizes.graph_clients, sizes.graph_clients)
    await servers.checkpoint()
    used = {pid: cpu_seconds(pid) for pids in members.values() for pid in pids}
    started = time.perf_counter()
    await finish_runs(found, sizes.graph_runs, sizes.graph_clients)
    figure = sizes.graph_runs / (time.perf_counter() - started)
    samples = [Sample("graphs", system, variant, repeat, "runs/s", [figure])]
    for name, pids in members.items():
        milliseconds = sum(cpu_seconds(pid) - used[pid] for pid in pids) * 1000 / sizes.graph_runs
        samples.append(Sample("graphs", system, f"{variant}{CPU}, {name}", repeat, "ms", [milliseconds]))
    return samples


async def _alone(count: int, clients: int) -> float:
    """Return how many runs of the graph LangGraph alone executes per second."""
    # Imported here: the table of a report needs neither.
    from langgraph.checkpoint.memory import InMemorySaver

    from bench.systems.graph_shapes import three

    graph: Any = three.compile(checkpointer=InMemorySaver())
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
                await _hold(server, key)

            environment = servers.environment(workspace, redis=True)
            seconds = await takeover_seconds(servers, workspace, _WORKER, environment, accept, kills)
    return Sample("graphs", "runlane", KILL, 0, "s", seconds)


async def _peer_takeover(aegra: Aegra, servers: Servers, timeout_seconds: float) -> Sample:
    """Return the time of one takeover between two processes of the peer, with default settings."""
    with servers.workspace() as workspace:
        async with aegra.serving(servers, workspace, 2, redis=True) as found:
            servers.receiver.clear()
            await _hold(found[0], 0)
            before = await servers.receiver.next("started", 0, _READY_SECONDS)
            # The API may be in the process that dies, so no client waits for the run.
            killed = time.time_ns()
            os.kill(before.pid, signal.SIGKILL)
            try:
                after = await servers.receiver.next("started", 0, timeout_seconds)
            except TimeoutError:
                return Sample("graphs", GRAPH_PEER, KILL, 0, "s", [], remark=f"not within {timeout_seconds:g} s")
            return Sample("graphs", GRAPH_PEER, KILL, 0, "s", [(after.at_ns - killed) / 1e9])


async def _hold(server: ApiServer, key: int) -> None:
    """Start a run that waits in its second node."""
    body = orjson.dumps({"assistant_id": "held", "input": {"key": key, "items": []}})
    async with server.connection() as connection:
        status, answer = await connection.request("POST", "/runs", body)
    if status != 200:
        raise RuntimeError(f"A run was refused: {answer[:500]!r}")


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
            body = orjson.dumps([orjson.Fragment(BODY)] * min(100, count - len(paths)))
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
