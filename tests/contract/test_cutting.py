"""Events may be deleted before their run: all but the last, in small batches, and never those of an open run."""

from __future__ import annotations

import random
from typing import Any

import pytest

from runlane.domain.run import Status
from runlane.maintenance.retention import Retention
from runlane.settings import Settings
from runlane.store.queue import retention
from runlane.store.queue.retention import EVENTS_AT_ONCE
from runlane.store.queue.revival import retry_run
from tests.contract.test_timers_retention import age, into_state
from tests.harness import Store, dead, entry_of, settings_for

# Runs that are made here ended at the beginning of all time, and are to stay.
EVER_DAYS = 1e6


def retention_of(store: Store, days: float | None = 1.0, runs_days: float = EVER_DAYS) -> Retention:
    url = store.settings.database_url
    assert url is not None
    settings: Settings = settings_for(
        url.get_secret_value(),
        retention_days=runs_days,
        events_retention_days=days,
        pgbouncer=store.settings.pgbouncer,
    )
    return Retention(settings, store.database)


async def finished(store: Store, lines: int = 3, **fields: Any) -> str:
    """A run that wrote some lines and ended."""
    run_id = await store.add(**fields)
    claimed = await store.claim_one()
    await store.record(entry_of(claimed, events=[("log", f'{{"message":"{n}"}}') for n in range(lines)]))
    await store.finish(claimed)
    return run_id


async def old_runs(store: Store, count: int, events: int = 3) -> None:
    """Add runs that ended long ago, one after another, each with this number of events."""
    have = await store.count("runs")
    columns = "id, target, lane, status, rank, priority, max_attempts, max_losses, last_seq, accepted_at, ended_at"
    numbers = f"with recursive n(i) as (select {have + 1} union all select i + 1 from n where i < {have + count})"
    await store.sql(
        f"insert into runs ({columns}) {numbers} "
        f"select 'run_' || i, 'job', 'default', 'completed', i, 0, 3, 10, {events}, i, i from n"
    )
    for seq in range(1, events + 1):
        await store.sql(
            "insert into run_events (run_id, seq, attempt, type, at, data) "
            f"select id, {seq}, 1, 'log', 0, '{{}}' from runs where last_seq = {events} and ended_at > {have}"
        )


async def positions(store: Store) -> dict[str, tuple[int, int, int]]:
    """Of each run: the first number by its row, the first that is stored, and how many are."""
    rows = await store.sql(
        "select runs.id, first_seq, min(seq) as oldest, count(seq) as kept from runs "
        "join run_events on run_events.run_id = runs.id group by runs.id, first_seq"
    )
    return {row["id"]: (row["first_seq"], row["oldest"], row["kept"]) for row in rows}


async def test_events_of_an_old_run_go_and_its_end_stays(store: Store) -> None:
    old, young, live = await finished(store), await finished(store), await store.add()
    await age(store, old, 2)
    before = await store.get(old)
    assert not await retention_of(store).run_once()
    run = await store.get(old)
    assert [(event.seq, event.type) for event in await store.events(old)] == [(before.last_seq, "done")]
    assert (run.first_seq, run.last_seq, run.result) == (before.last_seq, before.last_seq, before.result)
    assert (await store.get(young)).first_seq == 1
    assert len(await store.check_stream(young)) == before.last_seq
    assert await store.event_types(live) == ["queued"]


async def test_without_the_setting_events_stay_as_long_as_their_run(store: Store) -> None:
    run_id = await finished(store)
    await age(store, run_id, 29)
    assert not await retention_of(store, None).run_once()
    assert len(await store.check_stream(run_id)) == (await store.get(run_id)).last_seq


async def test_long_streams_are_cut_piece_by_piece(store: Store) -> None:
    """After every transaction the row matches the stored events, and no transaction deletes far more than its bound."""
    await old_runs(store, 40, events=4)
    long_one = await finished(store, lines=2 * EVENTS_AT_ONCE)
    await age(store, long_one, 2)
    cutting = retention_of(store)
    have = await store.count("run_events")
    more, rounds = True, 0
    while more:
        more = await cutting.run_once()
        rounds += 1
        left = await store.count("run_events")
        assert have - left <= EVENTS_AT_ONCE + 1000
        have = left
        for first, oldest, _ in (await positions(store)).values():
            assert first == oldest
    assert rounds >= 3
    found = await positions(store)
    assert (len(found), {kept for _, _, kept in found.values()}) == (41, {1})
    assert await store.event_types(long_one) == ["done"]


async def test_a_long_stream_that_is_cut_in_one_piece_keeps_its_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_LONG", 2)
    run_id = await finished(store, lines=5)
    await age(store, run_id, 2)
    assert not await retention_of(store).run_once()
    assert await store.event_types(run_id) == ["done"]


async def test_the_next_cut_continues_where_the_last_one_stopped(store: Store) -> None:
    await old_runs(store, 2_300)
    for _ in range(2):
        assert await retention_of(store).run_once(), "another process each time"
    while await retention_of(store).run_once():
        pass
    assert await store.count("run_events") == await store.count("runs") == 2_300
    await old_runs(store, 1_200)
    while await retention_of(store).run_once():
        pass
    assert await store.count("run_events") == await store.count("runs") == 3_500
    before = await store.contents()
    assert not await retention_of(store).run_once()
    assert await store.contents() == before


async def test_a_run_that_is_retried_after_the_cut_continues_and_is_cut_again(store: Store) -> None:
    run_id = await store.add()
    await store.finish(await store.claim_one(), dead())
    await age(store, run_id, 2)
    await retention_of(store).run_once()
    cut_at = (await store.get(run_id)).first_seq
    await retry_run(store.database, run_id)
    claimed = await store.claim_one()
    await store.record(entry_of(claimed, events=[("log", "{}")]))
    assert not await retention_of(store, 1e-9).run_once(), "it is live again"
    assert [event.seq for event in await store.events(run_id)] == list(range(cut_at, cut_at + 4))
    await store.finish(claimed)
    await age(store, run_id, 2)
    await retention_of(store).run_once()
    run = await store.get(run_id)
    assert run.first_seq == run.last_seq == cut_at + 4
    assert await store.event_types(run_id) == ["done"]


async def test_the_run_itself_still_goes_at_its_time(store: Store) -> None:
    run_id = await finished(store)
    await age(store, run_id, 2)
    await retention_of(store, 1.0, 30.0).run_once()
    assert (await store.count("runs"), await store.count("run_events")) == (1, 1)
    await age(store, run_id, 30)
    await retention_of(store, 1.0, 30.0).run_once()
    assert await store.count("runs") == await store.count("run_events") == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_no_event_of_a_live_run_is_ever_cut(store: Store, seed: int) -> None:
    choice = random.Random(seed)
    worker = await store.worker()
    ids = [await into_state(store, worker, choice) for _ in range(60)]
    for run_id in ids:
        await age(store, run_id, choice.choice([0, 0.5, 1.5, 20]))
    rows = await store.sql("select id, status, ended_at, first_seq, last_seq from runs")
    (now,) = await store.sql("select max(heartbeat_at) as at from workers")
    day_us = 86_400_000_000
    must_go = {row["id"] for row in rows if row["ended_at"] is not None and now["at"] - row["ended_at"] > 1.1 * day_us}
    assert must_go
    assert {row["id"] for row in rows if not Status(row["status"]).terminal}
    cutting = retention_of(store)
    while await cutting.run_once():
        pass
    last = {row["id"]: row["last_seq"] for row in rows}
    found = await positions(store)
    for run_id in ids:
        expected = (last[run_id], last[run_id], 1) if run_id in must_go else (1, 1, last[run_id])
        assert found[run_id] == expected
