"""The fence: writes of an attempt are stored while it owns the run, and none of them afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.domain.run import Status
from runlane.store.orchestration.steps import SAVE_STEPS, read_steps
from runlane.store.queue.claim import Claimed
from runlane.store.queue.events import APPEND_FENCED
from runlane.store.queue.reaping import take_over
from runlane.store.queue.record import AttemptOutcome, Finish, RecordEntry
from runlane.store.queue.run_changes import cancel_run
from runlane.store.queue.runs import read_attempts
from runlane.store.sql.database import Session
from tests.harness import Store, completed, dead, entry_of, failed_once, new_run

WRITES: dict[str, dict[str, Any]] = {
    "event": {"events": [("log", '{"message":"late"}')]},
    "checkpoint": {"events": [("checkpoint", "{}")], "checkpoint": '"late"'},
    "progress": {"progress": 0.9, "progress_note": "late"},
    "completed": {"finish": completed('"late"')},
    "failed": {"finish": dead("late")},
    "retry": {"finish": failed_once()},
    "everything": {
        "events": [("log", "{}")],
        "checkpoint": "1",
        "progress": 0.1,
        "progress_note": "x",
        "finish": completed(),
    },
}


async def lose(store: Store, claimed: Claimed) -> None:
    """Take the run from its worker as the reaper does."""
    row = (await store.sql("select worker_id from runs where id = :id", id=claimed.run_id))[0]
    await store.database.transact(lambda session: take_over(session, [row["worker_id"]]))


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("then", ["taken over", "running elsewhere", "completed", "cancelled", "retried"])
async def test_an_old_attempt_changes_no_row(store: Store, write: str, then: str) -> None:
    await store.add()
    claimed = await store.claim_one()
    match then:
        case "taken over":
            await lose(store, claimed)
        case "running elsewhere":
            await lose(store, claimed)
            assert (await store.claim_one()).attempt == 2
        case "cancelled":
            await store.finish(claimed, Finish(AttemptOutcome.CANCELLED, Status.CANCELLED))
        case "retried":
            await store.finish(claimed, failed_once())
        case _:
            await store.finish(claimed)
    before = await store.contents()
    assert await store.record(entry_of(claimed, **WRITES[write])) == {}
    assert await store.contents() == before


@pytest.mark.parametrize("attempt", [0, 2, 99])
async def test_a_wrong_attempt_changes_no_row(store: Store, attempt: int) -> None:
    await store.add()
    claimed = await store.claim_one()
    before = await store.contents()
    assert await store.record(RecordEntry(claimed.run_id, attempt, "default", finish=completed())) == {}
    assert await store.record(RecordEntry("run_unknown", 1, "default", finish=completed())) == {}
    assert await store.contents() == before


async def test_a_loser_does_not_spoil_the_winners_of_its_batch(store: Store) -> None:
    await store.add_all(*(new_run() for _ in range(3)))
    claims = await store.claim(await store.worker())
    await store.finish(claims[1])
    verdicts = await store.record(*(entry_of(claimed, completed()) for claimed in claims))
    assert set(verdicts) == {(claims[0].run_id, 1), (claims[2].run_id, 1)}


async def test_each_insert_has_the_fence_of_its_own(store: Store) -> None:
    """Even without RECORD before them, the statements that follow it refuse another attempt's rows."""
    run_id = await store.add()
    await store.claim_one()
    before = await store.contents()

    async def work(session: Session) -> None:
        await session.fetch(APPEND_FENCED, [(run_id, 3, 7, "log", None, "{}")])
        await session.fetch(SAVE_STEPS, [(run_id, "checkpoint", 7, "checkpoint", "1")])

    await store.database.transact(work)
    assert await store.contents() == before


async def test_events_are_numbered_without_a_gap(store: Store) -> None:
    run_id = await store.add()
    claimed = await store.claim_one()
    for number in range(1, 4):
        events = [("log", f'{{"n":{number},"part":{part}}}') for part in range(number)]
        verdicts = await store.record(entry_of(claimed, events=events))
        assert verdicts[run_id, 1].status is Status.RUNNING
    await store.record(entry_of(claimed, completed(), events=[("log", '{"n":4,"part":0}')]))
    events = await store.check_stream(run_id)
    parts = [(event.data["n"], event.data["part"]) for event in events if event.type == "log"]
    assert parts == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (4, 0)]


async def test_the_end_is_stored_whole(store: Store) -> None:
    run_id = await store.add()
    worker = await store.worker()
    claimed = await store.claim_one(worker)
    recorded = await store.finish(claimed, completed('{"answer":42}'))
    assert recorded is not None
    run = await store.get(run_id)
    assert (run.status, run.result, run.error) == (Status.COMPLETED, {"answer": 42}, None)
    assert run.ended_at_us is not None
    assert run.last_seq == recorded.notice.last_seq
    (attempt,) = await read_attempts(store.database, run_id)
    assert (attempt["attempt"], attempt["outcome"], attempt["worker_id"]) == (1, "completed", worker)
    assert attempt["started_at_us"] == run.claimed_at_us
    assert await store.event_types(run_id) == ["queued", "worker_picked_up", "done"]


async def test_a_failed_attempt_counts_and_a_put_back_one_does_not(store: Store) -> None:
    run_id = await store.add()
    worker = await store.worker()
    for finish in (
        Finish(AttemptOutcome.RETRY_LATER, Status.QUEUED, error='{"type":"Retry"}'),
        Finish(AttemptOutcome.HANDED_BACK, Status.QUEUED),
        Finish(AttemptOutcome.FAILED, Status.QUEUED, error='{"type":"Error"}'),
    ):
        await store.finish(await store.claim_one(worker), finish)
    run = await store.get(run_id)
    assert (run.status, run.attempt, run.failures, run.losses) == (Status.QUEUED, 3, 1, 0)
    assert run.ended_at_us is None
    assert [attempt["outcome"] for attempt in await read_attempts(store.database, run_id)] == [
        "retry_later",
        "handed_back",
        "failed",
    ]
    await store.check_stream(run_id)


async def test_a_run_put_back_keeps_its_place(store: Store) -> None:
    first = await store.add()
    await store.add()
    worker = await store.worker()
    await store.finish(await store.claim_one(worker), Finish(AttemptOutcome.HANDED_BACK, Status.QUEUED))
    assert (await store.claim_one(worker)).run_id == first


async def test_a_delay_is_counted_from_the_end_of_the_attempt(store: Store) -> None:
    run_id = await store.add()
    await store.finish(await store.claim_one(), failed_once(delay_us=60_000_000))
    run = await store.get(run_id)
    (attempt,) = await read_attempts(store.database, run_id)
    assert run.due_at_us is not None
    assert abs(run.due_at_us - attempt["ended_at_us"] - 60_000_000) < 5_000_000


@pytest.mark.parametrize("finish", [failed_once(), Finish(AttemptOutcome.HANDED_BACK, Status.QUEUED)])
async def test_a_cancelled_run_is_not_put_back(store: Store, finish: Finish) -> None:
    run_id = await store.add()
    claimed = await store.claim_one()
    await cancel_run(store.database, run_id)
    recorded = await store.finish(claimed, finish)
    assert recorded is not None
    assert recorded.status is Status.CANCELLED
    await store.check_stream(run_id)
    assert await store.claim(await store.worker()) == []


async def test_the_work_of_a_run_that_finished_before_its_cancel_arrived_is_kept(store: Store) -> None:
    run_id = await store.add()
    claimed = await store.claim_one()
    await cancel_run(store.database, run_id)
    await store.finish(claimed, completed('"done"'))
    assert (await store.get(run_id)).result == "done"


async def test_a_checkpoint_reaches_the_next_attempt_and_replaces_the_one_before(store: Store) -> None:
    run_id = await store.add()
    worker = await store.worker()
    claimed = await store.claim_one(worker)
    for value in ('{"page":1}', '{"page":2}'):
        await store.record(entry_of(claimed, events=[("checkpoint", "{}")], checkpoint=value))
    await lose(store, claimed)
    again = await store.claim_one()
    assert again.saved == '{"page":2}'
    (step,) = await read_steps(store.database, run_id)
    assert (step["path"], step["attempt"], step["output"]) == ("checkpoint", 1, {"page": 2})


async def test_progress_keeps_its_newest_value_and_restarts_with_an_attempt(store: Store) -> None:
    run_id = await store.add()
    worker = await store.worker()
    claimed = await store.claim_one(worker)
    await store.record(entry_of(claimed, progress=0.25, progress_note="a quarter"))
    await store.record(entry_of(claimed, progress=0.5))
    run = await store.get(run_id)
    assert (run.progress, run.progress_note) == (0.5, "a quarter")
    await store.finish(claimed, Finish(AttemptOutcome.HANDED_BACK, Status.QUEUED))
    await store.claim_one(worker)
    run = await store.get(run_id)
    assert (run.progress, run.progress_note) == (None, None)


async def test_an_entry_without_progress_keeps_the_progress(store: Store) -> None:
    run_id = await store.add()
    claimed = await store.claim_one()
    await store.record(entry_of(claimed, progress=0.5, progress_note="half"))
    await store.record(entry_of(claimed, events=[("log", "{}")]))
    run = await store.get(run_id)
    assert (run.progress, run.progress_note) == (0.5, "half")


async def test_a_failure_inside_the_transaction_leaves_nothing(store: Store) -> None:
    await store.add()
    claimed = await store.claim_one()
    before = await store.contents()

    async def work(session: Session) -> None:
        from runlane.store.queue.record import record

        await record(session, [entry_of(claimed, completed("1"), events=[("log", "{}")], checkpoint="1")])
        raise RuntimeError("the process stops here")

    with pytest.raises(RuntimeError, match="stops here"):
        await store.database.transact(work)
    assert await store.contents() == before
