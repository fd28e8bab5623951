"""Flow control against a model: random starts, ends, cancels, losses and times, for every rule."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from runlane.domain.flow_keys import StartOutcome
from runlane.domain.run import Accepted, Status
from runlane.domain.text import load_json
from runlane.errors import BacklogFull, StartLimited, UniqueConflict
from runlane.store.queue.accept import NewRun, Verdict
from runlane.store.queue.claim import Claimed
from runlane.store.queue.reaping import take_over
from runlane.store.queue.run_changes import cancel_run
from tests.flow_control import pass_time, run_timers, start
from tests.harness import Store, completed, dead, failed_once
from tests.scale import scaled

T = TypeVar("T")
# A unit of time is long, so that the time that the test takes does not matter.
UNIT = 10_000
KEYS = st.sampled_from(["a", "b"])
INTERVAL, BURST = 5, 2
DELAY, MAX_DELAY = 3, 7
BATCH_SIZE, MAX_WAIT = 3, 4
BACKLOG = 2
EXPIRY = 6
TABLES = (
    "flow_keys", "batch_items", "runs", "run_inputs", "run_results", "run_attempts", "run_events", "dead_letters",
    "workers",
)  # fmt: skip


@dataclass
class Pending:
    """A debounced run or a batch that starts may join."""

    run_id: str
    opened: int
    due: int
    inputs: list[int] = field(default_factory=list[int])


class Starts(RuleBasedStateMachine):
    """Starts with every rule, and what happens to their runs."""

    store: Store
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.number = 0
        self.open: set[str] = set()
        self.begun: set[str] = set()
        self.running: dict[str, Claimed] = {}
        self.unique: dict[str, str] = {}
        self.tat: dict[str, int] = {}
        self.debounced: dict[str, Pending] = {}
        self.batches: dict[str, Pending] = {}
        self.all_batches: list[Pending] = []
        self.backlog: dict[str, list[str]] = {}
        self.expires: dict[str, int] = {}
        self.throttled: dict[str, int] = {}
        self.worker = ""

    def call(self, coroutine: Awaitable[T]) -> T:
        async def run() -> T:
            return await coroutine

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(120)

    @initialize()
    def begin(self) -> None:
        for table in TABLES:
            self.call(self.store.sql(f"delete from {table}"))
        self.worker = self.call(self.store.worker())

    def accept(self, request: NewRun) -> Verdict:
        (verdict,) = self.call(self.store.accept(request))
        if isinstance(verdict, Accepted) and verdict.run_id == request.id:
            self.open.add(request.id)
        return verdict

    @rule(key=KEYS, on_conflict=st.sampled_from(["reject", "return", "skip", "replace"]))
    def start_unique(self, key: str, on_conflict: str) -> None:
        verdict = self.accept(start({"unique": {"key": "u-{{k}}", "on_conflict": on_conflict}}, {"k": key}))
        taken = self.unique.get(key)
        if taken is None or taken not in self.open:
            assert isinstance(verdict, Accepted)
            self.unique[key] = verdict.run_id
        elif on_conflict == "reject":
            assert isinstance(verdict, UniqueConflict)
            assert verdict.run_id == taken
        else:
            assert isinstance(verdict, Accepted)
            expected = {"return": StartOutcome.EXISTING, "skip": StartOutcome.SKIPPED, "replace": StartOutcome.STARTED}
            assert verdict.outcome is expected[on_conflict]
            if on_conflict == "replace":
                assert verdict.replaced_run_id == taken
                if taken not in self.running:
                    self.open.discard(taken)
                self.unique[key] = verdict.run_id

    @rule(key=KEYS)
    def start_limited(self, key: str) -> None:
        rules = {"rate_limit": {"key": "r-{{k}}", "max": 1, "per_seconds": INTERVAL * UNIT, "burst": BURST}}
        verdict = self.accept(start(rules, {"k": key}))
        tat = self.tat.get(key, 0)
        if tat - (BURST - 1) * INTERVAL > self.now:
            assert isinstance(verdict, StartLimited)
        else:
            assert isinstance(verdict, Accepted)
            self.tat[key] = max(tat, self.now) + INTERVAL

    @rule(key=KEYS)
    def start_throttled(self, key: str) -> None:
        rules = {"throttle": {"key": "t-{{k}}", "max": 1, "per_seconds": INTERVAL * UNIT, "max_backlog": 2}}
        verdict = self.accept(start(rules, {"k": key}))
        tat = self.throttled.get(key, 0)
        if tat - self.now > 2 * INTERVAL:
            assert isinstance(verdict, BacklogFull)
        else:
            assert isinstance(verdict, Accepted)
            assert (verdict.due_at_us is not None) == (tat > self.now)
            self.throttled[key] = max(tat, self.now) + INTERVAL

    @rule(key=KEYS)
    def start_debounced(self, key: str) -> None:
        rule_of = {"key": "d-{{k}}", "delay_seconds": DELAY * UNIT, "max_delay_seconds": MAX_DELAY * UNIT}
        self.number += 1
        verdict = self.accept(start({"debounce": rule_of}, {"k": key, "n": self.number}))
        assert isinstance(verdict, Accepted)
        pending = self.debounced.get(key)
        if pending is not None and pending.due > self.now and pending.run_id in self.open:
            assert verdict.run_id == pending.run_id
            pending.due = min(self.now + DELAY, pending.opened + MAX_DELAY)
        else:
            pending = self.debounced[key] = Pending(verdict.run_id, self.now, self.now + DELAY)
        pending.inputs = [self.number]

    @rule(key=KEYS)
    def start_batched(self, key: str) -> None:
        rules = {"batch": {"key": "b-{{k}}", "max_size": BATCH_SIZE, "max_wait_seconds": MAX_WAIT * UNIT}}
        self.number += 1
        verdict = self.accept(start(rules, {"k": key, "n": self.number}))
        assert isinstance(verdict, Accepted)
        pending = self.batches.get(key)
        if pending is None or pending.due <= self.now or pending.run_id not in self.open:
            pending = self.batches[key] = Pending(verdict.run_id, self.now, self.now + MAX_WAIT)
            self.all_batches.append(pending)
        assert verdict.run_id == pending.run_id
        pending.inputs.append(self.number)
        if len(pending.inputs) == BATCH_SIZE:
            pending.due = self.now

    @rule(key=KEYS)
    def start_in_backlog(self, key: str) -> None:
        verdict = self.accept(start({"max_backlog": {"key": "m-{{k}}", "max": BACKLOG}}, {"k": key}))
        waiting = self.backlog.setdefault(key, [])
        waiting[:] = [run_id for run_id in waiting if run_id in self.open and run_id not in self.begun]
        if len(waiting) >= BACKLOG:
            assert isinstance(verdict, BacklogFull)
        else:
            assert isinstance(verdict, Accepted)
            waiting.append(verdict.run_id)

    @rule()
    def start_expiring(self) -> None:
        verdict = self.accept(start({"expires_after_seconds": EXPIRY * UNIT}))
        assert isinstance(verdict, Accepted)
        self.expires[verdict.run_id] = self.now + EXPIRY

    @rule(units=st.integers(1, 4))
    def let_time_pass(self, units: int) -> None:
        self.now += units
        self.call(pass_time(self.store, units * UNIT))

    @rule()
    def run_timers(self) -> None:
        self.call(run_timers(self.store))
        for run_id, at in self.expires.items():
            if at <= self.now and run_id in self.open and run_id not in self.begun:
                self.open.remove(run_id)

    @rule(slots=st.integers(1, 4))
    def claim(self, slots: int) -> None:
        for claimed in self.call(self.store.claim(self.worker, slots)):
            assert claimed.run_id in self.open
            assert self.expires.get(claimed.run_id, self.now + 1) > self.now or claimed.run_id in self.begun
            pending = [*self.debounced.values(), *self.all_batches]
            for item in [item for item in pending if item.run_id == claimed.run_id]:
                assert item.due <= self.now
                assert numbers_of(load_json(claimed.input)) == item.inputs
            self.begun.add(claimed.run_id)
            self.running[claimed.run_id] = claimed

    @precondition(lambda self: self.running)
    @rule(data=st.data(), how=st.sampled_from(["completed", "failed", "again"]))
    def end(self, data: st.DataObject, how: str) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.running)))
        finish = {"completed": completed(), "failed": dead(), "again": failed_once()}[how]
        recorded = self.call(self.store.finish(self.running.pop(run_id), finish))
        assert recorded is not None
        if recorded.status.terminal:
            self.open.discard(run_id)

    @precondition(lambda self: self.open - self.running.keys())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.open - self.running.keys())))
        self.call(cancel_run(self.store.database, run_id))
        self.open.remove(run_id)

    @precondition(lambda self: self.running)
    @rule()
    def lose_the_worker(self) -> None:
        self.call(self.store.database.transact(lambda session: take_over(session, [self.worker])))
        self.worker = self.call(self.store.worker())
        for run_id in [*self.running]:
            if self.call(self.store.status(run_id)).terminal:
                self.open.discard(run_id)
        self.running.clear()

    @invariant()
    def one_open_run_per_unique_key(self) -> None:
        rows = self.call(
            self.store.sql("select unique_key, id from runs where unique_key is not null and ended_at is null")
        )
        held = {row["unique_key"].rpartition("u-")[2]: row["id"] for row in rows}
        assert len(held) == len(rows)
        assert held == {key: run_id for key, run_id in self.unique.items() if run_id in self.open}

    @invariant()
    def open_runs_are_those_of_the_model(self) -> None:
        expired = {run_id for run_id, at in self.expires.items() if at <= self.now and run_id not in self.begun}
        rows = self.call(self.store.sql("select id, status from runs where ended_at is null"))
        assert {row["id"] for row in rows} - expired == self.open - expired
        assert {row["id"] for row in rows if row["status"] == Status.RUNNING.value} == self.running.keys()

    @invariant()
    def every_input_is_in_one_place(self) -> None:
        rows = self.call(self.store.sql("select run_id, item from batch_items order by run_id, no"))
        for pending in self.all_batches:
            collected = [load_json(row["item"])["input"]["n"] for row in rows if row["run_id"] == pending.run_id]
            run = self.call(self.store.get(pending.run_id))
            assert collected + numbers_of(run.input or {}) == pending.inputs
        for pending in self.debounced.values():
            assert numbers_of(self.call(self.store.get(pending.run_id)).input or {}) == pending.inputs


def numbers_of(given: dict[str, Any]) -> list[int]:
    return [item["input"]["n"] for item in given["items"]] if "items" in given else [given["n"]]


async def test_every_rule_agrees_with_its_model(store: Store) -> None:
    loop = asyncio.get_running_loop()

    class Bound(Starts):
        pass

    Bound.store, Bound.loop = store, loop
    examples = settings(
        max_examples=scaled(8, 150),
        stateful_step_count=scaled(40, 80),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    await asyncio.to_thread(run_state_machine_as_test, Bound, settings=examples)
