"""taskiq on Redis, with results off: its fastest form. Not durable: Redis keeps the queue in memory.

`stream` uses RedisStreamBroker, which acknowledges and can hand a dead worker's message on; `list` uses
ListQueueBroker, which removes a message when a worker takes it.
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

from bench import note

IN_FLIGHT = 100


async def noop(key: int) -> None:
    note.count()


async def stamp(key: int) -> None:
    note.send("started", key)


async def hold(key: int) -> None:
    note.send("started", key)
    await asyncio.sleep(600)


TASKS = {"noop": noop, "stamp": stamp, "hold": hold}


def make_broker(kind: str, redis_url: str, queue: str) -> AsyncBroker:
    """A broker with the tasks above. The stream is read from its start, since the work is there before the worker."""
    made: AsyncBroker = (
        RedisStreamBroker(redis_url, queue_name=queue, consumer_id="0")
        if kind == "stream"
        else ListQueueBroker(redis_url, queue_name=queue)
    )
    for name, function in TASKS.items():
        made.register_task(function, task_name=name)
    return made


_place = (os.environ.get("BENCH_REDIS_URL", "redis://127.0.0.1:6379/0"), os.environ.get("BENCH_QUEUE", "bench"))
stream_broker = make_broker("stream", *_place)
list_broker = make_broker("list", *_place)


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
    """On Redis, by one of its two brokers."""

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
