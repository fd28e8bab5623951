"""Concurrency limits between two open transactions, the number of statements of an accept, and other rules of a run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from runlane.bus.memory import MemoryBus
from runlane.domain.run import Status
from runlane.domain.tenant import TenantLimits
from runlane.store.access.tenants import create_tenant
from runlane.store.queue.accept import NewRun, accept
from runlane.store.queue.admitter import Admitter
from runlane.store.queue.claim_locks import LaneMemory
from runlane.store.queue.committer import Committer
from runlane.store.queue.limit_gate import accept_locks
from runlane.store.queue.scaling import read_demand
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.database import Session
from runlane.store.sql.statement import Row, Statement
from tests.faults import Fault, FaultyDatabase
from tests.harness import Store, completed, entry_of, eventually, new_run
from tests.limits import LimitedStore, limit, shared


@pytest.fixture
def limited(store: Store) -> LimitedStore:
    return LimitedStore(store)


# SQLite has one write transaction at a time.
@pytest.mark.parametrize("settings", ["postgres"], indirect=True)
async def test_an_accept_that_counted_before_an_end_is_admitted_after_it(limited: LimitedStore) -> None:
    """The end commits while the accept is open, so the accept stores a waiting run that the end cannot see."""
    await limited.add(limit("a", 1))
    claimed = await limited.store.claim_one()
    late = new_run(limits=(limit("a", 1),))
    counted, go_on = asyncio.Event(), asyncio.Event()

    async def slow_accept(session: Session) -> None:
        await session.lock(exclusive=accept_locks([late]))
        await accept(session, [late], holds_limits=True)
        counted.set()
        await go_on.wait()

    accepting = asyncio.create_task(limited.store.database.transact(slow_accept))
    await counted.wait()
    await limited.store.finish(claimed)
    admitting = asyncio.create_task(limited.admit())
    # The pass waits for the lock of the accept.
    await eventually(lambda: _waits_for_lock(limited.store))
    assert not admitting.done()
    go_on.set()
    await accepting
    await admitting
    assert await limited.store.status(late.id) is Status.QUEUED
    await limited.check()


async def _waits_for_lock(store: Store) -> bool:
    rows = await store.sql("select count(*) as n from pg_locks where locktype = 'advisory' and not granted")
    return rows[0]["n"] > 0


async def test_two_accepts_of_one_key_at_once_admit_one(limited: LimitedStore) -> None:
    runs = [new_run(limits=(limit("a", 1),)) for _ in range(2)]
    accepted = await asyncio.gather(*(limited.store.add_all(run) for run in runs))
    assert sorted(item.status for (item,) in accepted) == [Status.BLOCKED, Status.QUEUED]


# SQLite has one write transaction at a time.
@pytest.mark.parametrize("settings", ["postgres"], indirect=True)
@pytest.mark.parametrize("case", ["alike", "alike, after another commit", "not alike"])
async def test_a_committer_counts_what_the_holder_of_the_key_commits(limited: LimitedStore, case: str) -> None:
    """The accept of another process takes the last slot, and commits after the accept of the committer has begun."""
    first, second = (new_run(limits=(limit("a", 1),)) for _ in range(2))
    others = [new_run(limits=(limit("b", 1),), priority=1)] if case == "not alike" else []
    taken, go_on = asyncio.Event(), asyncio.Event()

    async def slow_accept(session: Session) -> None:
        await session.lock(exclusive=accept_locks([first]))
        await accept(session, [first], holds_limits=True)
        taken.set()
        await go_on.wait()

    accepting = asyncio.create_task(limited.store.database.transact(slow_accept))
    await taken.wait()
    if case == "alike, after another commit":
        # The next transaction has the first number that is not seen, although a lower one is in progress.
        await limited.store.add()
    committer = Committer(limited.store.database, lambda lanes: None)
    await committer.start()
    late = asyncio.create_task(committer.accept([second, *others], 30))
    await eventually(lambda: _waits_for_lock(limited.store))
    go_on.set()
    await accepting
    verdict, *_ = await late
    await committer.stop()
    assert not isinstance(verdict, Exception)
    assert verdict.status is Status.BLOCKED
    await limited.check()


async def test_a_batch_fills_each_key_and_lets_the_rest_wait_in_order(limited: LimitedStore) -> None:
    """With runs that take no slot, a key that is full, a key for which runs wait, and runs without limits."""
    await limited.add(limit("full", 1))
    await limited.add(limit("waited", 1))
    await limited.add(limit("waited", 1))
    wanted = [
        *(new_run(limits=(limit("a", 2),)) for _ in range(3)),
        new_run(limits=(limit("b", 1),), delay_us=600_000_000),
        new_run(limits=(limit("b", 1),)),
        new_run(limits=(limit("full", 1),)),
        # Above the number of the first runs: it has room, and waits behind them.
        new_run(limits=(limit("waited", 9),)),
        new_run(),
    ]
    limited.freed.clear()
    committer = Committer(limited.store.database, lambda lanes: None)
    await committer.start()
    verdicts = await committer.accept(wanted, 30)
    await committer.stop()
    assert limited.freed == {limit("waited", 9).key}
    assert [verdict.status.value for verdict in verdicts if not isinstance(verdict, Exception)] == [
        *("queued", "queued", "blocked"), "scheduled", "queued", "blocked", "blocked", "queued",
    ]  # fmt: skip
    slots = await limited.store.sql("select run_id from limit_slots")
    assert {row["run_id"] for row in slots} >= {wanted[0].id, wanted[1].id, wanted[4].id}
    assert not {row["run_id"] for row in slots} & {wanted[n].id for n in (2, 3, 5, 6, 7)}
    waits = await limited.store.sql("select run_id from limit_waits order by place")
    assert [row["run_id"] for row in waits][1:] == [wanted[2].id, wanted[5].id, wanted[6].id]
    await limited.check()


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LOST_COMMIT])
async def test_a_commit_in_doubt_of_runs_with_limits_has_one_result(limited: LimitedStore, fault: Fault) -> None:
    runs = [new_run(limits=(limit("a", 1),)) for _ in range(2)]
    committer = Committer(FaultyDatabase(limited.store.database, [fault]), lambda lanes: None)
    await committer.start()
    verdicts = await committer.accept(runs, 30)
    await committer.stop()
    assert [(item.run_id, item.status) for item in verdicts if not isinstance(item, Exception)] == [
        (runs[0].id, Status.QUEUED), (runs[1].id, Status.BLOCKED),
    ]  # fmt: skip
    assert await limited.store.count("runs") == 2
    await limited.check()


class Counting:
    """A session that counts its statements."""

    def __init__(self, session: Session, names: Counter[str]) -> None:
        self._session = session
        self._names = names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def fetch(self, statement: Statement, members: Any = None, /, **params: Any) -> Sequence[Row]:
        if members is None or members:
            self._names[statement.name] += 1
        return await self._session.fetch(statement, members, **params)

    async def write(self, compound: CompoundWrite, members: Any = None, /, **params: Any) -> Sequence[Row]:
        self._names[compound.name] += 1
        return await self._session.write(compound, members, **params)


@pytest.mark.parametrize("size", [2, 200])
@pytest.mark.parametrize("alike", [True, False])
async def test_a_batch_costs_a_constant_number_of_statements(
    limited: LimitedStore, size: int, alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = _count_statements(limited, monkeypatch)
    wanted = [new_run(limits=(limit(str(n), 1),), priority=0 if alike else n % 2) for n in range(size)]
    assert set(await _statuses(limited, wanted)) == {Status.QUEUED}
    if limited.store.database.dialect == "sqlite":
        assert names == Counter(["read_limit_room", "accept_limited"])
    else:
        assert names == Counter(["accept_alike_limited" if alike else "accept_counted"])


def _count_statements(limited: LimitedStore, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    names: Counter[str] = Counter()
    database = limited.store.database
    transact, execute = database.transact, database.execute_single

    async def counting(work: Any) -> Any:
        return await transact(lambda session: work(Counting(session, names)))

    async def noted(compound: CompoundWrite, members: Any, **params: Any) -> Any:
        names[compound.name] += 1
        return await execute(compound, members, **params)

    monkeypatch.setattr(database, "transact", counting)
    monkeypatch.setattr(database, "execute_single", noted)
    return names


async def _statuses(limited: LimitedStore, wanted: Sequence[NewRun]) -> list[Status]:
    committer = Committer(limited.store.database, lambda lanes: None)
    await committer.start()
    verdicts = await committer.accept(wanted, 30)
    await committer.stop()
    return [verdict.status for verdict in verdicts if not isinstance(verdict, Exception)]


async def test_runs_that_are_alike_take_the_last_slots_and_no_more(
    limited: LimitedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limited.add(limit("a", 3))
    names = _count_statements(limited, monkeypatch)
    assert await _statuses(limited, [new_run(limits=(limit("a", 3),)) for _ in range(2)]) == [Status.QUEUED] * 2
    if limited.store.database.dialect == "postgresql":
        assert names == Counter(["accept_alike_limited"])
    assert await _statuses(limited, [new_run(limits=(limit("a", 3),))]) == [Status.BLOCKED]
    # It has room, and waits behind the first one.
    assert await _statuses(limited, [new_run(limits=(limit("a", 9),))]) == [Status.BLOCKED]
    two = [new_run(limits=(limit("b", 1),)) for _ in range(2)]
    assert await _statuses(limited, two) == [Status.QUEUED, Status.BLOCKED]
    await limited.check()


async def test_each_key_of_runs_that_are_alike_has_its_own_room(
    limited: LimitedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least room of the batch is that of `a`, which has one more run in it than `b`."""
    await limited.add(limit("b", 3))
    await limited.add(limit("b", 3))
    names = _count_statements(limited, monkeypatch)
    wanted = [new_run(limits=(limit(key, 3),)) for key in ("a", "b", "a")]
    assert await _statuses(limited, wanted) == [Status.QUEUED] * 3
    if limited.store.database.dialect == "postgresql":
        assert names == Counter(["accept_alike_limited"])
    assert await limited.slots() == {"a": 2, "b": 3}
    wanted = [new_run(limits=(limit(key, 3),)) for key in ("c", "b", "c")]
    assert await _statuses(limited, wanted) == [Status.QUEUED, Status.BLOCKED, Status.QUEUED]
    wanted = [new_run(limits=(limit(key, 3),)) for key in ("d", "a", "a")]
    assert await _statuses(limited, wanted) == [Status.QUEUED, Status.QUEUED, Status.BLOCKED]
    await limited.check()


async def test_runs_that_are_alike_and_not_ready_take_no_slot(limited: LimitedStore) -> None:
    for fields, status in (({"delay_us": 600_000_000}, Status.SCHEDULED), ({"hold": True}, Status.AWAITING_APPROVAL)):
        wanted = [new_run(limits=(limit("a", 1),), **fields) for _ in range(2)]
        assert await _statuses(limited, wanted) == [status] * 2
    assert await limited.slots() == {}
    await limited.check()


async def test_a_run_without_limits_has_the_single_statement(
    limited: LimitedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    single: list[str] = []
    database = limited.store.database
    execute = database.execute_single

    async def noted(compound: CompoundWrite, members: Any, **params: Any) -> Any:
        single.append(compound.name)
        return await execute(compound, members, **params)

    monkeypatch.setattr(database, "execute_single", noted)
    committer = Committer(database, lambda lanes: None)
    await committer.start()
    await committer.accept([new_run()], 30)
    await committer.stop()
    assert single == ["accept_alone"]
    assert await limited.store.count("limit_slots") == 0


async def test_the_committer_and_the_admitter_drain_a_key_one_at_a_time(store: Store) -> None:
    rung: list[str] = []
    bus = MemoryBus()
    committer = Committer(store.database, bus.ring, bus.publish)
    admitter = Admitter(store.database, rung.extend, bus.publish, bus.signal_cancel)
    await committer.start()
    admitter.start()
    runs = [new_run(limits=(limit("a", 1),)) for _ in range(5)]
    await committer.accept(runs, 30)
    worker, memory = await store.worker(), LaneMemory()
    for _ in runs:
        (claimed,) = await eventually(lambda: store.claim(worker, 5, memory=memory))
        await committer.record(entry_of(claimed, completed()), asyncio.get_running_loop().time() + 30)
    await committer.stop()
    await admitter.stop()
    assert [await store.status(run.id) for run in runs] == [Status.COMPLETED] * 5
    assert rung == ["default"] * 4


async def test_waiting_runs_are_not_demand(limited: LimitedStore) -> None:
    for _ in range(5):
        await limited.add(limit("a", 2))
    demand = await read_demand(limited.store.database)
    assert sum(lane.startable for lane in demand.lanes) == 2


async def test_limits_of_a_tenant_and_of_a_key_both_hold(limited: LimitedStore) -> None:
    await create_tenant(limited.store.database, "acme", limits=TenantLimits(max_running=1), actor="test")
    ids = [await limited.add(limit("a", 2), tenant="acme") for _ in range(3)]
    assert [await limited.store.status(run_id) for run_id in ids] == [Status.QUEUED, Status.QUEUED, Status.BLOCKED]
    claims = await limited.store.claim(await limited.store.worker())
    assert len(claims) == 1
    await limited.store.finish(claims[0])
    await limited.admit()
    assert await limited.slots() == {"a": 2}
    await limited.check()


async def test_an_admitted_run_gets_a_start_tag_where_tenants_share_lanes(limited: LimitedStore) -> None:
    for name in ("one", "two"):
        await create_tenant(limited.store.database, name, actor="test")
    ids = [await limited.add(limit("a", 1), tenant="one") for _ in range(2)]
    other = await limited.add(limit("b", 1), tenant="two")
    await limited.store.finish(await limited.store.claim_one())
    await limited.admit()
    rows = await limited.store.sql("select id, start_tag, rank from runs")
    tags = {row["id"]: row["start_tag"] for row in rows}
    assert tags[ids[1]] is not None
    order = [(await limited.store.claim_one()).run_id for _ in range(2)]
    assert order == [other, ids[1]]


async def test_a_run_with_a_fairness_key_takes_turns_under_a_shared_limit(limited: LimitedStore) -> None:
    await limited.set_shared("gpu", 1)
    many = [await limited.add(shared("gpu"), fairness_key="a") for _ in range(5)]
    few = await limited.add(shared("gpu"), fairness_key="b")
    order: list[str] = []
    for _ in range(3):
        claimed = await limited.store.claim_one()
        order.append(claimed.run_id)
        await limited.store.finish(claimed)
        await limited.admit()
    assert order[0] == many[0]
    assert few in order
