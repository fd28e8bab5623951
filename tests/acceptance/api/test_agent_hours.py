"""Streams of the agent server over hours: a person who needs one, a node that is quiet, events that have expired."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from langgraph.config import get_stream_writer

from runlane.api.services import WorkerOptions
from runlane.app import App
from runlane.domain.maintenance import MaintenanceService
from runlane.settings import Settings
from runlane.store.sql import postgres
from runlane.testing import DatabaseClock
from tests.acceptance.api.agent_client import langgraph_client
from tests.acceptance.api.agent_graphs import State, add_graphs, chain
from tests.acceptance.api.serving import Api, serving
from tests.harness import Store, eventually

INPUT: dict[str, Any] = {"value": 1, "items": []}
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Served:
    """A served API with a worker. Tests move the time of its database, and open the gate of the graph `quiet`."""

    api: Api
    clock: DatabaseClock
    settings: Settings
    gate: asyncio.Event

    async def pass_an_hour(self) -> None:
        """Let an hour pass, and every service look for what is due meanwhile."""
        await self.clock.advance(HOUR)
        for service in MaintenanceService:
            self.api.parts.connection.bus.report_timer(0, service)


@pytest.fixture
async def served(settings: Settings) -> AsyncGenerator[Served]:
    gate = asyncio.Event()

    async def quiet(state: State) -> dict[str, Any]:
        get_stream_writer()({"says": "before"})
        await gate.wait()
        get_stream_writer()({"says": "after"})
        return {"items": ["quiet"]}

    app = add_graphs(App(settings))
    app.graph("quiet", chain(State, quiet=quiet))
    async with DatabaseClock(settings) as clock, serving(app, worker=WorkerOptions()) as api:
        yield Served(api, clock, settings, gate)


class Reading:
    """A stream of a thread or a run that is read beside the test. `found` has its events, `ids` their positions."""

    def __init__(self, api: Api, method: str, path: str, body: Any = None, after: str | None = None) -> None:
        self.found: list[tuple[str, Any]] = []
        self.ids: list[str] = []
        self._request = (method, path)
        self._options: dict[str, Any] = {"json": body, "headers": {} if after is None else {"Last-Event-ID": after}}
        self._task = asyncio.create_task(self._read(api))

    async def _read(self, api: Api) -> None:
        event = ""
        async with api.client.stream(*self._request, **self._options) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                name, _, text = line.partition(": ")
                if name == "event":
                    event = text
                elif name == "data":
                    self.found.append((event, orjson.loads(text)))
                elif name == "id" and text:
                    self.ids.append(text)

    async def until(self, event: str, count: int = 1) -> None:
        """Wait until the stream has had this many events of a name, or of a lifecycle phase. It must be open."""

        def arrived() -> bool:
            return sum(event in (name, _phase(data)) for name, data in self.found) >= count

        await eventually(lambda: arrived() or self._task.done(), event)
        assert arrived(), self._task.exception() if self._task.done() else self.found

    @property
    def open(self) -> bool:
        return not self._task.done()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


def _phase(data: Any) -> str | None:
    """Return the phase that a lifecycle event of a thread announces; None for other data."""
    match data:
        case {"method": "lifecycle", "params": {"data": {"event": str() as phase}}}:
            return phase
        case _:
            return None


def _in_order(ids: list[str]) -> list[str]:
    """Return the positions in their order, each once."""
    return sorted(set(ids), key=lambda position: [int(part) for part in position.split(".")])


async def _transactions(settings: Settings) -> list[Any]:
    """Return the transactions that are open and the advisory locks that they hold, once none is in progress for work.

    Heartbeats and polls have short ones, so a transaction counts if it is seen in each of several looks.
    """
    if settings.sqlite_path is not None:
        with contextlib.closing(sqlite3.connect(settings.sqlite_path, timeout=60)) as connection:
            # Raises if the file stays locked.
            connection.execute("begin exclusive")
            connection.execute("rollback")
        return []
    sql = (
        "select pid, xact_start from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null"
    )
    connection = await postgres.connect(settings)
    try:
        held = {tuple(row.values()) for row in await connection.fetch(sql)}

        async def ended() -> bool:
            held.intersection_update({tuple(row.values()) for row in await connection.fetch(sql)})
            return not held

        await eventually(ended, "the transactions to end")
    finally:
        await connection.close()
    return list(held)


async def test_a_person_who_needs_an_hour_holds_nothing(served: Served, store: Store) -> None:
    api = served.api
    worker = api.parts.worker
    assert worker is not None
    async with langgraph_client(api) as client:
        thread = (await client.threads.create())["thread_id"]
        watched = {"channels": ["lifecycle", "input", "values"]}
        events = Reading(api, "POST", f"/threads/{thread}/stream/events", watched)
        frames = Reading(api, "GET", f"/threads/{thread}/stream", after="-")
        await client.runs.create(thread, "human", input=INPUT)
        await events.until("interrupted")
        await frames.until("end")
        before = len(events.found)
        await served.pass_an_hour()
        # No slot, no run that waits in the database, no transaction, no lease.
        await eventually(lambda: worker.active == 0, "the slot")
        assert await store.sql("select id from runs where status not in ('completed')") == []
        assert await store.sql("select run_id from run_waits") == []
        assert await _transactions(served.settings) == []
        assert (await client.threads.get(thread))["status"] == "interrupted"
        assert (events.open, frames.open, len(events.found)) == (True, True, before)
        # Both streams show the rest, with later numbers, and so does one that begins where another stopped.
        answered = await client.runs.wait(thread, "human", command={"resume": "yes"})
        assert answered["items"] == ["a", "ask:yes", "c"]
        await events.until("completed")
        await frames.until("end", 2)
        later = Reading(
            api, "POST", f"/threads/{thread}/stream/events", watched, after=str(events.found[before - 1][1]["seq"])
        )
        await later.until("completed")
        sequence = [data["seq"] for _, data in events.found]
        assert sequence == sorted(set(sequence))
        assert later.found == events.found[before:]
        assert frames.ids == _in_order(frames.ids)
        for reading in (events, frames, later):
            await reading.close()
    await eventually(lambda: not api.parts.tail._feeds, "the feeds of readers that have left")


async def test_a_run_that_is_quiet_for_an_hour_keeps_its_numbers_and_readers(served: Served) -> None:
    api = served.api
    async with langgraph_client(api) as client:
        thread = (await client.threads.create())["thread_id"]
        run = await client.runs.create(thread, "quiet", input=INPUT, stream_mode=["custom", "values"])
        path = f"/threads/{thread}/runs/{run['run_id']}/stream"
        early = Reading(api, "GET", path)
        await early.until("custom")
        await served.pass_an_hour()
        joined = Reading(api, "GET", path, after=early.ids[-1])
        replayed = Reading(api, "GET", path, after="-1")
        await replayed.until("custom")
        assert all(reading.open for reading in (early, joined, replayed))
        served.gate.set()
        for reading in (early, joined, replayed):
            await reading.until("end")
        assert [data for name, data in early.found if name == "custom"] == [{"says": "before"}, {"says": "after"}]
        assert replayed.found == early.found
        assert joined.found == early.found[-len(joined.found) :]
        assert [data for name, data in joined.found if name == "custom"] == [{"says": "after"}]
        assert early.ids == replayed.ids == _in_order(early.ids)
        assert (await client.runs.get(thread, run["run_id"]))["status"] == "success"
    await eventually(lambda: not api.parts.tail._feeds, "the feeds of streams that have ended")


async def test_events_that_have_expired_are_said_aloud(settings: Settings, store: Store) -> None:
    short = settings.model_copy(update={"events_retention_days": 1.0, "retention_seconds": 0.1})
    async with (
        DatabaseClock(short) as clock,
        serving(add_graphs(App(short)), worker=WorkerOptions()) as api,
        langgraph_client(api) as client,
    ):
        thread = (await client.threads.create())["thread_id"]
        await client.runs.wait(thread, "three", input=INPUT)
        (run,) = await client.runs.list(thread)
        path = f"/threads/{thread}/runs/{run['run_id']}/stream"
        whole = Reading(api, "GET", path, after="-1")
        await whole.until("end")
        assert [name for name, _ in whole.found] == ["metadata", *["values"] * 4, "end"]
        await clock.advance(2 * 24 * HOUR)

        async def expired() -> bool:
            return len(await store.sql("select seq from run_events where run_id = :id", id=run["run_id"])) == 1

        await eventually(expired, "retention")
        kept = (await store.sql("select seq from run_events where run_id = :id", id=run["run_id"]))[0]["seq"]
        for position in ("-1", whole.ids[1]):
            late = Reading(api, "GET", path, after=position)
            await late.until("end")
            assert late.found[0] == ("truncated", {"run_id": run["run_id"], "first_seq": kept})
            assert late.found[-1] == whole.found[-1]
        current = Reading(api, "GET", path, after=str(kept - 1))
        await current.until("end")
        assert [name for name, _ in current.found] == ["end"]
        events = Reading(
            api, "POST", f"/threads/{thread}/stream/events", {"channels": ["custom", "lifecycle"], "since": 0}
        )
        await events.until("completed")
        gaps = [data["params"]["data"] for _, data in events.found if data["method"] == "custom"]
        assert gaps == [{"name": "truncated", "payload": {"run_id": run["run_id"], "first_seq": kept}}]
        await events.close()
        # The state is kept: only the events have expired.
        assert await client.runs.join(thread, run["run_id"]) == {"value": 4, "items": ["a", "b", "c"]}
