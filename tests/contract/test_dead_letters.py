"""Dead letters: every transition happens with the run's own change, and the counts are exact."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
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

from runlane.domain.dead_letter import LetterState, RetryKind
from runlane.domain.run import Status
from runlane.domain.text import dump_json
from runlane.errors import RunlaneError, WrongState
from runlane.failures.letter_retry import retry_letter
from runlane.failures.options import LetterRetry
from runlane.store.access.audit import list_audit
from runlane.store.failures.handling import acknowledge, assign, discard
from runlane.store.failures.letter_groups import group_letters
from runlane.store.failures.letters import (
    LetterFilter,
    count_open_by_target,
    count_open_letters,
    list_letters,
    read_letter,
)
from runlane.store.queue.claim import Claimed
from runlane.store.queue.revival import retry_run
from runlane.store.queue.run_changes import cancel_run
from tests.harness import Store, completed, dead, entry_of, new_run

T = TypeVar("T")
EVERY_STATE = tuple(LetterState)


async def dead_run(store: Store, message: str = "no", **fields: Any) -> str:
    run_id = await store.add(**fields)
    await store.finish(await store.claim_one(), dead(message))
    return run_id


async def letter_of(store: Store, run_id: str) -> Any:
    letter = await read_letter(store.database, run_id)
    assert letter is not None
    return letter


@dataclass
class Expected:
    """The model of a letter."""

    state: LetterState
    times_died: int = 1
    retry_run_id: str | None = None
    assigned_to: str | None = None


class Letters(RuleBasedStateMachine):
    """Runs fail, are retried in every way, handled and cancelled, in any order."""

    store: Store
    loop: asyncio.AbstractEventLoop
    worker: str

    def __init__(self) -> None:
        super().__init__()
        self.letters: dict[str, Expected] = {}
        # What each run repeats, by its id.
        self.repeats: dict[str, str] = {}
        self.failed: list[str] = []
        self.ready: list[str] = []
        self.running: dict[str, Claimed] = {}

    def call(self, coroutine: Awaitable[T]) -> T:
        async def run() -> T:
            return await coroutine

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(60)

    @initialize()
    def begin(self) -> None:
        for table in ("dead_letters", "runs", "run_inputs", "run_results", "run_attempts", "run_events", "audit"):
            self.call(self.store.sql(f"delete from {table}"))

    @rule()
    def start(self) -> None:
        self.ready.append(self.call(self.store.add()))

    @precondition(lambda self: self.ready)
    @rule()
    def claim(self) -> None:
        for claimed in self.call(self.store.claim(self.worker, 1)):
            self.ready.remove(claimed.run_id)
            self.running[claimed.run_id] = claimed

    @precondition(lambda self: self.running)
    @rule(data=st.data(), ends=st.sampled_from([Status.COMPLETED, Status.FAILED, Status.CANCELLED]))
    def end(self, data: st.DataObject, ends: Status) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.running)))
        claimed = self.running.pop(run_id)
        if ends is Status.CANCELLED:
            self.call(cancel_run(self.store.database, run_id))
        self.call(self.store.finish(claimed, dead() if ends is Status.FAILED else completed()))
        if ends is Status.CANCELLED:
            # Its code had completed before it noticed the cancellation.
            ends = Status.COMPLETED
        self.ended(run_id, ends)

    @precondition(lambda self: self.ready)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.ready)))
        self.call(cancel_run(self.store.database, run_id))
        self.ready.remove(run_id)
        self.ended(run_id, Status.CANCELLED)

    def ended(self, run_id: str, status: Status) -> None:
        original = self.letters.get(self.repeats.get(run_id, ""))
        follows = original is not None and original.retry_run_id == run_id
        own = self.letters.get(run_id)
        if status is Status.FAILED:
            self.failed.append(run_id)
            if own is not None:
                own.state, own.times_died, own.retry_run_id = LetterState.OPEN, own.times_died + 1, None
            else:
                before = original.times_died if follows and original is not None else 0
                self.letters[run_id] = Expected(LetterState.OPEN, before + 1)
        settled = LetterState.RESOLVED if status is Status.COMPLETED else LetterState.DISCARDED
        for letter in (own if status is not Status.FAILED else None, original if follows else None):
            if letter is not None and letter.state is LetterState.RETRYING:
                letter.state = settled

    @precondition(lambda self: self.failed)
    @rule(data=st.data())
    def revive(self, data: st.DataObject) -> None:
        """As `runs retry` does, whatever the state of the letter is."""
        run_id = data.draw(st.sampled_from(sorted(self.failed)))
        self.call(retry_run(self.store.database, run_id))
        self.failed.remove(run_id)
        self.ready.append(run_id)
        letter = self.letters[run_id]
        letter.state, letter.retry_run_id = LetterState.RETRYING, None

    @precondition(lambda self: self.letters)
    @rule(data=st.data(), kind=st.sampled_from([RetryKind.RESUME, RetryKind.RESTART]))
    def retry(self, data: st.DataObject, kind: RetryKind) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.letters)))
        letter = self.letters[run_id]
        allowed = letter.state in (LetterState.OPEN, LetterState.ACKNOWLEDGED, LetterState.DISCARDED)
        if not (allowed and run_id in self.failed):
            self.refused(retry_letter(self.store.database, run_id, LetterRetry(kind=kind), actor="a"))
            return
        change = self.call(retry_letter(self.store.database, run_id, LetterRetry(kind=kind), actor="a"))
        letter.state, letter.retry_run_id = LetterState.RETRYING, change.new_run_id
        if change.new_run_id is None:
            self.failed.remove(run_id)
            self.ready.append(run_id)
        else:
            self.ready.append(change.new_run_id)
            self.repeats[change.new_run_id] = run_id

    @precondition(lambda self: self.letters)
    @rule(data=st.data(), verb=st.sampled_from(["acknowledge", "discard", "assign"]))
    def handle(self, data: st.DataObject, verb: str) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.letters)))
        letter = self.letters[run_id]
        database = self.store.database
        if verb == "assign":
            self.call(assign(database, run_id, "ann", actor="a"))
            letter.assigned_to = "ann"
            return
        work = acknowledge(database, run_id) if verb == "acknowledge" else discard(database, run_id)
        allowed = letter.state is LetterState.OPEN or (verb, letter.state) == ("discard", LetterState.ACKNOWLEDGED)
        if not allowed:
            self.refused(work)
            return
        self.call(work)
        letter.state = LetterState.ACKNOWLEDGED if verb == "acknowledge" else LetterState.DISCARDED

    def refused(self, work: Awaitable[Any]) -> None:
        with pytest.raises(WrongState):
            self.call(work)

    @invariant()
    def letters_are_as_expected(self) -> None:
        page = self.call(list_letters(self.store.database, LetterFilter(EVERY_STATE), limit=1000))
        found = {
            letter.run_id: Expected(letter.state, letter.times_died, letter.retry_run_id, letter.assigned_to)
            for letter in page.dead_letters
        }
        assert found == self.letters
        assert page.open == sum(letter.state is LetterState.OPEN for letter in self.letters.values())


async def test_letters_follow_their_runs(store: Store) -> None:
    Letters.store, Letters.loop, Letters.worker = store, asyncio.get_running_loop(), await store.worker()
    await asyncio.to_thread(
        run_state_machine_as_test,
        Letters,
        settings=settings(
            max_examples=12,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        ),
    )


async def test_counts_are_exact_while_runs_die_and_are_handled(store: Store) -> None:
    """Letters are opened, reopened, resolved and discarded concurrently; every count agrees with the rows."""
    await store.add_all(*(new_run(target="job") for _ in range(60)))
    worker = await store.worker()
    claims: list[Claimed] = []
    while batch := await store.claim(worker, 10):
        claims += batch
    await asyncio.gather(*(store.record(entry_of(claimed, dead())) for claimed in claims))
    ids = [claimed.run_id for claimed in claims]
    assert (await count_open_letters(store.database)).count == 60

    async def handle(run_id: str, choice: int) -> None:
        with_errors: tuple[type[RunlaneError], ...] = (WrongState,)
        for verb in random.Random(choice).sample(range(3), 2):
            try:
                match verb:
                    case 0:
                        await retry_run(store.database, run_id)
                    case 1:
                        await discard(store.database, run_id)
                    case _:
                        await acknowledge(store.database, run_id)
            except with_errors:
                pass

    await asyncio.gather(*(handle(run_id, number) for number, run_id in enumerate(ids + ids)))
    again: list[Claimed] = []
    while batch := await store.claim(worker, 10):
        again += batch
    ends = [dead() if number % 2 else completed() for number in range(len(again))]
    await asyncio.gather(
        *(store.record(entry_of(claimed, end)) for claimed, end in zip(again, ends, strict=True)),
        *(handle(run_id, number + 7) for number, run_id in enumerate(ids)),
    )
    rows = await store.sql("select state, count(*) as count from dead_letters group by state")
    states = {row["state"]: row["count"] for row in rows}
    assert sum(states.values()) == 60
    assert (await count_open_letters(store.database)).count == states.get("open", 0)
    assert (await count_open_letters(store.database, "default")).count == states.get("open", 0)
    assert sum(entry.count for entry in await count_open_by_target(store.database)) == states.get("open", 0)
    retrying = await store.sql(
        "select count(*) as count from dead_letters join runs on runs.id = dead_letters.run_id "
        "where dead_letters.state = 'retrying' and runs.ended_at is not null"
    )
    assert retrying[0]["count"] == 0


async def test_a_run_that_never_failed_ends_without_a_look_at_the_letters(store: Store) -> None:
    run_id = await store.add()
    claimed = await store.claim_one()
    # The statements of the table would fail.
    await store.sql("alter table dead_letters rename to elsewhere")
    try:
        await store.finish(claimed)
        other = await store.add()
        await cancel_run(store.database, other)
    finally:
        await store.sql("alter table elsewhere rename to dead_letters")
    assert await store.status(run_id) is Status.COMPLETED


async def test_groups_have_counts_targets_and_a_sample(store: Store) -> None:
    same = [await dead_run(store, f"order {number} is gone") for number in range(3)]
    other = await dead_run(store, "the disk is full")
    await discard(store.database, same[0], note="known")
    found = await group_letters(store.database, LetterFilter(tenant="default"))
    assert [(group.count, group.sample.run_id) for group in found.groups] == [(2, same[2]), (1, other)]
    assert found.groups[0].targets == ("job",)
    assert found.groups[0].first_failed_at_us <= found.groups[0].last_died_at_us
    assert not found.more
    assert (await group_letters(store.database, LetterFilter(), limit=1)).more
    everything = await group_letters(store.database, LetterFilter(EVERY_STATE))
    assert everything.groups[0].count == 3
    fingerprint = everything.groups[0].fingerprint
    page = await list_letters(store.database, LetterFilter(EVERY_STATE, fingerprint=fingerprint))
    assert [letter.run_id for letter in page.dead_letters] == same[::-1]


async def test_groups_have_the_versions_of_definitions_and_counts_by_day(store: Store) -> None:
    died: list[str] = []
    for version in ("a1", "a1", "b2", None):
        plan = None if version is None else dump_json({"pins": {"job": version, "tool:x": "zz"}})
        run_id = (await store.add_all(new_run(plan=plan)))[0].run_id
        await store.finish(await store.claim_one(), dead())
        died.append(run_id)
    for days, run_id in ((20, died[0]), (13, died[1]), (1, died[2])):
        await store.sql(
            "update dead_letters set died_at = died_at - :us where run_id = :id", us=days * 86_400_000_000, id=run_id
        )
    for wanted in (LetterFilter(), LetterFilter(tenant="default")):
        (group,) = (await group_letters(store.database, wanted)).groups
        assert [(item.version, item.count) for item in group.versions] == [(None, 1), ("b2", 1), ("a1", 2)]
        first, last = group.versions[-1], group.versions[0]
        assert (first.first_failed_at_us, last.last_died_at_us) == (group.first_failed_at_us, group.last_died_at_us)
        assert group.daily == (1, *[0] * 11, 1, 1)
    letter = await read_letter(store.database, died[2])
    assert letter is not None
    assert letter.version == "b2"


async def test_filters_of_letters(store: Store) -> None:
    run_id = await dead_run(store, "Order 17 is 100% gone")
    await assign(store.database, run_id, "ann")
    letter = await letter_of(store, run_id)

    async def found(**fields: Any) -> bool:
        return bool((await list_letters(store.database, LetterFilter(**fields))).dead_letters)

    for field, value, other in (
        ("target", "job", "other"),
        ("lane", "default", "other"),
        ("code", "Error", "timeout"),
        ("fingerprint", letter.fingerprint, "0" * 64),
        ("assigned_to", "ann", "bob"),
        ("tenant", "default", "acme"),
        ("text", "is 100% G", "is 1000"),
        ("died_from_us", letter.died_at_us, letter.died_at_us + 1),
        ("died_before_us", letter.died_at_us + 1, letter.died_at_us),
        ("states", (LetterState.OPEN,), (LetterState.RESOLVED,)),
    ):
        assert await found(**{field: value}), field
        assert not await found(**{field: other}), field
    assert not await found(step="draft")


async def test_discarding_releases_a_blocked_key_only_if_asked(store: Store) -> None:
    first = await store.add(ordering_key="k", on_dead="block")
    second = await store.add(ordering_key="k")
    await store.finish(await store.claim_one(), dead())
    await discard(store.database, first, note="not needed")
    assert await store.status(second) is Status.BLOCKED
    await retry_run(store.database, first)
    await store.finish(await store.claim_one(), dead())
    letter, change = await discard(store.database, first, release=True, actor="ann")
    assert change is not None
    assert (letter.state, letter.handled_by) == (LetterState.DISCARDED, "ann")
    assert await store.status(second) is Status.QUEUED
    assert await store.status(first) is Status.FAILED


async def test_a_restart_takes_the_place_of_a_run_that_blocks_its_key(store: Store) -> None:
    first = await store.add(ordering_key="k", on_dead="block", priority=3)
    second = await store.add(ordering_key="k")
    await store.finish(await store.claim_one(), dead())
    change = await retry_letter(store.database, first, LetterRetry(kind=RetryKind.RESTART), actor="ann")
    assert change.new_run_id is not None
    fresh = await store.get(change.new_run_id)
    assert (fresh.status, fresh.priority, fresh.ordering_key) == (Status.QUEUED, -7, "k")
    assert await store.status(second) is Status.BLOCKED
    await store.finish(await store.claim_one())
    assert (await letter_of(store, first)).state is LetterState.RESOLVED
    assert await store.status(second) is Status.QUEUED


async def test_a_retry_may_be_delayed_and_has_a_lower_priority(store: Store) -> None:
    run_id = await dead_run(store, priority=-95)
    before = await store.get(run_id)
    change = await retry_letter(store.database, run_id, LetterRetry(delay_seconds=60), actor="ann")
    after = await store.get(run_id)
    assert (change.status, change.due_seconds) == (Status.SCHEDULED, 60)
    assert (after.status, after.priority) == (Status.SCHEDULED, -100)
    assert after.due_at_us is not None
    assert before.ended_at_us is not None
    assert after.due_at_us >= before.ended_at_us + 60_000_000
    await store.make_due()
    await store.finish(await store.claim_one())
    assert (await letter_of(store, run_id)).state is LetterState.RESOLVED


async def test_each_change_is_audited(store: Store) -> None:
    run_id = await dead_run(store)
    await assign(store.database, run_id, "bob", actor="ann")
    await acknowledge(store.database, run_id, note="seen", actor="ann")
    await retry_letter(store.database, run_id, LetterRetry(), actor="ann")
    await store.finish(await store.claim_one(), dead())
    change = await retry_letter(store.database, run_id, LetterRetry(kind=RetryKind.RESTART), actor="ann")
    await store.finish(await store.claim_one(), dead())
    await discard(store.database, change.new_run_id or "", actor="ann")
    entries = await list_audit(store.database, limit=100)
    noted = [(entry.action, entry.actor) for entry in reversed(entries) if entry.subject == run_id]
    assert noted == [
        ("dead_letter.assign", "ann"),
        ("dead_letter.acknowledged", "ann"),
        ("run.retry", "ann"),
        ("dead_letter.open", "runlane"),
        ("dead_letter.retrying", "ann"),
        ("dead_letter.discarded", "runlane"),
    ]
    replaced = await letter_of(store, run_id)
    assert replaced.retry_run_id == change.new_run_id
    assert (await letter_of(store, change.new_run_id or "")).times_died == 3
