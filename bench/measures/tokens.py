"""Tokens: how fast the pieces of a model's answer come from a provider to fifty readers, and how late each of them is.

The provider is a process that speaks OpenAI's wire format and sends pieces as fast as they are taken; one worker asks
it, one serving process with Redis passes the answer on. The yardstick is the provider layer alone, in a process of its
own, which reads the same answer and hands it to nobody. For the times, pieces come one by one, and pass a relay in this
process that notes when.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import orjson

from bench.ground import Ground, Place, query
from bench.measures import SYSTEMS, Sizes
from bench.process import answer_of, cpu_seconds, running
from bench.relay import Relay
from bench.samples import Sample
from bench.serving import Served, serving
from bench.systems.runlane import RunlaneClient
from bench.wire import Caller, Follower, unchunked
from runlane.testing import FakeAnswer, FakeProvider

EACH, ALL, ALONE, LATE = "to each follower", "to all followers", "through the worker alone", "provider to follower"
WORKER_CPU, SERVER_CPU = "CPU of the worker", "CPU of the server"
YARDSTICK = "pydantic-ai"
MODEL = "openai-chat:bench"
_KEY = "a-key-of-the-benchmark"
_WARM, _LONG, _SLOW = "warm up", "say much", "say it slowly"
_PATIENCE_SECONDS = 120
_FLOW = {
    "id": "tokens",
    "steps": [{"id": "say", "type": "llm", "model": MODEL, "prompt_template": "{state.user_input}"}],
}
_NUMBER = re.compile(rb"#(\d{5}) ")


async def measure(ground: Ground, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Per repeat: the rates to followers, that of the worker alone, that of the yardstick, and the times of pieces."""
    if not sizes.among("runlane"):
        return
    answers = [
        FakeAnswer(when=_LONG, text=_numbered(sizes.tokens), piece_chars=7),
        FakeAnswer(when=_SLOW, text=_numbered(sizes.tokens_timed), piece_chars=7, piece_delay_seconds=0.01),
        FakeAnswer(text="warm", piece_chars=7),
    ]
    for repeat in range(sizes.repeats):
        with ground.place() as place, FakeProvider(answers) as provider:
            await SYSTEMS["runlane"](place).prepare()
            seconds, cpu = await _yardstick(ground, place, provider)
            yield Sample("tokens", YARDSTICK, ALONE, repeat, "pieces/s", [sizes.tokens / seconds])
            yield Sample("tokens", YARDSTICK, WORKER_CPU, repeat, "us/piece", [1e6 * cpu / sizes.tokens])
            async with _ready(ground, place, provider) as (ask, served, pids):
                run = await ask.start(_LONG)
                await ask.release(run)
                await ask.ended(run)
                yield Sample(
                    "tokens", "runlane", ALONE, repeat, "pieces/s", [sizes.tokens / await _seconds(place, run)]
                )

                run = await ask.start(_LONG)
                followers = await _open(served, run, sizes.token_followers)
                before = [cpu_seconds(pid) for pid in pids]
                await ask.release(run)
                seconds = await _all_of(followers)
                used = [cpu_seconds(pid) - was for pid, was in zip(pids, before, strict=True)]
                _check(followers, sizes.tokens)
                each = sizes.tokens / seconds
                yield Sample("tokens", "runlane", EACH, repeat, "pieces/s", [each])
                yield Sample("tokens", "runlane", ALL, repeat, "pieces/s", [each * sizes.token_followers])
                for variant, spent in zip((WORKER_CPU, SERVER_CPU), used, strict=True):
                    yield Sample("tokens", "runlane", variant, repeat, "us/piece", [1e6 * spent / sizes.tokens])

                run = await ask.start(_SLOW)
                followers = await _open(served, run, sizes.token_followers)
                ask.relay.keep = True
                await ask.release(run)
                await _all_of(followers)
                # The events at the end have the whole text once more: the first time counts.
                arrived = {int(n): at for at, data in reversed(followers[0].pieces) for n in _NUMBER.findall(data)}
                sent = ask.relay.times(_NUMBER)
                times = [(arrived[number] - sent[number]) / 1e6 for number in range(sizes.tokens_timed)]
                yield Sample("tokens", "runlane", LATE, repeat, "ms", times)


def _numbered(count: int) -> str:
    return "".join(f"#{number:05} " for number in range(count))


class _Asking:
    """Runs of the flow, handed in over HTTP and held until somebody listens."""

    def __init__(self, caller: Caller, relay: Relay) -> None:
        self._caller = caller
        self.relay = relay

    async def start(self, message: str) -> dict[str, Any]:
        body = orjson.dumps({"message": message, "hold": True})
        return orjson.loads(await self._caller.post("/api/v2/orchestrations/tokens/run", body))

    async def release(self, run: dict[str, Any]) -> None:
        await self._caller.post(f"/api/v2/runs/{run['run_id']}/approve", b"")

    async def ended(self, run: dict[str, Any]) -> None:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                _, answer = await self._caller.ask("GET", f"/api/v2/runs/{run['run_id']}/wait?timeout_seconds=30")
                if orjson.loads(answer)["status"] == "completed":
                    return


@asynccontextmanager
async def _ready(
    ground: Ground, place: Place, provider: FakeProvider
) -> AsyncGenerator[tuple[_Asking, Served, tuple[int, int]]]:
    """A worker that has asked the provider once, and a server; how to ask, and the processes."""
    system = SYSTEMS["runlane"](place)
    async with system.client() as client:
        assert isinstance(client, RunlaneClient)
        await client.define({"orchestrations": [_FLOW]})
    async with Relay.to(provider.port) as relay:
        environment = ground.environment(place, redis=True) | {
            "OPENAI_BASE_URL": f"http://127.0.0.1:{relay.port}/v1",
            "OPENAI_API_KEY": _KEY,
        }
        with running(system.worker(None), environment, ground.log) as worker:
            async with serving(ground, place) as served, served.caller() as caller:
                ask = _Asking(caller, relay)
                # The first call of a provider imports what it needs.
                run = await ask.start(_WARM)
                await ask.release(run)
                await ask.ended(run)
                yield ask, served, (worker.pid, served.pid)


async def _yardstick(ground: Ground, place: Place, provider: FakeProvider) -> tuple[float, float]:
    """The seconds that the provider layer alone takes to read the answer, and its processor time."""
    command = ["-m", "bench.systems.pydantic_ai", "tokens", provider.openai_url, _LONG]
    told = await answer_of(command, ground.environment(place), ground.log, _PATIENCE_SECONDS)
    return float(told["seconds"]), float(told["cpu_seconds"])


async def _seconds(place: Place, run: dict[str, Any]) -> float:
    sql = "select (ended_at - claimed_at) / 1e6 as seconds from runs where id = $1"
    return float((await query(place.database_url, sql, run["run_id"]))[0]["seconds"])


async def _open(served: Served, run: dict[str, Any], readers: int) -> list[Follower]:
    followers = [await Follower.open(served.port, run["stream_url"], served.key) for _ in range(readers)]
    for follower in followers:
        follower.start_clock()
    # One of them proves that everything arrives; the others only count.
    for follower in followers[1:]:
        follower.keep = False
    return followers


async def _all_of(followers: list[Follower]) -> float:
    """Wait for the end of every stream; the seconds from the first piece that anybody got to the last."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        for follower in followers:
            await follower.ended.wait()
    return (max(f.last_at for f in followers) - min(f.first_at for f in followers)) / 1e9


def _check(followers: list[Follower], count: int) -> None:
    """One reader has the whole text in live pieces, and the others as many bytes, or nearly."""
    body = unchunked(b"".join(data for _, data in followers[0].pieces))
    told = [orjson.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: ")]
    text = "".join(event["text"] for event in told if event["type"] == "text" and "offset" in event)
    if text != _numbered(count):
        raise RuntimeError(f"a reader got {len(text)} characters live, not {len(_numbered(count))}")
    if min(f.bytes for f in followers) < 0.9 * followers[0].bytes:
        raise RuntimeError("a reader got less than the others")
