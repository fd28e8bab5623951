"""Due runs become ready, old finished ones go away, and a live run is never touched by either."""

from __future__ import annotations

import random
from typing import Any

import pytest

from runlane.bus.memory import MemoryBus
from runlane.domain.dead_letter import OPEN_KEPT_DAYS
from runlane.domain.run import Status
from runlane.maintenance.retention import Retention
from runlane.maintenance.timers import Timers
from runlane.settings import Settings
from runlane.store.access.audit import list_audit
from runlane.store.access.tenants import create_tenant
from runlane.store.events.sending import IDS_DELETED_AT_ONCE
from runlane.store.failures.handling import discard
from runlane.store.failures.letters import read_letter
from runlane.store.queue.operation_gauges import oldest_ended_seconds
from runlane.store.queue.retention import LETTERS_AT_ONCE
from runlane.store.queue.revival import retry_run
from runlane.store.queue.run_changes import cancel_run
from runlane.store.schedules.due import DELETED_AT_ONCE
from tests.harness import Store, dead, entry_of, failed_once, new_run, settings_for

DAY_US = 86_400_000_000
CHILDREN = ("run_inputs", "run_results", "run_attempts", "run_steps", "run_events")


async def test_a_due_run_is_queued_and_the_others_wait(store: Store) -> None:
    due, later = await store.add(delay_us=1), await store.add(delay_us=600_000_000)
    bus = MemoryBus()
    listener = bus.listen(frozenset({"default"}))
    assert not await Timers(store.database, bus).run_once()
    assert (await store.status(due), await store.status(later)) == (Status.QUEUED, Status.SCHEDULED)
    assert await listener.wait({"default"}, 0.001), "workers are called at once"


async def test_a_due_run_waits_for_its_approval(store: Store) -> None:
    held = await store.add(delay_us=1, hold=True)
    await Timers(store.database, MemoryBus()).run_once()
    assert await store.status(held) is Status.AWAITING_APPROVAL


async def test_a_failed_run_comes_back_when_its_wait_is_over(store: Store) -> None:
    run_id = await store.add()
    await store.finish(await store.claim_one(), failed_once(delay_us=1))
    assert await store.status(run_id) is Status.SCHEDULED
    await Timers(store.database, MemoryBus()).run_once()
    claimed = await store.claim_one()
    assert (claimed.run_id, claimed.attempt, claimed.failures) == (run_id, 2, 1)


async def test_two_and_a_half_thousand_due_at_once(store: Store) -> None:
    await store.add_all(*(new_run(delay_us=1) for _ in range(2_500)))
    timers = Timers(store.database, MemoryBus())
    assert [await timers.run_once() for _ in range(4)] == [True, True, False, False]
    assert (await store.sql("select count(*) as n from runs where status = 'queued'"))[0]["n"] == 2_500


def retention_of(store: Store, days: float = 1.0) -> Retention:
    url = store.settings.database_url
    assert url is not None
    settings: Settings = settings_for(url.get_secret_value(), retention_days=days, pgbouncer=store.settings.pgbouncer)
    return Retention(settings, store.database)


async def age(store: Store, run_id: str, days: float) -> None:
    """Make everything about the run as old as that."""
    us = int(days * DAY_US)
    await store.sql("update runs set accepted_at = accepted_at - :us, ended_at = ended_at - :us where id = :id",
                    us=us, id=run_id)  # fmt: skip
    await store.sql("update dead_letters set died_at = died_at - :us where run_id = :id", us=us, id=run_id)


async def test_an_old_run_goes_with_everything_that_belongs_to_it(store: Store) -> None:
    gone = await store.add(idempotency_key="k", fingerprint="f")
    claimed = await store.claim_one()
    await store.record(entry_of(claimed, events=[("checkpoint", "{}")], checkpoint="1"))
    await store.finish(claimed)
    kept = await store.add()
    await age(store, gone, 1.1)
    assert not await retention_of(store).run_once()
    assert await store.count("runs") == 1
    for table in CHILDREN:
        assert await store.sql(f"select run_id from {table} where run_id = :id", id=gone) == []
    assert await store.count("idempotency_keys") == 0
    assert await store.status(kept) is Status.QUEUED
    assert not (await store.add_all(new_run(idempotency_key="k", fingerprint="other")))[0].replayed


async def test_the_oldest_ended_run_is_one_that_may_be_deleted(store: Store) -> None:
    assert await oldest_ended_seconds(store.database) is None
    run_id, holder = await store.add(), await store.add(ordering_key="k", on_dead="block")
    for finish in (None, dead()):
        await store.finish(await store.claim_one(), finish)
    await age(store, run_id, 2)
    await age(store, holder, 3)
    oldest = await oldest_ended_seconds(store.database)
    assert oldest is not None
    assert oldest // 86_400 == 2


async def test_a_handled_dead_letter_outlives_its_run(store: Store) -> None:
    run_id = await store.add()
    await store.finish(await store.claim_one(), dead())
    await discard(store.database, run_id)
    await age(store, run_id, 2)
    await retention_of(store).run_once()
    assert await store.count("runs") == 0
    assert await read_letter(store.database, run_id) is not None
    await age(store, run_id, 1.5)
    await retention_of(store).run_once()
    assert await read_letter(store.database, run_id) is None


async def test_an_open_dead_letter_is_kept_for_half_a_year(store: Store) -> None:
    run_id = await store.add()
    await store.finish(await store.claim_one(), dead())
    await age(store, run_id, OPEN_KEPT_DAYS - 1)
    await retention_of(store).run_once()
    assert await read_letter(store.database, run_id) is not None
    await age(store, run_id, 2)
    await retention_of(store).run_once()
    assert await read_letter(store.database, run_id) is None


async def test_a_dead_run_that_blocks_its_key_is_kept(store: Store) -> None:
    run_id = await store.add(ordering_key="k", on_dead="block")
    await store.finish(await store.claim_one(), dead())
    await age(store, run_id, 100)
    await retention_of(store).run_once()
    assert await store.status(run_id) is Status.FAILED


async def test_more_than_one_round_takes(store: Store) -> None:
    await store.add_all(*(new_run() for _ in range(700)))
    await store.sql("update runs set status = 'completed', ended_at = 1")
    retention = retention_of(store)
    assert [await retention.run_once() for _ in range(3)] == [True, False, False]
    assert await store.count("runs") == await store.count("run_events") == 0


async def test_workers_that_ended_a_day_ago_are_forgotten(store: Store) -> None:
    workers = {state: await store.worker() for state in ("online", "draining", "lost", "offline", "lost lately")}
    for state, worker in workers.items():
        ended = None if state in ("online", "draining") else 1
        await store.sql("update workers set status = :s, ended_at = :e, started_at = 1 where id = :id",
                        s=state.split()[0], e=ended, id=worker)  # fmt: skip
    await store.sql("update workers set ended_at = heartbeat_at where id = :id", id=workers["lost lately"])
    await retention_of(store).run_once()
    left = {row["id"] for row in await store.sql("select id from workers")}
    assert left == {workers["online"], workers["draining"], workers["lost lately"]}


async def test_old_entries_of_the_audit_log_go_a_few_at_a_time(store: Store) -> None:
    for name in ("old", "new"):
        await create_tenant(store.database, name, actor="test")
    await store.sql(
        "update audit set at = at - :us where subject = 'old'", us=int(store.settings.audit_retention_days + 1) * DAY_US
    )
    (entry,) = await list_audit(store.database, subject="old")
    for number in range(600):
        await store.sql(
            "insert into audit (id, at, actor, tenant, action, subject) values (:id, 1, 'a', 't', 'x', 'bulk')",
            # No digit of an id is a "g", so that none of them is the one of another entry.
            id=f"{entry.id[:-4]}g{number:03d}",
        )
    retention = retention_of(store)
    assert [await retention.run_once() for _ in range(3)] == [True, False, False]
    assert [entry.subject for entry in await list_audit(store.database)] == ["new"]


async def into_state(store: Store, worker: str, choice: random.Random) -> str:
    """A run brought into a random state by the operations that exist."""
    key = choice.choice([None, None, "a", "b"])
    fields: dict[str, Any] = {
        "ordering_key": key,
        "on_dead": choice.choice(["skip", "block"]),
        "hold": choice.random() < 0.15,
        "delay_us": 600_000_000 if choice.random() < 0.15 else 0,
    }
    run_id = await store.add(**fields)
    match choice.randrange(6):
        case 0:
            await cancel_run(store.database, run_id)
        case 1 | 2 | 3 | 4:
            for claimed in await store.claim(worker, 1):
                match choice.randrange(4):
                    case 0:
                        await store.finish(claimed)
                    case 1:
                        await store.finish(claimed, dead())
                        if choice.random() < 0.3:
                            await retry_run(store.database, claimed.run_id)
                    case 2:
                        await store.finish(claimed, failed_once())
                    case _:
                        pass
        case _:
            pass
    return run_id


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_no_live_run_is_ever_deleted(store: Store, seed: int) -> None:
    choice = random.Random(seed)
    worker = await store.worker()
    ids = [await into_state(store, worker, choice) for _ in range(60)]
    for run_id in ids:
        await age(store, run_id, choice.choice([0, 0.5, 1.5, 50]))
    rows = await store.sql("select id, status, ended_at, accepted_at, holds_key from runs")
    (now,) = await store.sql("select max(heartbeat_at) as at from workers")
    must_stay = {
        row["id"]
        for row in rows
        if not Status(row["status"]).terminal or row["holds_key"] or now["at"] - row["ended_at"] < 0.9 * DAY_US
    }
    must_go = {row["id"] for row in rows} - must_stay
    assert must_go
    assert must_stay
    await retention_of(store).run_once()
    left = {row["id"] for row in await store.sql("select id from runs")}
    assert left == must_stay
    for table in ("run_inputs", "run_events"):
        assert {row["run_id"] for row in await store.sql(f"select run_id from {table}")} == must_stay


async def test_bulk_jobs_and_firings_are_deleted_as_fast_as_they_become_old(store: Store) -> None:
    """One job and a thousand firings in each minute would be less than a busy installation has."""
    count = 2 * DELETED_AT_ONCE + 1
    numbers = f"with recursive n(i) as (select 1 union all select i + 1 from n where i < {count})"
    for number in range(3):
        await store.sql(
            "insert into bulk_jobs (id, action, options, selection, state, total, created_by, created_at, ended_at, "
            "next_at, lease_until, fence) values (:id, 'cancel', '{}', '{}', 'completed', 0, 'test', 1, 1, 1, 0, 0)",
            id=f"blk_{number}",
        )
    await store.sql(
        "insert into schedule_firings (schedule_uid, slot, due_at, decided_at, kind, outcome) "
        f"{numbers} select 'sched', i, i, 1, 'tick', 'skipped_overlap' from n"
    )
    retention = retention_of(store)
    while await retention.run_once():
        pass
    assert await store.count("bulk_jobs") == 0
    # The newest firing of a schedule stays.
    assert await store.count("schedule_firings") == 1


async def test_what_becomes_old_at_once_is_deleted_in_parts(store: Store) -> None:
    """After a stop of days, or with a shorter retention. One statement for all would reach its timeout each time."""
    letters, ids = LETTERS_AT_ONCE + 1, IDS_DELETED_AT_ONCE + 1
    numbers = "with recursive n(i) as (select 1 union all select i + 1 from n where i < :count)"
    await store.sql(
        "insert into dead_letters (run_id, tenant, target, lane, input, error, attempts, code, message, fingerprint, "
        "fingerprint_version, times_died, first_failed_at, died_at, state) "
        f"{numbers} select 'run_' || i, 'default', 'job', 'default', '{{}}', '{{}}', '[]', 'x', 'x', 'x', 1, 1, 1, 1, "
        "'resolved' from n",
        count=letters,
    )
    await store.sql(
        "insert into event_ids (tenant, sent_id, event_id, received_at) "
        f"{numbers} select 'default', 'id-' || i, 'evt', 1 from n",
        count=ids,
    )
    retention = retention_of(store)
    assert await retention.run_once()
    assert (await store.count("dead_letters"), await store.count("event_ids")) == (1, 1)
    while await retention.run_once():
        pass
    assert (await store.count("dead_letters"), await store.count("event_ids")) == (0, 0)
