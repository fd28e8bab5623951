"""taskiq on Redis without results, its fastest configuration. Not durable: Redis keeps the queue in memory.

`stream` uses RedisStreamBroker, which acknowledges messages and can redeliver those of a dead worker; `list` uses
ListQueueBroker, which removes a message when a worker receives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from taskiq import AsyncBroker
from taskiq.api import run_receiver_task
from taskiq_redis import ListQueueBroker, RedisStreamBroker

from bench import notify

IN_FLIGHT = 100


async def noop(key: int) -> None:
    notify.count()


async def stamp(key: int) -> None:
    notify.send("started", key)


async def hold(key: int) -> None:
    notify.send("started", key)
    await asyncio.sleep(600)


TASKS = {"noop": noop, "stamp": stamp, "hold": hold}


def make_broker(kind: str, redis_url: str, queue: str) -> AsyncBroker:
    """Return a broker with the tasks above. The stream is read from its start, because runs precede the worker."""
    made: AsyncBroker = (
        RedisStreamBroker(redis_url, queue_name=queue, consumer_id="0")
        if kind == "stream"
        else ListQueueBroker(redis_url, queue_name=queue)
    )
    for name, function in TASKS.items():
        made.register_task(function, task_name=name)
    return made


_workspace = (os.environ.get("BENCH_REDIS_URL", "redis://127.0.0.1:6379/0"), os.environ.get("BENCH_QUEUE", "bench"))
stream_broker = make_broker("stream", *_workspace)
list_broker = make_broker("list", *_workspace)


class TaskiqClient:
    """Sends through a broker."""

    def __init__(self, broker: AsyncBroker) -> None:
        self._broker = broker

    async def accept(self, task: str, key: int) -> None:
        found = self._broker.find_task(task)
        assert found is not None
        await found.kiq(key)

    async def accept_many(self, count: int) -> None:
        for start in range(0, count, IN_FLIGHT):
            await asyncio.gather(
                *(self.accept("noop", key) for key in range(start, min(start + IN_FLIGHT, count))),
            )


class Taskiq:
    """taskiq on Redis, with one of its two brokers."""

    drained_sql: str | None = None
    bulk = False

    def __init__(self, kind: str, redis_url: str, queue: str) -> None:
        self.name = f"taskiq-{kind}"
        self._kind = kind
        self._redis_url = redis_url
        self._queue = queue

    def worker(self, concurrency: int | None) -> Sequence[str]:
        slots = [] if concurrency is None else ["--max-async-tasks", str(concurrency)]
        broker = f"bench.systems.taskiq:{self._kind}_broker"
        return ["-m", "taskiq", "worker", broker, "--workers", "1", "--log-level", "WARNING", *slots]

    async def prepare(self) -> None:
        async with self.client():
            pass

    @asynccontextmanager
    async def client(self, *, with_worker: bool = False) -> AsyncGenerator[TaskiqClient]:
        made = make_broker(self._kind, self._redis_url, self._queue)
        await made.startup()
        worker = asyncio.create_task(run_receiver_task(made)) if with_worker else None
        try:
            yield TaskiqClient(made)
        finally:
            if worker is not None:
                worker.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await worker
            await made.shutdown()
