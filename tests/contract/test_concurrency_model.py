"""Concurrency limits against a model: random starts, ends, pauses, retries, cancels, lost workers and limit changes.

After every step no limit admits more than its number, except for runs that were running when it was lowered. When all
that the commits freed was admitted, no run waits that could be admitted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runlane.domain.concurrency import ConcurrencyLimit, ConcurrencyStrategy, limits_of_text
from runlane.domain.run import Status
from runlane.errors import WrongState
from runlane.store.orchestration.resume import resume_run
from runlane.store.queue.claim import Claimed
from runlane.store.queue.reaping import take_over
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.queue.revival import retry_run
from runlane.store.queue.run_changes import cancel_run
from runlane.store.queue.shared_limits import set_shared_limit
from runlane.store.queue.timers import queue_due
from tests.harness import Store, completed, dead, failed_once, new_run
from tests.limits import LimitedStore, limit, shared
from tests.scale import scaled

KEYS = {"a": 1, "b": 2, "c": 3}
SHARED: tuple[str, ...] = ("gpu", "disk")
ENDS = {
    "complete": completed(),
    "fail": dead(),
    "pause": Finish(AttemptOutcome.PAUSED, Status.PAUSED),
    "retry": failed_once(),
    "hand back": Finish(AttemptOutcome.HANDED_BACK, Status.QUEUED),
}

start = st.tuples(
    st.just("start"),
    st.sampled_from(sorted(KEYS)),
    st.lists(st.sampled_from(SHARED), max_size=2, unique=True),
    st.integers(-2, 2),
    st.sampled_from([*ConcurrencyStrategy][:2]),
)
step = st.one_of(
    start,
    start,
    st.tuples(st.just("claim"), st.integers(1, 3)),
    st.tuples(st.just("end"), st.sampled_from(sorted(ENDS)), st.integers(0, 5)),
    st.tuples(st.sampled_from(["cancel", "resume", "revive"]), st.integers(0, 9)),
    st.tuples(st.sampled_from(["lose", "due", "admit", "crash"])),
    st.tuples(st.just("limit"), st.sampled_from(SHARED), st.integers(0, 3)),
)


class Machine:
    """The store with its limits, the runs that were started, and the claims that are open."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.limited = LimitedStore(store)
        self.numbers = dict.fromkeys(SHARED, 2)
        # What may be admitted: the number, or the running runs that were above it when it was lowered.
        self.most = dict.fromkeys(SHARED, 2)
        self.runs: list[str] = []
        self.claims: list[Claimed] = []
        self.worker = ""

    async def prepare(self) -> None:
        for table in ("runs", "run_inputs", "limit_slots", "limit_waits", "limit_turns", "concurrency_limits"):
            await self.store.sql(f"delete from {table}")
        self.worker = await self.store.worker()
        for name, number in self.numbers.items():
            await set_shared_limit(self.store.database, "default", name, number, actor="test")

    async def make(self, action: tuple[object, ...]) -> None:
        name, *given_values = action
        await getattr(self, f"do_{name}")(*given_values)

    async def do_start(self, key: str, names: list[str], priority: int, strategy: ConcurrencyStrategy) -> None:
        limits = (limit(key, KEYS[key], strategy), *(shared(name) for name in names))
        accepted = await self.store.add_all(new_run(limits=limits, priority=priority))
        self.runs.append(accepted[0].run_id)

    async def do_claim(self, slots: int) -> None:
        self.claims += await self.store.claim(self.worker, slots)

    async def do_end(self, how: str, position: int) -> None:
        if self.claims:
            claimed = self.claims.pop(position % len(self.claims))
            await self.store.finish(claimed, ENDS[how])

    async def do_cancel(self, position: int) -> None:
        if self.runs:
            await self._try(cancel_run(self.store.database, self.runs[position % len(self.runs)]))

    async def do_resume(self, position: int) -> None:
        if self.runs:
            await self._try(resume_run(self.store.database, self.runs[position % len(self.runs)], None))

    async def do_revive(self, position: int) -> None:
        if self.runs:
            await self._try(retry_run(self.store.database, self.runs[position % len(self.runs)]))

    async def do_lose(self) -> None:
        await self.store.database.transact(lambda session: take_over(session, [self.worker]))
        self.claims.clear()

    async def do_due(self) -> None:
        await self.store.sql("update runs set due_at = 1 where status = 'scheduled'")
        await self.store.database.transact(queue_due)

    async def do_admit(self) -> None:
        await self.limited.admit()

    async def do_crash(self) -> None:
        self.limited.freed.clear()

    async def do_limit(self, name: str, number: int) -> None:
        self.numbers[name] = number
        await set_shared_limit(self.store.database, "default", name, number, actor="test")
        running = [run for run in await self._held() if run[1] == "running"]
        self.most[name] = max(number, _used(running, name))

    async def _try(self, change: Awaitable[object]) -> None:
        with contextlib.suppress(WrongState):
            await change

    async def _held(self) -> list[tuple[str, str, tuple[ConcurrencyLimit, ...]]]:
        rows = await self.store.sql(
            "select id, status, limits from runs join run_inputs on run_inputs.run_id = runs.id "
            "where status in ('queued', 'running')"
        )
        return [(row["id"], row["status"], limits_of_text(row["limits"])) for row in rows]

    async def check_bounds(self) -> None:
        await self.limited.check()
        held = await self._held()
        for key, number in KEYS.items():
            assert sum(one.label == key for run in held for one in run[2]) <= number
        for name, number in self.numbers.items():
            used = _used(held, name)
            assert used <= self.most[name]
            self.most[name] = max(number, used)

    async def check_nothing_is_stuck(self) -> None:
        held = await self._held()
        used: dict[str, int] = {}
        for _, _, limits in held:
            for one in limits:
                used[one.key] = used.get(one.key, 0) + 1
        rows = await self.store.sql(
            "select runs.id, limits from runs join run_inputs on run_inputs.run_id = runs.id where status = 'blocked'"
        )
        for row in rows:
            most = [
                (one.key, self.numbers[one.limit] if one.limit else one.max_running or 0)
                for one in limits_of_text(row["limits"])
            ]
            assert any(used.get(key, 0) >= number for key, number in most), row


def _used(held: list[tuple[str, str, tuple[ConcurrencyLimit, ...]]], name: str) -> int:
    return sum(name in [one.limit for one in limits] for _, _, limits in held)


async def _play(store: Store, actions: list[tuple[object, ...]]) -> None:
    machine = Machine(store)
    await machine.prepare()
    for action in actions:
        await machine.make(action)
        await machine.check_bounds()
    # What the survey finds after a crash.
    rows = await store.sql("select distinct key from limit_waits")
    machine.limited.freed.update(row["key"] for row in rows)
    await machine.limited.admit()
    await machine.check_bounds()
    await machine.check_nothing_is_stuck()


async def test_the_model_holds(store: Store) -> None:
    loop = asyncio.get_running_loop()

    @settings(max_examples=scaled(60, 1000), suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(step, min_size=5, max_size=40))
    def play(actions: list[tuple[object, ...]]) -> None:
        asyncio.run_coroutine_threadsafe(_play(store, actions), loop).result()

    await asyncio.to_thread(play)
