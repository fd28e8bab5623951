"""Every metric that operators rely on exists and changes with what it measures."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runlane.app import App
from runlane.errors import LeaseLost
from runlane.settings import Settings
from runlane.store.queue.record import RecordEntry
from tests.acceptance.api.serving import API, Api, copy_of, serving
from tests.harness import Store, eventually


class Metrics:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self._found = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return self._found[f"runlane_{name}", tuple(sorted(labels.items()))]

    def find(self, name: str, **labels: str) -> float:
        """Return a metric whose labels may not have occurred yet; 0 then."""
        return self._found.get((f"runlane_{name}", tuple(sorted(labels.items()))), 0.0)


async def scrape(api: Api) -> Metrics:
    answer = await api.client.get("/metrics")
    assert answer.status_code == 200, answer.text
    return Metrics(answer.text)


async def test_a_run_moves_what_counts_runs(api: Api) -> None:
    before = await scrape(api)
    run = await api.run("greet", input={"lines": 3})
    assert run["status"] == "completed"
    after = before

    async def counted() -> bool:
        nonlocal after
        after = await scrape(api)
        return after("attempt_seconds_count") > before("attempt_seconds_count")

    # The worker counts this last; a reader may see the end of the run before that.
    await eventually(counted, "the attempt is counted")

    def grown(name: str) -> float:
        return after(name) - before(name)

    assert grown("accept_requests_total") == 1
    assert grown("runs_accepted_total") == 1
    waited = after("run_wait_seconds_count", lane="default") - before.find("run_wait_seconds_count", lane="default")
    assert waited == grown("attempt_seconds_count") == 1
    ended = {"target": "greet", "outcome": "completed"}
    assert after("runs_ended_total", **ended) - before.find("runs_ended_total", **ended) == 1
    attempts = after("attempts_total", outcome="completed") - before.find("attempts_total", outcome="completed")
    assert attempts == 1
    assert 0 < grown("attempt_seconds_sum") < 60
    # Accepted, three lines, the end: some of them may share a transaction.
    assert 2 <= grown("commits_total") == grown("commit_members_count") <= grown("commit_members_sum")
    assert grown("commit_members_sum") == 5
    assert after("attempt_seconds_bucket", le="+Inf") == after("attempt_seconds_count")
    assert after("workers", status="online") == 1
    assert after("worker_slots", state="total") == api.parts.app.settings.concurrency


async def test_waiting_runs_are_counted_by_lane_with_their_age(idle_api: Api) -> None:
    api = idle_api
    before = await scrape(api)
    assert before("lane_depth", lane="slow") == before("lane_oldest_seconds", lane="slow") == 0
    await api.run("wait", wait=False)
    await api.run("wait", wait=False)
    await api.run("greet", wait=False, hold=True)
    waiting = await scrape(api)
    assert (waiting("lane_depth", lane="slow"), waiting("lane_depth", lane="default")) == (2, 0)
    age = waiting("lane_oldest_seconds", lane="slow")
    assert 0 <= age < 60

    async def older() -> bool:
        return (await scrape(api))("lane_oldest_seconds", lane="slow") > age

    await eventually(older, "the oldest run grows older")
    store = Store(api.parts.app.settings, api.parts.database)
    assert await store.claim(await store.worker(), 1, targets=["wait"])
    taken = await scrape(api)
    assert (taken("lane_depth", lane="slow"), taken("lane_running", lane="slow")) == (1, 1)
    await api.client.patch(f"{API}/lanes/slow", json={"max_slots": 7, "enabled": False})
    changed = await scrape(api)
    assert (changed("lane_max_slots", lane="slow"), changed("lane_enabled", lane="slow")) == (7, 0)


async def test_a_vanished_worker_moves_takeovers_and_a_late_write_is_counted(idle_api: Api) -> None:
    api = idle_api
    store = Store(api.parts.app.settings, api.parts.database)
    run = await api.run("greet", wait=False)
    worker = await store.worker()
    (claimed,) = await store.claim(worker, 1, targets=["greet"])
    before = await scrape(api)
    await store.sql("update workers set lease_until = 1 where id = :id", id=worker)

    async def taken_over() -> bool:
        return (await scrape(api))("takeovers_total") > before("takeovers_total")

    await eventually(taken_over, "the run is taken over")
    after = await scrape(api)
    assert after("takeovers_total") - before("takeovers_total") == 1
    assert after("lost_workers_total") - before("lost_workers_total") == 1
    late = RecordEntry(run["run_id"], claimed.attempt, claimed.lane, events=[("log", "{}")])
    with pytest.raises(LeaseLost):
        await api.parts.connection.committer.record(late, float("inf"))
    assert (await scrape(api))("fenced_writes_total") - after("fenced_writes_total") == 1


async def test_readers_of_streams_are_counted(idle_api: Api) -> None:
    api = idle_api
    run = await api.run("greet", wait=False)
    path = f"{API}/runs/{run['run_id']}/stream"
    assert (await scrape(api))("followers") == 0
    async with api.client.stream("GET", path) as one, api.client.stream("GET", path) as other:
        texts = one.aiter_text(), other.aiter_text()
        for text in texts:
            await anext(text)
        assert (await scrape(api))("followers") == 2

    async def no_follower() -> bool:
        return (await scrape(api))("followers") == 0

    await eventually(no_follower, "no follower")


async def test_the_connection_of_the_bus_is_reported(api: Api) -> None:
    expected = float(api.parts.app.settings.redis_url is not None)

    async def connected() -> bool:
        return (await scrape(api))("bus_connected") == expected

    await eventually(connected, "the bus")


async def test_a_run_that_ends_without_a_worker_is_counted(idle_api: Api) -> None:
    api = idle_api
    ended = {"target": "greet", "outcome": "cancelled"}
    before = (await scrape(api)).find("runs_ended_total", **ended)
    run = await api.run("greet", wait=False)
    assert (await api.post(f"/runs/{run['run_id']}/cancel")).status_code == 200
    assert (await scrape(api))("runs_ended_total", **ended) - before == 1


async def test_tenants_are_labels_only_if_the_setting_says_so(idle_api: Api, settings: Settings, own_app: App) -> None:
    api = idle_api
    assert (await api.client.put(f"{API}/quotas/runs_per_day", json={"limit": 10})).status_code == 200
    await api.run("greet", wait=False)
    assert (await scrape(api))("allowance_used_ratio", allowance="runs_per_day") == 0.1
    named = copy_of(own_app, settings.model_copy(update={"metrics_tenants": True}))
    async with serving(named) as other:
        found = await scrape(other)
        assert found("allowance_used_ratio", allowance="runs_per_day", tenant="default") == 0.1


async def test_runs_that_could_start_and_runs_that_could_not_are_counted_apart(idle_api: Api) -> None:
    api = idle_api
    for _ in range(3):
        await api.run("wait", wait=False)

    async def counts(startable: int, **blocked: int) -> bool:
        # A server reads these figures at most once a second.
        found = await scrape(api)
        counted = {reason: found.find("lane_blocked", lane="slow", reason=reason) for reason in blocked}
        return (found.find("lane_startable", lane="slow"), counted) == (startable, blocked)

    await eventually(lambda: counts(3, lane_cap=0, stopped=0), "three runs could start")
    await api.client.patch(f"{API}/lanes/slow", json={"max_slots": 1})
    await eventually(lambda: counts(1, lane_cap=2, stopped=0), "the cap blocks two of them")
    await api.client.patch(f"{API}/lanes/slow", json={"enabled": False})
    await eventually(lambda: counts(0, lane_cap=0, stopped=3), "the lane blocks all of them")


async def test_disabled_endpoints_are_counted(idle_api: Api) -> None:
    api = idle_api
    assert (await scrape(api))("webhook_endpoints_disabled") == 0
    hook = {"url": "https://hooks.example.com/a", "types": ["run.completed"]}
    made = (await api.post("/webhooks/endpoints", hook)).json()["endpoint"]
    disabled = await api.post(f"/webhooks/endpoints/{made['id']}/disable", {"reason": "moved"})
    assert disabled.status_code == 200, disabled.text
    assert (await scrape(api))("webhook_endpoints_disabled") == 1


async def test_a_start_that_flow_control_refuses_is_counted(idle_api: Api) -> None:
    api = idle_api
    labels = {"rule": "unique", "outcome": "rejected"}
    before = (await scrape(api)).find("flow_control_total", **labels)
    unique = {"flow_control": {"unique": {"key": "one", "on_conflict": "reject"}}}
    answers = [await api.post("/tasks/greet/run", unique) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 409]
    assert (await scrape(api))("flow_control_total", **labels) == before + 1
