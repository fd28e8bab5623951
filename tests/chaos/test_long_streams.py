"""A run of very many lines: every poller and every follower gets each once, and reaches the end even after a cut."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx2
import pytest

from runlane.testing import RedisServer
from tests.chaos.cluster import Cluster, MakeCluster, eventually
from tests.chaos.reader import API, Reader
from tests.scale import scaled

LINES = scaled(6_000, 20_000)
PAGE = 100
MESSAGES = [f"line {number}" for number in range(1, LINES + 1)]
# A quarter of an hour; the tests make runs older than that.
CUTTING = {"RUNLANE_EVENTS_RETENTION_DAYS": "0.01", "RUNLANE_RETENTION_SECONDS": "0.05"}


@dataclass(slots=True)
class Poller:
    """Polls a run's log to its end, as the documentation describes it, and keeps what it receives."""

    url: str
    run_id: str
    since: int = 0
    lines: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    pages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def messages(self) -> list[str]:
        return [line["message"] for line in self.lines if line["event"] == "log"]

    async def poll(self, most_pages: int = 10 * LINES // PAGE) -> None:
        async with httpx2.AsyncClient(base_url=self.url, timeout=60, trust_env=False) as client:
            for _ in range(most_pages):
                page = await self._page(client)
                if page["expected_log_count"] is not None and self.since >= page["expected_log_count"]:
                    return
                if not page["logs"]:
                    await asyncio.sleep(0.05)

    async def _page(self, client: httpx2.AsyncClient) -> dict[str, Any]:
        wanted = {"since": self.since, "limit": PAGE}
        answer = await client.get(f"{API}/runs/{self.run_id}/logs", params=wanted)
        assert answer.status_code == 200, answer.text
        page: dict[str, Any] = answer.json()
        if page["logs"] and page["logs"][0]["index"] != self.since:
            assert page["truncated"], "a gap that is not reported to the poller"
            assert page["first_index"] == page["logs"][0]["index"]
        self.lines += page["logs"]
        self.pages.append(page)
        self.since = page["next_index"]
        return page


def cuts(reader: Reader) -> list[int]:
    """Return the numbers before which the server reported to a reader that something is missing."""
    events = [json.loads(data) for data in reader.unnumbered]
    return [frame["first_seq"] for frame in events if frame["type"] == "truncated"]


def holes(reader: Reader) -> list[int]:
    """Return the numbers before which a reader misses something."""
    numbers = [reader.after, *(event.seq for event in reader.received)]
    return [second for first, second in pairwise(numbers) if second != first + 1]


async def make(make_cluster: MakeCluster, kind: str, redis: RedisServer) -> Cluster:
    return await make_cluster(kind, **({"RUNLANE_REDIS_URL": redis.url} if kind == "postgres" else {}))


async def poured(cluster: Cluster) -> tuple[str, int]:
    """A run of 20,000 lines that has ended; its id and its last number."""
    run_id = (await cluster.app.enqueue("pour", {"lines": LINES})).run_id
    return run_id, (await cluster.app.wait(run_id, 120)).last_seq


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_pollers_and_readers_get_every_line_once(
    make_cluster: MakeCluster, chaos_redis: RedisServer, kind: str
) -> None:
    cluster = await make(make_cluster, kind, chaos_redis)
    first, second = await cluster.start_servers(2)
    run_id = (await cluster.app.enqueue("pour", {"lines": LINES})).run_id
    readers, pollers = [Reader(run_id), Reader(run_id)], [Poller(first, run_id), Poller(second, run_id)]
    # One of each from the beginning, through another process than the worker's; one of each when all is over.
    live = [asyncio.create_task(readers[0].read(first)), asyncio.create_task(pollers[0].poll())]
    await cluster.start_workers(1)
    async with asyncio.timeout(120):
        await asyncio.gather(*live)
        await asyncio.gather(readers[1].read(second), pollers[1].poll())
    last = (await cluster.app.get(run_id)).last_seq
    for poller in pollers:
        assert poller.messages == MESSAGES
        assert [line["index"] for line in poller.lines] == list(range(last))
        assert not any(page["truncated"] for page in poller.pages)
        assert (poller.pages[-1]["status"], poller.since) == ("completed", last)
    for reader in readers:
        events = [json.loads(event.data) for event in reader.received]
        assert [event["message"] for event in events if event["type"] == "log"] == MESSAGES
        assert [event.seq for event in reader.received] == list(range(1, last + 1))
        assert (reader.done, cuts(reader)) == (True, [])


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_late_readers_are_notified_of_a_cut_and_reach_the_end(
    make_cluster: MakeCluster, chaos_redis: RedisServer, kind: str
) -> None:
    cluster = await make(make_cluster, kind, chaos_redis)
    [url] = await cluster.start_servers(1)
    await cluster.start_workers(1)
    run_id, last = await poured(cluster)
    stays = (await cluster.app.enqueue("pour", {"lines": 50})).run_id
    await cluster.app.wait(stays, 60)
    halfway, gone = Poller(url, run_id), Poller(url, run_id)
    await halfway.poll(most_pages=50)
    await cluster.rows(f"update runs set ended_at = ended_at - 3600000000 where id = '{run_id}' returning id")
    # These two read while the events are deleted: they may miss any of them, but they are notified and they end.
    overtaken, reader = Poller(url, run_id), Reader(run_id)
    cluster.start_server(environment=CUTTING)
    async with asyncio.timeout(60):
        await asyncio.gather(overtaken.poll(), reader.read(url))

    async def cut() -> bool:
        return (await cluster.app.get(run_id)).first_seq == last

    await eventually(cut, "the cut")
    assert await cluster.rows(f"select seq from run_events where run_id = '{run_id}'") == [{"seq": last}]
    await halfway.poll()
    await gone.poll()
    for poller in (halfway, gone):
        assert poller.pages[-1]["truncated"]
        assert poller.pages[-1]["first_index"] == last - 1
        assert (poller.lines[-1]["event"], poller.since) == ("done", last)
    assert [line["index"] for line in halfway.lines[:-1]] == list(range(50 * PAGE))
    assert len(gone.lines) == len(gone.pages) == 1
    assert overtaken.lines[-1]["event"] == "done"
    assert reader.done
    assert cuts(reader) == holes(reader)
    for after, missing in ((0, [last]), (5_000, [last]), (last - 1, [])):
        late = Reader(run_id, after)
        await late.read(url)
        assert ([event.seq for event in late.received], late.done) == ([last], True)
        assert cuts(late) == holes(late) == missing
    assert (await cluster.app.get(stays)).first_seq == 1
    assert len(await cluster.app.events(stays)) == 53


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_cutting_does_not_disturb_other_processes(make_cluster: MakeCluster, kind: str) -> None:
    """Four processes cut whatever has just ended, while runs are accepted, executed, retried and cancelled."""
    at_once = {**CUTTING, "RUNLANE_EVENTS_RETENTION_DAYS": "0.000001"}
    cluster = await make_cluster(kind, **at_once)
    await cluster.start_servers(2)
    await cluster.start_workers(2)
    runs = await cluster.app.enqueue_many([("short", {"milliseconds": 5})] * 1000)
    hopeless = await cluster.app.enqueue_many([("hopeless", {"label": ""})] * 20)
    held = await cluster.app.enqueue_many([("short", {"milliseconds": 1})] * 20, hold=True)
    for run in hopeless:
        await cluster.app.wait(run.run_id, 60)
        await cluster.app.retry(run.run_id)
    for run in held:
        await cluster.app.cancel(run.run_id)
    await cluster.all_ended()

    async def all_cut() -> bool:
        return await cluster.count("first_seq < last_seq") == 0

    await eventually(all_cut, "every run cut")
    assert await cluster.count("status = 'completed' and attempt = 1 and failures = 0") == len(runs)
    assert await cluster.count("status = 'failed' and attempt = 2") == len(hopeless)
    assert await cluster.count("status = 'cancelled'") == len(held)
    kept = {event["run_id"]: (event["seq"], event["type"]) for event in await cluster.events()}
    assert len(await cluster.events()) == len(kept) == 1040
    last = await cluster.rows("select id, last_seq from runs")
    assert kept == {row["id"]: (row["last_seq"], "done") for row in last}
    cluster.check_effects([run.run_id for run in (*runs, *hopeless)])
    for process in cluster.processes:
        assert "maintenance_failed" not in process.log_text()
