"""Crons with the unmodified LangGraph client: each slot starts one run, in its own thread or in that of the cron."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langgraph_sdk.errors import NotFoundError, UnprocessableEntityError

from runlane.api.services import WorkerOptions
from runlane.app import App
from runlane.domain.graph_registry import DefaultTtl
from runlane.domain.maintenance import MaintenanceService
from runlane.settings import Settings
from runlane.testing import DatabaseClock
from tests.acceptance.api.agent_client import host, lacking, langgraph_client, stranger_key
from tests.acceptance.api.agent_graphs import add_graphs
from tests.acceptance.api.serving import Api, serving
from tests.harness import eventually

INPUT: dict[str, Any] = {"value": 1, "items": []}
FINAL: dict[str, Any] = {"value": 4, "items": ["a", "b", "c"]}
YEARLY = "0 3 1 1 *"
RECORDED: dict[str, Any] = {
    "cron_id": "01a1e584-242a-7420-b26d-ee852770692c",
    "assistant_id": "cce3e224-f9e7-5b27-a77f-c6feab9cd704",
    "thread_id": None,
    "end_time": None,
    "schedule": YEARLY,
    "timezone": None,
    "payload": {
        "assistant_id": "cce3e224-f9e7-5b27-a77f-c6feab9cd704",
        "schedule": YEARLY,
        "input": INPUT,
        "metadata": {"k": 1},
        "config": {"configurable": {"cron_id": "01a1e584-242a-7420-b26d-ee852770692c"}},
    },
    "next_run_date": "2026-11-17T03:00:00+00:00",
    "metadata": {"k": 1},
    "on_run_completed": "delete",
    "enabled": True,
    "created_at": "2026-11-16T18:00:04.906709+00:00",
    "updated_at": "2026-11-16T18:00:04.906709+00:00",
}


@dataclass(frozen=True, slots=True)
class Timed:
    """A served API whose database has a clock that tests move."""

    api: Api
    clock: DatabaseClock

    async def pass_a_minute(self) -> None:
        await self.clock.advance(60)
        self.api.parts.connection.bus.report_timer(0, MaintenanceService.SCHEDULES)


@pytest.fixture
async def timed(own_app: App, settings: Settings) -> AsyncGenerator[Timed]:
    async with DatabaseClock(settings) as clock, serving(add_graphs(own_app), worker=WorkerOptions()) as api:
        yield Timed(api, clock)


async def _started(api: Api, cron_id: str, count: int = 1) -> list[dict[str, Any]]:
    """Wait for firings that have started a run."""

    async def found() -> list[dict[str, Any]]:
        answer = await api.get(f"/schedules/{cron_id}/firings")
        fired = [firing for firing in answer.json()["firings"] if firing["outcome"] == "started"]
        return fired if len(fired) >= count else []

    return await eventually(found, f"{count} firings of {cron_id}")


async def test_a_cron_has_the_recorded_answers(idle_api: Api) -> None:
    await host(idle_api)
    async with langgraph_client(idle_api) as client:
        made = await client.crons.create("three", schedule=YEARLY, input=INPUT, metadata={"k": 1})
        assert lacking(RECORDED, made) == []
        assert made["payload"]["config"]["configurable"]["cron_id"] == made["cron_id"]
        assert made["next_run_date"] > made["created_at"]
        thread = (await client.threads.create())["thread_id"]
        other = await client.crons.create_for_thread(
            thread, "three", schedule="*/5 * * * *", input=INPUT, timezone="Europe/Berlin"
        )
        assert (other["thread_id"], other["on_run_completed"]) == (thread, None)
        assert (other["timezone"], other["payload"]["timezone"]) == ("Europe/Berlin", "Europe/Berlin")
        assert [item["cron_id"] for item in await client.crons.search()] == [other["cron_id"], made["cron_id"]]
        assert await client.crons.search(thread_id=thread) == [other]
        assert await client.crons.search(metadata={"k": 1}) == [made]
        assert await client.crons.search(metadata={"k": 2}) == []
        assert await client.crons.search(enabled=False) == []
        assert len(await client.crons.search(assistant_id="three", limit=1)) == 1
        oldest = await client.crons.search(sort_by="created_at", sort_order="asc", select=["cron_id", "now"])
        assert (oldest[0]["cron_id"], sorted(oldest[0])) == (made["cron_id"], ["cron_id", "now"])
        for column in ("cron_id", "assistant_id", "thread_id", "updated_at", "next_run_date", "end_time"):
            assert len(await client.crons.search(sort_by=column)) == 2
        assert await client.crons.count() == 2
        assert await client.crons.count(thread_id=thread) == 1
        assert (await idle_api.client.get(f"/runs/crons/{made['cron_id']}")).json() == made
        await client.crons.delete(made["cron_id"])
        with pytest.raises(NotFoundError):
            await client.crons.delete(made["cron_id"])
        assert await client.crons.count() == 1
        # A thread takes its crons with it.
        await client.threads.delete(thread)
        assert await client.crons.count() == 0


async def test_a_patch_changes_what_it_names(idle_api: Api) -> None:
    await host(idle_api)
    end = datetime.now(UTC) + timedelta(days=800)
    async with langgraph_client(idle_api) as client:
        made = await client.crons.create(
            "three", schedule=YEARLY, input=INPUT, metadata={"k": 1}, end_time=end, context={"a": 1}, enabled=False
        )
        assert (made["enabled"], made["end_time"][:10]) == (False, end.isoformat()[:10])
        changed = await client.crons.update(
            made["cron_id"],
            schedule="0 4 1 1 *",
            metadata={"m": 2},
            timezone="America/New_York",
            webhook="https://example.com/done",
            on_run_completed="keep",
            enabled=True,
            stream_mode="values",
        )
        assert (changed["schedule"], changed["metadata"], changed["enabled"]) == ("0 4 1 1 *", {"k": 1, "m": 2}, True)
        assert (changed["timezone"], changed["on_run_completed"]) == ("America/New_York", "keep")
        assert (changed["end_time"], changed["payload"]["context"]) == (made["end_time"], {"a": 1})
        assert changed["payload"]["input"] == INPUT
        cleared = await client.crons.update(made["cron_id"], end_time=None)
        assert (cleared["end_time"], cleared["schedule"]) == (None, "0 4 1 1 *")
        again = await client.crons.update(made["cron_id"], input={"value": 7, "items": []}, config={"tags": ["t"]})
        assert (again["payload"]["input"]["value"], again["payload"]["config"]["tags"]) == (7, ["t"])
        paused = await client.crons.update(made["cron_id"], enabled=False)
        assert paused["enabled"] is False
        assert await client.crons.search(enabled=False, select=["cron_id"]) == [{"cron_id": made["cron_id"]}]


async def test_each_slot_starts_one_run(timed: Timed) -> None:
    app = timed.api.parts.app
    app.agent_server = replace(app.agent_server, thread_ttl=DefaultTtl(30))
    async with langgraph_client(timed.api) as client:
        cron = await client.crons.create(
            "three", schedule="* * * * *", input=INPUT, metadata={"k": 1}, on_run_completed="keep"
        )
        await timed.pass_a_minute()
        (fired,) = await _started(timed.api, cron["cron_id"])
        (thread,) = await eventually(lambda: client.threads.search(status="idle"), "the thread of the run")
        run = await client.runs.get(thread["thread_id"], fired["run_id"])
        assert await client.runs.join(thread["thread_id"], run["run_id"]) == FINAL
        assert (run["metadata"]["cron_id"], run["metadata"]["k"]) == (cron["cron_id"], 1)
        assert run["kwargs"]["config"]["configurable"]["cron_id"] == cron["cron_id"]
        shown = (await timed.api.client.get(f"/threads/{thread['thread_id']}?include=ttl")).json()
        assert shown["ttl"]["ttl_minutes"] == 30, "a thread of a cron has the default time to live"
        # A pass of every process at once decides about a slot once.
        await timed.pass_a_minute()
        await asyncio.gather(*(_started(timed.api, cron["cron_id"], 2) for _ in range(3)))
        assert len(await _started(timed.api, cron["cron_id"])) == len(await client.threads.search())
        await client.crons.update(cron["cron_id"], on_run_completed="delete")
        await client.threads.prune([item["thread_id"] for item in await client.threads.search()])
        await timed.pass_a_minute()
        newest = (await _started(timed.api, cron["cron_id"], 3))[0]["run_id"]

        async def gone() -> bool:
            ended = (await timed.api.get(f"/runs/{newest}")).json()["status"] == "completed"
            return ended and await client.threads.search() == []

        await eventually(gone, "the end of the run with its thread")


async def test_the_runs_of_a_threads_cron_build_on_each_other(timed: Timed) -> None:
    async with langgraph_client(timed.api) as client:
        thread = (await client.threads.create())["thread_id"]
        cron = await client.crons.create_for_thread(thread, "three", schedule="* * * * *", input=INPUT)
        for count in (1, 2):
            await timed.pass_a_minute()
            fired = await _started(timed.api, cron["cron_id"], count)
            await client.runs.join(thread, fired[0]["run_id"])
        # A minute of the real clock may end as well, so there may be more than two runs.
        await client.crons.update(cron["cron_id"], enabled=False)
        runs = await client.runs.list(thread)
        for run in runs:
            await client.runs.join(thread, run["run_id"])
        state = await client.threads.get_state(thread)
        assert state["values"]["items"] == ["a", "b", "c"] * len(runs)
        # The thread is deleted between two slots: the cron goes with it, and no run is left.
        await client.threads.delete(thread)
        with pytest.raises(NotFoundError):
            await client.crons.update(cron["cron_id"], enabled=False)


async def test_a_cron_that_rejects_leaves_a_busy_thread_alone(timed: Timed) -> None:
    async with langgraph_client(timed.api) as client:
        thread = (await client.threads.create())["thread_id"]
        run = await client.runs.create(thread, "sleepy", input=INPUT)
        cron = await client.crons.create_for_thread(
            thread, "three", schedule="* * * * *", input=INPUT, multitask_strategy="reject"
        )
        await timed.pass_a_minute()

        async def refused() -> bool:
            fired = (await timed.api.get(f"/schedules/{cron['cron_id']}/firings")).json()["firings"]
            # A minute of the real clock may end as well, so there may be several slots.
            return {item["outcome"] for item in fired} == {"failed_to_start"}

        await eventually(refused, "the refused slot")
        assert [item["run_id"] for item in await client.runs.list(thread)] == [run["run_id"]]
        await client.crons.delete(cron["cron_id"])
        await client.runs.cancel(thread, run["run_id"], wait=True)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"schedule": "every tuesday"}, "every tuesday"),
        ({"schedule": "0 0 31 2 *"}, "must exist"),
        ({"schedule": "* * * * * *"}, "exactly five"),
        ({"schedule": "* * * * *", "timezone": "Mars/Olympus"}, "Mars/Olympus"),
        ({"schedule": "* * * * *", "end_time": "tomorrow"}, "tomorrow"),
        ({"schedule": "* * * * *", "end_time": "2020-01-01T00:00:00+00:00"}, ""),
        ({"schedule": "* * * * *", "after_seconds": 5}, "after_seconds"),
        ({"schedule": "* * * * *", "bogus": 5}, "bogus"),
        ({}, "schedule"),
    ],
)
async def test_bad_crons_are_refused(idle_api: Api, fields: dict[str, Any], problem: str) -> None:
    await host(idle_api)
    answer = await idle_api.client.post("/runs/crons", json={"assistant_id": "three", **fields})
    assert answer.status_code == 422, answer.text
    assert problem in answer.json()["message"]
    assert answer.json()["detail"] == answer.json()["message"]
    assert (await idle_api.client.post("/runs/crons/count")).json() == 0


async def test_a_bad_change_leaves_the_cron_as_it_is(idle_api: Api) -> None:
    await host(idle_api)
    async with langgraph_client(idle_api) as client:
        with pytest.raises(NotFoundError):
            await client.crons.create("nope", schedule=YEARLY)
        with pytest.raises(NotFoundError):
            await client.crons.create_for_thread("11111111-1111-4111-8111-111111111111", "three", schedule=YEARLY)
        made = await client.crons.create("three", schedule=YEARLY)
        with pytest.raises(UnprocessableEntityError):
            await client.crons.update(made["cron_id"], schedule="nope", enabled=False)
        with pytest.raises(UnprocessableEntityError):
            await client.crons.update(made["cron_id"], stream_mode="nope")
        assert await client.crons.search() == [made]
        # It is a schedule, which the other doors show and do not change.
        refused = await idle_api.client.patch(f"/api/v2/schedules/{made['cron_id']}", json={"priority": 5})
        assert refused.status_code == 409, refused.text
        body = {"id": "x", "target": {"kind": "assistant", "name": "three"}, "spec": [{"cron": YEARLY}]}
        assert (await idle_api.post("/schedules", body)).status_code == 422
        assert (await idle_api.get(f"/schedules/{made['cron_id']}")).json()["source"] == "crons"


async def test_crons_of_other_tenants_do_not_exist(idle_api: Api) -> None:
    await host(idle_api)
    other = await stranger_key(idle_api)
    async with langgraph_client(idle_api) as client, langgraph_client(idle_api, other) as stranger:
        mine = await client.crons.create("three", schedule=YEARLY)
        assert await stranger.crons.count() == 0
        with pytest.raises(NotFoundError):
            await stranger.crons.update(mine["cron_id"], enabled=False)
        with pytest.raises(NotFoundError):
            await stranger.crons.delete(mine["cron_id"])
