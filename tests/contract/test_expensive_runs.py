"""The most expensive runs of a time: exact while the hours are few, and honest when they are not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from runlane.domain.usage import ExpensiveRun
from runlane.maintenance.run_series import SeriesCounter
from runlane.store.queue.expensive_runs import find_expensive_runs, read_expensive_runs
from runlane.store.sql.database import read_clock
from tests.harness import Store

_SECOND = 1_000_000
_HOUR = 3600


async def ended(store: Store, hours_ago: float, cost: float | None, *, tenant: str = "default", calls: int = 2) -> str:
    """Store a run of an agent that has ended, whose calls cost this much together."""
    run_id = await store.add(target="agent:writer")
    at = await read_clock(store.database) - int(hours_ago * _HOUR * _SECOND)
    await store.sql(
        f"update runs set status = 'completed', tenant = '{tenant}', ended_at = {at}, claimed_at = {at}, "
        f"accepted_at = {at}, attempt = 1 where id = '{run_id}'"
    )
    for number in range(calls):
        part = "null" if cost is None else str(cost / calls)
        await store.sql(
            "insert into run_calls (run_id, path, key, attempt, kind, payload, tokens_in, tokens_out, cost_usd, at) "
            f"values ('{run_id}', 'p', 'k{number}', 1, 'model', '{{}}', 10, 5, {part}, {at})"
        )
    return run_id


async def count(store: Store) -> None:
    counter = SeriesCounter(store.settings, store.database)
    while await counter.run_once():
        pass


async def most(store: Store, limit: int, **given: int) -> tuple[list[ExpensiveRun], bool]:
    now = await read_clock(store.database)
    return await find_expensive_runs(store.database, None, now - 48 * _HOUR * _SECOND, now + _SECOND, limit, **given)


async def test_the_most_expensive_runs_are_found_in_counted_and_uncounted_hours(store: Store) -> None:
    costs = [0.5, 3.0, 1.0, 2.0, 0.25, 4.0, None]
    ids = [await ended(store, 1.5 + 3 * number, cost) for number, cost in enumerate(costs)]
    await count(store)
    newest = await ended(store, 0, 2.5)
    found, complete = await most(store, 3)
    assert ([run.id for run in found], complete) == ([ids[5], ids[1], newest], True)
    assert [(run.cost_usd, run.tokens, run.target) for run in found[:1]] == [(4.0, 30, "agent:writer")]
    whole, _ = await most(store, 100)
    # A run whose price is unknown has no cost to compare.
    assert [run.cost_usd for run in whole] == [4.0, 3.0, 2.5, 2.0, 1.0, 0.5, 0.25]


async def test_an_hour_that_cannot_have_a_dearer_run_is_not_examined(store: Store) -> None:
    for number, cost in enumerate([9.0, 1.0, 1.0, 1.0]):
        await ended(store, 1.5 + 3 * number, cost)
    await count(store)
    (found,), complete = await most(store, 1, max_hours=1)
    assert (found.cost_usd, complete) == (9.0, True)
    # With more hours than are examined, the result is not complete.
    found, complete = await most(store, 4, max_hours=2)
    assert (len(found), complete) == (2, False)


async def test_runs_of_other_tenants_and_days_are_left_out(store: Store) -> None:
    own = await ended(store, 0, 1.0)
    await ended(store, 0, 5.0, tenant="acme")
    today = datetime.now(UTC).date()
    days = {"first": today - timedelta(days=1), "last": today + timedelta(days=1)}
    report = await read_expensive_runs(store.database, "default", **days, limit=10)
    assert [run.id for run in report.runs] == [own]
    old = today - timedelta(days=10)
    assert (await read_expensive_runs(store.database, None, old, old, limit=10)).runs == ()
