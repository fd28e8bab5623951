"""The committer: few transactions for many callers, each with its own verdict, none answered before its commit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from runlane import LeaseLost, Unavailable
from runlane.domain.events import Notice
from runlane.domain.run import Accepted, Status
from runlane.errors import IdempotencyConflict, RunlaneError
from runlane.store.queue.accept import NewRun, Verdict
from runlane.store.queue.committer import BATCH_SIZE, Committer, Stopping
from runlane.store.queue.record import Recorded, RecordEntry
from runlane.store.sql.database import open_database
from tests.faults import Fault, FaultyDatabase, always
from tests.harness import Store, completed, entry_of, eventually, new_run

PATIENT = 60.0


class Desk:
    """A committer over a database that can be spoiled."""

    def __init__(self, store: Store) -> None:
        self.database = FaultyDatabase(store.database)
        self.rung: list[set[str]] = []
        self.published: list[Notice] = []
        self.committer = Committer(self.database, self.rung.append, self.published.extend)

    async def accept(self, *requests: NewRun, patience: float = PATIENT) -> list[Verdict]:
        return await self.committer.accept(requests, patience)

    async def record(self, entry: RecordEntry, patience: float = PATIENT) -> Recorded:
        return await self.committer.record(entry, time.monotonic() + patience)


@pytest.fixture
async def desk(store: Store) -> AsyncGenerator[Desk]:
    desk = Desk(store)
    await desk.committer.start()
    try:
        yield desk
    finally:
        await desk.committer.stop()


async def outcomes(*calls: Any) -> list[Any]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*calls, return_exceptions=True)


async def test_callers_at_once_share_a_commit(desk: Desk, store: Store) -> None:
    answers = await asyncio.gather(*(desk.accept(new_run()) for _ in range(300)))
    assert all(isinstance(verdict, Accepted) for (verdict,) in answers)
    assert await store.count("runs") == 300
    assert desk.committer.commits <= 5
    assert desk.committer.members == 300


async def test_a_batch_has_a_bound_but_a_large_member_still_fits(desk: Desk, store: Store) -> None:
    large = [new_run() for _ in range(BATCH_SIZE + 500)]
    verdicts, *_ = await asyncio.gather(desk.accept(*large), *(desk.accept(new_run()) for _ in range(10)))
    assert [verdict.run_id for verdict in verdicts if isinstance(verdict, Accepted)] == [run.id for run in large]
    assert await store.count("runs") == BATCH_SIZE + 510
    assert desk.committer.commits == 2


@pytest.mark.parametrize("finishes", [True, False])
async def test_no_caller_gets_an_answer_before_the_commit(desk: Desk, store: Store, finishes: bool) -> None:
    """Everything is written, and the commit fails: the answer is the failure, and not what was written."""
    await store.add()
    claimed = await store.claim_one()
    before = await store.contents()
    desk.database.set_plan(always(Fault.TIMEOUT))
    entry = entry_of(claimed, completed("7") if finishes else None, events=[("log", "{}")])
    answers = await outcomes(
        desk.accept(new_run(), patience=0.2),
        desk.accept(new_run(ordering_key="k"), patience=0.2),
        desk.record(entry, patience=0.2),
    )
    assert [type(answer) for answer in answers] == [Unavailable] * 3
    assert (desk.rung, desk.published, await store.contents()) == ([], [], before)


async def test_what_a_caller_gets_as_stored_is_stored(desk: Desk, store: Store) -> None:
    second = await open_database(store.settings, 1)
    other = Store(store.settings, second)
    try:
        request = new_run()
        await desk.accept(request)
        assert await other.status(request.id) is Status.QUEUED
        await desk.record(entry_of(await store.claim_one(), completed("7")))
        assert (await other.get(request.id)).result == 7
    finally:
        await second.close()


async def test_bells_ring_for_what_became_ready(desk: Desk, store: Store) -> None:
    await desk.accept(new_run(delay_us=60_000_000), new_run(hold=True))
    assert desk.rung == []
    await desk.accept(new_run(ordering_key="k"), new_run(ordering_key="k"))
    assert desk.rung == [{"default"}]
    claimed = await store.claim_one()
    await desk.record(entry_of(claimed, events=[("log", "{}")]))
    assert desk.rung == [{"default"}]
    await desk.record(entry_of(claimed, completed()))
    assert desk.rung == [{"default"}, {"default"}], "the end of a run released the next of its key"


def poison(store: Store) -> list[NewRun]:
    """Requests that the checks would refuse, and that the database refuses too."""
    bad = [new_run(target="half \ud800")]
    if store.database.dialect == "postgresql":
        bad += [new_run(target="nul \x00"), new_run(priority=10**6), new_run(max_attempts=2**40)]
    return bad


async def test_a_poisoned_member_fails_alone(desk: Desk, store: Store) -> None:
    for bad in poison(store):
        good = [new_run() for _ in range(20)]
        before = await store.count("runs")
        mixed = [*good[:7], bad, *good[7:]]
        answers = await outcomes(*(desk.accept(request, patience=20) for request in mixed))
        assert [type(answer).__name__ for answer in answers].count("list") == 20
        refusal = answers[7]
        assert isinstance(refusal, RunlaneError)
        assert not isinstance(refusal, Unavailable), "trying again is of no use"
        assert "rejected the content" in str(refusal)
        assert await store.count("runs") == before + 20
    assert len(desk.database.seen) < 80, "found by halving, not by waiting"


async def test_a_poisoned_record_fails_alone(desk: Desk, store: Store) -> None:
    await store.add_all(*(new_run() for _ in range(8)))
    claims = await store.claim(await store.worker())
    entries = [entry_of(claimed, completed()) for claimed in claims]
    entries[3].progress_note = "half \ud800"
    answers = await outcomes(*(desk.record(entry) for entry in entries))
    assert isinstance(answers[3], RunlaneError)
    assert not isinstance(answers[3], Unavailable)
    statuses = [await store.status(claimed.run_id) for claimed in claims]
    assert statuses == [Status.RUNNING if position == 3 else Status.COMPLETED for position in range(8)]


async def test_a_conflict_is_one_callers_verdict(desk: Desk) -> None:
    await desk.accept(new_run(idempotency_key="k", fingerprint="f"))
    (conflict,), (accepted,) = await asyncio.gather(
        desk.accept(new_run(idempotency_key="k", fingerprint="other")), desk.accept(new_run())
    )
    assert isinstance(conflict, IdempotencyConflict)
    assert isinstance(accepted, Accepted)


async def test_an_old_attempt_gets_lease_lost(desk: Desk, store: Store) -> None:
    await store.add_all(new_run(), new_run())
    one, two = await store.claim(await store.worker())
    await store.finish(one)
    lost, won = await outcomes(desk.record(entry_of(one, completed())), desk.record(entry_of(two, completed())))
    assert isinstance(lost, LeaseLost)
    assert one.run_id in str(lost)
    assert won.status is Status.COMPLETED


async def test_records_of_one_attempt_in_one_batch_stay_in_order(desk: Desk, store: Store) -> None:
    run_id = await store.add()
    claimed = await store.claim_one()
    await asyncio.gather(
        *(desk.record(entry_of(claimed, events=[("log", f'{{"n":{number}}}')])) for number in range(20)),
        desk.record(entry_of(claimed, checkpoint='"first"', progress=0.1, progress_note="a")),
        desk.record(entry_of(claimed, checkpoint='"second"', progress=0.2)),
        desk.record(entry_of(claimed, completed('"r"'), events=[("log", '{"n":20}')])),
    )
    assert desk.committer.commits == 1
    events = await store.check_stream(run_id)
    assert [event.data["n"] for event in events if event.type == "log"] == list(range(21))
    run = await store.get(run_id)
    assert (run.progress, run.progress_note, run.result) == (0.2, "a", "r")
    assert (await store.sql("select output from run_steps"))[0]["output"] == '"second"'


async def test_nothing_follows_the_end_of_an_attempt_in_its_batch(desk: Desk, store: Store) -> None:
    """Abandoned code may still record in the batch that ends its run; it gets LeaseLost, as it would later."""
    run_id, second = await store.add(ordering_key="k"), await store.add(ordering_key="k")
    claimed = await store.claim_one()
    late = entry_of(claimed, events=[("log", '{"late":true}')], checkpoint='"late"')
    late.ordering_key = None
    ended, *lost = await outcomes(
        desk.record(entry_of(claimed, completed('"first"'))),
        desk.record(late),
        desk.record(entry_of(claimed, completed('"second"'))),
    )
    assert ended.status is Status.COMPLETED
    assert all(isinstance(answer, LeaseLost) for answer in lost)
    assert (await store.get(run_id)).result == "first"
    assert await store.event_types(run_id) == ["queued", "worker_picked_up", "done"]
    assert await store.count("run_steps") == 0
    assert await store.status(second) is Status.QUEUED


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LOST_COMMIT])
async def test_a_commit_in_doubt_doubles_and_loses_nothing(desk: Desk, store: Store, fault: Fault) -> None:
    run_id = await store.add()
    claimed = await store.claim_one()
    desk.database.set_plan([fault])
    await asyncio.gather(
        desk.accept(new_run(idempotency_key="k", fingerprint="f"), new_run()),
        desk.record(entry_of(claimed, completed('"r"'), events=[("log", "{}")])),
    )
    assert desk.database.commit_checks == 1
    assert desk.database.seen == ([fault] if fault is Fault.LOST_ANSWER else [fault, Fault.NONE])
    assert await store.count("runs") == 3
    assert await store.event_types(run_id) == ["queued", "worker_picked_up", "log", "done"]
    assert await store.count("run_attempts") == await store.count("run_results") == 1


async def test_doubt_upon_doubt(desk: Desk, store: Store) -> None:
    desk.database.set_plan([Fault.LOST_COMMIT, Fault.REFUSED, Fault.LOST_COMMIT, Fault.TIMEOUT, Fault.LOST_ANSWER])
    await asyncio.gather(*(desk.accept(new_run()) for _ in range(5)))
    assert await store.count("runs") == 5


async def test_a_caller_that_gives_up_in_doubt_takes_no_other_answer_along(desk: Desk, store: Store) -> None:
    """What committed is what all of them handed in, so each answer stays where it belongs."""
    desk.database.decides = False
    desk.database.set_plan([Fault.LOST_ANSWER])
    hasty, patient = new_run(ordering_key="a"), new_run(ordering_key="b")
    giving_up = asyncio.ensure_future(desk.accept(hasty, patience=0.3))
    waiting = asyncio.ensure_future(desk.accept(patient))
    with pytest.raises(Unavailable):
        await giving_up
    desk.database.decides = True
    (verdict,) = await waiting
    assert isinstance(verdict, Accepted)
    assert verdict.run_id == patient.id
    assert await store.count("runs") == 2


async def test_a_doubtful_loss_is_still_a_loss(desk: Desk, store: Store) -> None:
    """Nothing was written, so there is no mark to check; the attempt has lost its lease in any case."""
    await store.add()
    claimed = await store.claim_one()
    await store.finish(claimed)
    desk.database.set_plan([Fault.LOST_ANSWER])
    with pytest.raises(LeaseLost):
        await desk.record(entry_of(claimed, completed()))


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.TIMEOUT])
async def test_a_database_that_comes_back_in_time_is_waited_for(desk: Desk, store: Store, fault: Fault) -> None:
    desk.database.set_plan([fault] * 4)
    await asyncio.gather(*(desk.accept(new_run()) for _ in range(10)))
    assert await store.count("runs") == 10


async def test_callers_give_up_and_are_not_stored_after_all(desk: Desk, store: Store) -> None:
    desk.database.set_plan(always(Fault.REFUSED))
    hasty = asyncio.ensure_future(desk.accept(new_run(), patience=0.3))
    patient = asyncio.ensure_future(desk.accept(new_run(), patience=PATIENT))
    with pytest.raises(Unavailable):
        await hasty
    assert not patient.done()
    desk.database.set_plan([])
    await patient
    assert await store.count("runs") == 1


async def test_every_caller_gets_an_error_when_the_database_stays_away(desk: Desk, store: Store) -> None:
    desk.database.set_plan(always(Fault.REFUSED))
    answers = await outcomes(*(desk.accept(new_run(), patience=0.2) for _ in range(5)))
    assert all(isinstance(answer, Unavailable) for answer in answers)
    desk.database.set_plan([])
    await desk.accept(new_run())
    assert await store.count("runs") == 1


async def test_a_caller_that_went_away_before_its_batch_is_not_stored(desk: Desk, store: Store) -> None:
    call = asyncio.ensure_future(desk.accept(new_run()))
    await asyncio.sleep(0)
    call.cancel()
    await desk.accept(new_run())
    assert await store.count("runs") == 1


async def test_stopping_stores_what_has_arrived_and_refuses_the_rest(desk: Desk, store: Store) -> None:
    # While the first batch waits for the database, the others gather.
    desk.database.set_plan([Fault.REFUSED] * 3)
    calls = [asyncio.ensure_future(desk.accept(new_run())) for _ in range(10)]
    await eventually(lambda: desk.database.seen, "the first batch to be in progress")
    calls += [asyncio.ensure_future(desk.accept(new_run())) for _ in range(10)]
    await eventually(lambda: len(desk.committer._waiting) == 10, "the second batch to wait")
    await desk.committer.stop()
    await asyncio.gather(*calls)
    assert await store.count("runs") == 20
    with pytest.raises(Stopping):
        await desk.accept(new_run())
    await desk.committer.stop()
    await desk.committer.start()
    await desk.accept(new_run())
    assert await store.count("runs") == 21
