"""Tokens: how fast the pieces of a model's answer reach fifty followers, and the delay of each piece.

The provider is a process that implements OpenAI's wire format and sends pieces as fast as they are read. One worker
calls it, and one API process with Redis sends the answer to the followers. The baseline is the provider layer alone, in
its own process, which reads the same answer and discards it. For the delays, pieces are sent one by one through a relay
in this process that records their times.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import orjson

from bench.http_client import Follower, HttpConnection, unchunked
from bench.measures import SYSTEMS, Sizes
from bench.process import cpu_seconds, run_json_program, running
from bench.relay import Relay
from bench.samples import Sample
from bench.server import ApiServer, serving
from bench.servers import Servers, Workspace, query
from bench.systems.runlane import RunlaneClient
from runlane.testing import FakeAnswer, FakeProvider

EACH, ALL, ALONE, LATE = "to each follower", "to all followers", "through the worker alone", "provider to follower"
WORKER_CPU, SERVER_CPU = "CPU of the worker", "CPU of the server"
BASELINE = "pydantic-ai"
MODEL = "openai-chat:bench"
_KEY = "a-key-of-the-benchmark"
_WARM, _LONG, _SLOW = "warm up", "long answer", "slow answer"
_TIMEOUT_SECONDS = 120
_FLOW = {
    "id": "tokens",
    "steps": [{"id": "answer", "type": "llm", "model": MODEL, "prompt_template": "{state.user_input}"}],
}
_NUMBER = re.compile(rb"#(\d{5}) ")


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield per repeat the rates to followers, of the worker alone and of the baseline, and the delays of pieces."""
    if not sizes.select("runlane"):
        return
    answers = [
        FakeAnswer(when=_LONG, text=_numbered(sizes.tokens), piece_chars=7),
        FakeAnswer(when=_SLOW, text=_numbered(sizes.tokens_timed), piece_chars=7, piece_delay_seconds=0.01),
        FakeAnswer(text="warm", piece_chars=7),
    ]
    for repeat in range(sizes.repeats):
        with servers.workspace() as workspace, FakeProvider(answers) as provider:
            await SYSTEMS["runlane"](workspace).prepare()
            seconds, cpu = await _baseline(servers, workspace, provider)
            yield Sample("tokens", BASELINE, ALONE, repeat, "pieces/s", [sizes.tokens / seconds])
            yield Sample("tokens", BASELINE, WORKER_CPU, repeat, "us/piece", [1e6 * cpu / sizes.tokens])
            async with _ready(servers, workspace, provider) as (client, server, pids):
                run = await client.start(_LONG)
                await client.release(run)
                await client.wait_until_ended(run)
                yield Sample(
                    "tokens", "runlane", ALONE, repeat, "pieces/s", [sizes.tokens / await _seconds(workspace, run)]
                )

                run = await client.start(_LONG)
                followers = await _open(server, run, sizes.token_followers)
                before = [cpu_seconds(pid) for pid in pids]
                await client.release(run)
                seconds = await _wait_for_all(followers)
                used = [cpu_seconds(pid) - was for pid, was in zip(pids, before, strict=True)]
                _check(followers, sizes.tokens)
                each = sizes.tokens / seconds
                yield Sample("tokens", "runlane", EACH, repeat, "pieces/s", [each])
                yield Sample("tokens", "runlane", ALL, repeat, "pieces/s", [each * sizes.token_followers])
                for variant, spent in zip((WORKER_CPU, SERVER_CPU), used, strict=True):
                    yield Sample("tokens", "runlane", variant, repeat, "us/piece", [1e6 * spent / sizes.tokens])

                run = await client.start(_SLOW)
                followers = await _open(server, run, sizes.token_followers)
                client.relay.recording = True
                await client.release(run)
                await _wait_for_all(followers)
                # The stored events at the end repeat the whole text; the first arrival counts.
                arrived = {int(n): at for at, data in reversed(followers[0].chunks) for n in _NUMBER.findall(data)}
                sent = client.relay.times(_NUMBER)
                times = [(arrived[number] - sent[number]) / 1e6 for number in range(sizes.tokens_timed)]
                yield Sample("tokens", "runlane", LATE, repeat, "ms", times)


def _numbered(count: int) -> str:
    return "".join(f"#{number:05} " for number in range(count))


class _RunClient:
    """Starts runs of the orchestration over HTTP, held until they are released."""

    def __init__(self, connection: HttpConnection, relay: Relay) -> None:
        self._connection = connection
        self.relay = relay

    async def start(self, message: str) -> dict[str, Any]:
        body = orjson.dumps({"message": message, "hold": True})
        return orjson.loads(await self._connection.post("/api/v2/orchestrations/tokens/run", body))

    async def release(self, run: dict[str, Any]) -> None:
        await self._connection.post(f"/api/v2/runs/{run['run_id']}/approve", b"")

    async def wait_until_ended(self, run: dict[str, Any]) -> None:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            while True:
                _, answer = await self._connection.request(
                    "GET", f"/api/v2/runs/{run['run_id']}/wait?timeout_seconds=30"
                )
                if orjson.loads(answer)["status"] == "completed":
                    return


@asynccontextmanager
async def _ready(
    servers: Servers, workspace: Workspace, provider: FakeProvider
) -> AsyncGenerator[tuple[_RunClient, ApiServer, tuple[int, int]]]:
    """Start a worker that has called the provider once, and a server; yield a client and the process ids."""
    system = SYSTEMS["runlane"](workspace)
    async with system.client() as client:
        assert isinstance(client, RunlaneClient)
        await client.sync({"orchestrations": [_FLOW]})
    async with Relay.to(provider.port) as relay:
        environment = servers.environment(workspace, redis=True) | {
            "OPENAI_BASE_URL": f"http://127.0.0.1:{relay.port}/v1",
            "OPENAI_API_KEY": _KEY,
        }
        with running(system.worker(None), environment, servers.log) as worker:
            async with serving(servers, workspace) as server, server.connection() as connection:
                client = _RunClient(connection, relay)
                # The first call of a provider imports its library.
                run = await client.start(_WARM)
                await client.release(run)
                await client.wait_until_ended(run)
                yield client, server, (worker.pid, server.pid)


async def _baseline(servers: Servers, workspace: Workspace, provider: FakeProvider) -> tuple[float, float]:
    """Return the time that the provider layer alone takes to read the answer, and its processor time."""
    command = ["-m", "bench.systems.pydantic_ai", "tokens", provider.openai_url, _LONG]
    output = await run_json_program(command, servers.environment(workspace), servers.log, _TIMEOUT_SECONDS)
    return float(output["seconds"]), float(output["cpu_seconds"])


async def _seconds(workspace: Workspace, run: dict[str, Any]) -> float:
    sql = "select (ended_at - claimed_at) / 1e6 as seconds from runs where id = $1"
    return float((await query(workspace.database_url, sql, run["run_id"]))[0]["seconds"])


async def _open(server: ApiServer, run: dict[str, Any], count: int) -> list[Follower]:
    followers = [await Follower.open(server.port, run["stream_url"], server.key) for _ in range(count)]
    for follower in followers:
        follower.start_clock()
    # One follower checks that everything arrives; the others only count bytes.
    for follower in followers[1:]:
        follower.keep_chunks = False
    return followers


async def _wait_for_all(followers: list[Follower]) -> float:
    """Wait for the end of every stream, and return the seconds from the first chunk to the last."""
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        for follower in followers:
            await follower.ended.wait()
    return (max(f.last_at for f in followers) - min(f.first_at for f in followers)) / 1e9


def _check(followers: list[Follower], count: int) -> None:
    """Check that one follower has the whole text in live pieces, and the others about as many bytes."""
    body = unchunked(b"".join(data for _, data in followers[0].chunks))
    events = [orjson.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: ")]
    text = "".join(event["text"] for event in events if event["type"] == "text" and "offset" in event)
    if text != _numbered(count):
        raise RuntimeError(f"a follower got {len(text)} characters live, not {len(_numbered(count))}")
    if min(f.bytes for f in followers) < 0.9 * followers[0].bytes:
        raise RuntimeError("a follower got less than the others")
