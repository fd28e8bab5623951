"""Stream: how many events per second one API process sends to one follower and to many, compared with a baseline.

Live: a run is held until its followers are connected; then a worker logs lines, a hundred per transaction, which pass
through Postgres and Redis. Replay: one follower reads a run that has ended, from Postgres. The baseline sends the same
frames from memory, one by one, to as many followers (see bench/systems/starlette.py); both alternate.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncGenerator

import orjson

from bench.http_client import Follower, HttpConnection, unchunked
from bench.measures import SYSTEMS, Sizes
from bench.process import running
from bench.samples import Sample
from bench.server import ApiServer, free_port, serving, wait_until_listening
from bench.servers import Servers, Workspace, query, wait_for_rows

LIVE_ONE, LIVE_MANY, REPLAY = "live, 1 follower", "live, many followers", "replay, 1 follower"
BASELINE = "starlette"
LINES_PER_TRANSACTION = 100
_TIMEOUT_SECONDS = 300
# With those of earlier variants, which may not be marked as gone yet.
_WORKERS = "select count(*) as n from workers"
_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield per repeat and variant a sample of Runlane and one of the baseline."""
    if not sizes.select("runlane"):
        return
    for repeat in range(sizes.repeats):
        with servers.workspace() as workspace, tempfile.NamedTemporaryFile(prefix="runlane-bench-") as frames:
            await SYSTEMS["runlane"](workspace).prepare()
            for variant, events, followers_count in (
                (LIVE_ONE, sizes.stream_events, 1),
                (LIVE_MANY, sizes.stream_events_many, sizes.stream_followers),
                (REPLAY, sizes.stream_events, 1),
            ):
                body, seconds = await _runlane(servers, workspace, variant, events, followers_count)
                sent = len(_ID.findall(body)) * followers_count
                yield Sample("stream", "runlane", variant, repeat, "events/s", [sent / max(seconds, 1e-6)])
                frames.seek(0)
                frames.truncate()
                frames.write(body)
                frames.flush()
                seconds = await _baseline(servers, workspace, followers_count, frames.name)
                yield Sample("stream", BASELINE, variant, repeat, "events/s", [sent / max(seconds, 1e-6)])


async def _runlane(
    servers: Servers, workspace: Workspace, variant: str, events: int, followers_count: int
) -> tuple[bytes, float]:
    """Return the stream of one follower, and the seconds until all followers had it."""
    worker = SYSTEMS["runlane"](workspace).worker(None)
    earlier = (await query(workspace.database_url, _WORKERS))[0]["n"]
    async with serving(servers, workspace) as server, server.connection() as connection:
        with running(worker, servers.environment(workspace, redis=True), servers.log):
            # Followers see the release of the run: the start of the worker must not be between that and its lines.
            await wait_for_rows(workspace.database_url, _WORKERS, earlier + 1, _TIMEOUT_SECONDS)
            body = orjson.dumps({"input": {"count": events, "together": LINES_PER_TRANSACTION}, "hold": True})
            run = orjson.loads(await connection.post("/api/v2/tasks/talk/run", body))
            if variant == REPLAY:
                await _release(connection, run["run_id"])
                await _wait_until_ended(connection, run["run_id"])
                followers = await _open(server, run["stream_url"], followers_count)
            else:
                followers = await _open(server, run["stream_url"], followers_count)
                for follower in followers:
                    follower.start_clock()
                await _release(connection, run["run_id"])
            seconds = await _wait_for_all(followers)
        body = unchunked(b"".join(data for _, data in followers[0].chunks))
        numbers = [int(number) for number in _ID.findall(body)]
        if numbers != list(range(numbers[0], numbers[-1] + 1)) or len(numbers) < events:
            raise RuntimeError(f"a follower got {len(numbers)} events, from {numbers[0]} to {numbers[-1]}")
        return body, seconds


async def _baseline(servers: Servers, workspace: Workspace, followers_count: int, frames: str) -> float:
    port = free_port()
    command = ["-m", "bench.systems.starlette", str(port), frames]
    with running(command, servers.environment(workspace), servers.log):
        await wait_until_listening(port)
        followers = [await Follower.open(port, "/stream", "") for _ in range(followers_count)]
        for follower in followers:
            follower.start_clock()
            follower.keep_chunks = False
        async with HttpConnection(port, "") as connection:
            await connection.post("/go", b"")
        return await _wait_for_all(followers)


async def _open(server: ApiServer, path: str, followers_count: int) -> list[Follower]:
    followers = [await Follower.open(server.port, path, server.key) for _ in range(followers_count)]
    # One follower checks that everything arrives; the others only count bytes.
    for follower in followers[1:]:
        follower.keep_chunks = False
    return followers


async def _release(connection: HttpConnection, run_id: str) -> None:
    await connection.post(f"/api/v2/runs/{run_id}/approve", b"")


async def _wait_until_ended(connection: HttpConnection, run_id: str) -> None:
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        while True:
            _, answer = await connection.request("GET", f"/api/v2/runs/{run_id}/wait?timeout_seconds=30")
            if orjson.loads(answer)["status"] == "completed":
                return


async def _wait_for_all(followers: list[Follower]) -> float:
    """Wait for the end of every stream, and return the seconds from the first chunk to the last."""
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        for follower in followers:
            await follower.ended.wait()
    return (max(f.last_at for f in followers) - min(f.first_at for f in followers)) / 1e9
