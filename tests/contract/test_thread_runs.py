"""What runs of graphs store goes through the fence, and the end of a run settles its thread in the same transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runlane.domain.graph import GraphRequest, thread_ordering_key
from runlane.domain.run import RunHook, Status
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.errors import WrongState
from runlane.store.queue.reaping import take_over
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.queue.retention import delete_old
from runlane.store.queue.revival import retry_run
from runlane.store.queue.run_changes import cancel_run
from runlane.store.sql.database import Session
from runlane.store.threads.cancelling import delete_thread
from runlane.store.threads.graph_writes import (
    STORE_CHECKPOINTS,
    STORE_VALUES,
    STORE_WRITES,
    GraphWrites,
    StoredWrite,
    ThreadResult,
)
from runlane.store.threads.threads import prune_thread
from tests.harness import Store, completed, dead, entry_of
from tests.threads import BYTES, add_thread, add_thread_run, checkpoint_writes, thread_row

CANCELLED = Finish(AttemptOutcome.CANCELLED, Status.CANCELLED)
TABLES = ("checkpoints", "checkpoint_values", "checkpoint_writes")


async def counts(store: Store) -> list[int]:
    return [await store.count(table) for table in TABLES]


async def test_checkpoints_of_an_attempt_are_stored_as_they_are(store: Store) -> None:
    await add_thread(store)
    run_id = await add_thread_run(store)
    claimed = await store.claim_one()
    writes = checkpoint_writes(1)
    assert await store.record(entry_of(claimed, graph=writes))
    (row,) = await store.sql("select * from checkpoints")
    assert (row["thread"], row["id"], row["run_id"], row["attempt"]) == ("t1", "c1", run_id, 1)
    assert bytes(row["checkpoint"]) == BYTES
    (value,) = await store.sql("select * from checkpoint_values")
    assert bytes(value["value"]) == BYTES + b"\x01"
    (write,) = await store.sql("select * from checkpoint_writes")
    assert (bytes(write["value"]), write["run_id"]) == (BYTES, run_id)


async def test_many_attempts_store_checkpoints_in_one_transaction(store: Store) -> None:
    for name in ("t1", "t2", "t3"):
        await add_thread(store, name)
        await add_thread_run(store, name)
    claims = await store.claim(await store.worker())
    entries = [
        entry_of(claimed, completed(), graph=checkpoint_writes(1, claimed.ordering_key.removeprefix("thread:")))
        for claimed in claims
        if claimed.ordering_key
    ]
    assert len(await store.record(*entries)) == 3
    assert await counts(store) == [3, 3, 3]
    assert {row["open_runs"] for row in await store.sql("select open_runs from threads")} == {0}


async def test_the_checkpoint_of_a_lost_attempt_is_refused(store: Store) -> None:
    await add_thread(store)
    await add_thread_run(store)
    worker = await store.worker()
    old = await store.claim_one(worker)
    await store.record(entry_of(old, graph=checkpoint_writes(1)))
    await store.database.transact(lambda session: take_over(session, [worker]))
    new = await store.claim_one()
    assert new.attempt == 2
    before = await store.contents()
    late = checkpoint_writes(2, result=ThreadResult("t1", "idle", values='{"late":1}', outcome="success"))
    assert await store.record(entry_of(old, graph=late)) == {}
    assert await store.record(entry_of(old, completed(), graph=late)) == {}
    assert await store.contents() == before
    await store.record(entry_of(new, graph=checkpoint_writes(2)))
    assert await counts(store) == [2, 2, 2]


async def test_each_statement_has_the_fence_of_its_own(store: Store) -> None:
    await add_thread(store)
    run_id = await add_thread_run(store)
    await store.claim_one()
    before = await store.contents()
    writes = checkpoint_writes(1)

    async def work(session: Session) -> None:
        await session.fetch(STORE_CHECKPOINTS, [(run_id, 7, *writes.checkpoints[0])])
        await session.fetch(STORE_VALUES, [(run_id, 7, *writes.values[0])])
        await session.fetch(STORE_WRITES, [(run_id, 7, *writes.writes[0])])

    await store.database.transact(work)
    assert await store.contents() == before


async def test_a_repeated_task_keeps_its_first_writes_and_replaces_its_interrupt(store: Store) -> None:
    await add_thread(store)
    await add_thread_run(store)
    claimed = await store.claim_one()

    def write(number: int, value: bytes) -> StoredWrite:
        return StoredWrite("t1", "", "c1", "task", number, "", "a", "bytes", value)

    twice = (write(0, b"first"), write(-3, b"first"), write(0, b"second"), write(-3, b"second"))
    await store.record(entry_of(claimed, graph=replace(checkpoint_writes(1), writes=twice)))
    again = (write(0, b"third"), write(-3, b"third"))
    await store.record(entry_of(claimed, graph=replace(checkpoint_writes(1), writes=again)))
    rows = await store.sql('select "index", value from checkpoint_writes order by "index"')
    assert [bytes(row["value"]) for row in rows] == [b"third", b"first"]


async def test_a_completed_run_stores_the_state_of_its_thread(store: Store) -> None:
    await add_thread(store, status="error", error='{"message":"earlier"}')
    run_id = await add_thread_run(store)
    claimed = await store.claim_one()
    result = ThreadResult("t1", "interrupted", '{"a":1}', '{"task":[]}', "interrupted")
    await store.record(entry_of(claimed, completed(), graph=checkpoint_writes(1, result=result)))
    row = await thread_row(store)
    assert (row["status"], row["open_runs"], row["error"]) == ("interrupted", 0, None)
    assert (row["state_values"], row["interrupts"]) == ('{"a":1}', '{"task":[]}')
    assert row["updated_at"] > 1
    assert row["state_updated_at"] > 1
    (run,) = await store.sql("select outcome from thread_runs where run_id = :id", id=run_id)
    assert run["outcome"] == "interrupted"


async def test_a_failed_run_leaves_its_error_in_the_thread(store: Store) -> None:
    await add_thread(store, state_values='{"a":0}')
    await add_thread_run(store)
    await store.finish(await store.claim_one(), dead("no luck"))
    row = await thread_row(store)
    assert (row["status"], row["open_runs"], row["state_values"]) == ("error", 0, '{"a":0}')
    assert "no luck" in row["error"]


async def test_a_run_that_the_reaper_ends_settles_its_thread(store: Store) -> None:
    await add_thread(store)
    await add_thread_run(store, max_losses=0)
    worker = await store.worker()
    await store.claim_one(worker)
    await store.database.transact(lambda session: take_over(session, [worker]))
    row = await thread_row(store)
    assert (row["status"], row["open_runs"]) == ("error", 0)
    assert "WorkerLost" in row["error"]


async def test_a_run_that_is_cancelled_before_its_start_changes_only_the_number_of_open_runs(store: Store) -> None:
    await add_thread(store, status="interrupted", state_values='{"a":0}')
    first, second = await add_thread_run(store), await add_thread_run(store)
    assert await store.status(second) is Status.BLOCKED
    await cancel_run(store.database, second)
    assert (await thread_row(store))["open_runs"] == 1
    await cancel_run(store.database, first)
    row = await thread_row(store)
    assert (row["status"], row["open_runs"], row["state_values"]) == ("interrupted", 0, '{"a":0}')


async def test_a_retried_run_makes_its_thread_busy_again(store: Store) -> None:
    await add_thread(store)
    run_id = await add_thread_run(store)
    await store.finish(await store.claim_one(), dead())
    await retry_run(store.database, run_id)
    assert (await thread_row(store))["open_runs"] == 1
    await store.finish(await store.claim_one(), dead())
    await store.sql("delete from threads")
    with pytest.raises(WrongState, match="was deleted"):
        await retry_run(store.database, run_id)
    assert await store.status(run_id) is Status.FAILED


async def test_an_answer_is_not_retried_after_later_runs(store: Store) -> None:
    """The thread may wait for the answer to another question by then."""
    await add_thread(store)
    given: dict[str, dict[str, Any]] = {"answer": {"command": {"resume": "yes"}}, "input": {"input": {"x": 1}}}
    runs = {name: await add_thread_run(store, input=GraphRequest(**fields).to_json()) for name, fields in given.items()}
    for ordinal, run_id in enumerate(runs.values(), 1):
        await store.sql("update thread_runs set ordinal = :ordinal where run_id = :id", ordinal=ordinal, id=run_id)
        await store.finish(await store.claim_one(), dead())
    await store.sql("update threads set run_count = 3")
    with pytest.raises(WrongState, match="has had later runs"):
        await retry_run(store.database, runs["answer"])
    assert await store.status(runs["answer"]) is Status.FAILED
    await retry_run(store.database, runs["input"])
    await store.sql("update threads set run_count = 1")
    await retry_run(store.database, runs["answer"])


async def _rows(store: Store, table: str) -> list[str]:
    return sorted(repr(sorted(dict(row).items())) for row in await store.sql(f"select * from {table}"))


async def test_a_rolled_back_run_leaves_nothing(store: Store) -> None:
    await add_thread(store)
    await add_thread_run(store)
    first = await store.claim_one()
    kept = ThreadResult("t1", "interrupted", '{"a":1}', '{"task":[]}', "interrupted")
    written = checkpoint_writes(1, result=kept)
    asked = [
        StoredWrite("t1", "", "c1", "ask", -3, "", "__interrupt__", "bytes", b"one?"),
        StoredWrite("t1", "", "c1", "ask", -4, "", "__resume__", "bytes", b"zero"),
    ]
    await store.record(entry_of(first, completed(), graph=replace(written, writes=(*written.writes, *asked))))
    before = {table: await _rows(store, table) for table in (*TABLES, "thread_runs")}
    second = await add_thread_run(store, on_cancel="rollback")
    claimed = await store.claim_one()
    # A run that resumes a graph writes to the last checkpoint of the run before it, and replaces questions and answers.
    resumed = [
        StoredWrite("t1", "", "c1", "answer", -4, "", "__resume__", "bytes", b"yes"),
        StoredWrite("t1", "", "c1", "ask", -3, "", "__interrupt__", "bytes", b"two?"),
        StoredWrite("t1", "", "c1", "ask", -4, "", "__resume__", "bytes", b"zero, yes"),
    ]
    await store.record(entry_of(claimed, graph=replace(checkpoint_writes(2, parent=1), writes=tuple(resumed))))
    await store.record(entry_of(claimed, graph=GraphWrites(writes=tuple(resumed))))
    waiting = await add_thread_run(store, on_cancel="rollback")
    await cancel_run(store.database, waiting)
    # The rollback of a run that waits does not touch what is kept for this one.
    (shown,) = await store.sql(
        "select value from checkpoint_writes where task_id = 'ask' and channel = '__interrupt__' "
        "and checkpoint_id = 'c1'"
    )
    assert bytes(shown["value"]) == b"two?"
    await cancel_run(store.database, second)
    result = ThreadResult("t1", "idle", '{"a":2}')
    await store.record(entry_of(claimed, CANCELLED, graph=checkpoint_writes(3, parent=2, result=result)))
    assert {table: await _rows(store, table) for table in before} == before
    row = await thread_row(store)
    assert (row["status"], row["open_runs"], row["state_values"]) == ("interrupted", 0, '{"a":1}')
    assert await store.status(second) is Status.CANCELLED


async def test_a_run_whose_worker_dies_before_its_rollback_leaves_nothing(store: Store) -> None:
    """The reaper ends the run, and the run that waits behind it starts from the state before it."""
    await add_thread(store)
    await add_thread_run(store)
    kept = ThreadResult("t1", "idle", '{"a":1}', outcome="success")
    await store.record(entry_of(await store.claim_one(), completed(), graph=checkpoint_writes(1, result=kept)))
    before = {table: await store.sql(f"select * from {table}") for table in (*TABLES, "thread_runs")}
    rolled_back = await add_thread_run(store, on_cancel="rollback")
    worker = await store.worker()
    claimed = await store.claim_one(worker)
    await store.record(entry_of(claimed, graph=checkpoint_writes(2, parent=1)))
    waiting = await add_thread_run(store)
    await cancel_run(store.database, rolled_back)
    await store.database.transact(lambda session: take_over(session, [worker]))
    assert await store.status(rolled_back) is Status.CANCELLED
    assert await store.record(entry_of(claimed, graph=checkpoint_writes(3, parent=2))) == {}
    assert {table: await store.sql(f"select * from {table}") for table in TABLES} == {
        table: before[table] for table in TABLES
    }
    assert rolled_back not in {row["run_id"] for row in await store.sql("select run_id from thread_runs")}
    assert ((await thread_row(store))["open_runs"], (await store.claim_one()).run_id) == (1, waiting)


async def test_a_run_that_completes_before_its_cancellation_is_not_rolled_back(store: Store) -> None:
    await add_thread(store)
    await add_thread_run(store, on_cancel="rollback")
    claimed = await store.claim_one()
    result = ThreadResult("t1", "idle", '{"a":1}', outcome="success")
    await store.record(entry_of(claimed, completed(), graph=checkpoint_writes(1, result=result)))
    assert await counts(store) == [1, 1, 1]
    assert (await thread_row(store))["state_values"] == '{"a":1}'


@pytest.mark.parametrize("temporary", [True, False])
async def test_the_thread_of_one_run_is_deleted_with_its_end(store: Store, *, temporary: bool) -> None:
    await add_thread(store)
    await add_thread(store, "t2")
    run_id = await add_thread_run(store, on_completion="delete")
    claimed = await store.claim_one()
    await store.record(entry_of(claimed, graph=checkpoint_writes(1)))
    result = ThreadResult("t1", "idle", '{"a":1}', outcome="success", is_temporary=temporary)
    await store.record(entry_of(claimed, completed('{"a":1}'), graph=checkpoint_writes(2, result=result)))
    assert [row["key"] for row in await store.sql("select key from threads")] == ["t2"]
    assert await counts(store) == [0, 0, 0]
    assert (await store.get(run_id)).result == {"a": 1}
    (row,) = await store.sql("select outcome from thread_runs")
    assert row["outcome"] == "success"
    await store.sql("update runs set ended_at = 1")
    await store.database.transact(lambda session: delete_old(session, 60))
    assert await store.count("thread_runs") == 0


async def test_a_thread_with_another_open_run_is_deleted_with_the_last_one(store: Store) -> None:
    await add_thread(store)
    first = await add_thread_run(store, on_completion="delete")
    await add_thread_run(store, on_completion="delete")
    await cancel_run(store.database, first)
    assert await store.count("threads") == 1
    await store.finish(await store.claim_one())
    assert await store.count("threads") == 0


@pytest.mark.parametrize("ends", [True, False])
async def test_checkpoints_of_a_temporary_thread_that_stays_are_stored(store: Store, *, ends: bool) -> None:
    """It stays while another run of it is open, or while the run itself continues."""
    await add_thread(store)
    await add_thread_run(store, on_completion="delete")
    if ends:
        await add_thread_run(store)
    claimed = await store.claim_one()
    result = ThreadResult("t1", "idle", '{"a":1}', outcome="success", is_temporary=True)
    finish = completed() if ends else Finish(AttemptOutcome.HANDED_BACK, Status.QUEUED)
    await store.record(entry_of(claimed, finish, graph=checkpoint_writes(1, result=result)))
    assert await counts(store) == [1, 1, 1]
    row = await thread_row(store)
    assert (row["open_runs"], row["state_values"]) == (1, '{"a":1}')
    await store.finish(await store.claim_one())
    assert await store.count("threads") == (1 if ends else 0)


async def test_threads_of_other_tenants_are_left_alone(store: Store) -> None:
    await store.sql("insert into tenants (id, name, created_at, updated_at) values ('acme', 'acme', 0, 0)")
    await add_thread(store)
    key = await add_thread(store, tenant="acme")
    await add_thread_run(store)
    await add_thread_run(store, tenant="acme")
    worker = await store.worker()
    for claimed in await store.claim(worker):
        if claimed.tenant == "acme":
            await store.finish(claimed, dead())
    assert (await thread_row(store, key))["status"] == "error"
    row = await thread_row(store)
    assert (row["status"], row["open_runs"]) == ("idle", 1)


async def test_a_pruned_thread_keeps_no_replaced_question(store: Store) -> None:
    await add_thread(store)
    for number, question in enumerate((b"one?", b"two?")):
        await add_thread_run(store)
        asked = StoredWrite("t1", "", "c0", "ask", -3, "", "__interrupt__", "bytes", question)
        written = checkpoint_writes(0) if number == 0 else GraphWrites()
        graph = replace(written, writes=(*written.writes, asked))
        await store.record(entry_of(await store.claim_one(), completed(), graph=graph))
    assert await store.count("checkpoint_writes") == 3
    assert await prune_thread(store.database, DEFAULT_TENANT, "t1")
    rows = await store.sql("select checkpoint_id, value from checkpoint_writes where task_id = 'ask'")
    assert [(row["checkpoint_id"], bytes(row["value"])) for row in rows] == [("c0", b"two?")]


@pytest.mark.parametrize("ends", ["cancelled", "completed"])
async def test_an_operation_is_deleted_with_its_thread(store: Store, ends: str) -> None:
    """A worker that updates the state of a thread leaves nothing of a thread that was deleted meanwhile."""
    await add_thread(store)
    operations = [
        await store.add(ordering_key=thread_ordering_key(DEFAULT_TENANT, "t1"), hooks=RunHook.THREAD) for _ in range(2)
    ]
    await store.sql("update threads set open_runs = 2")
    claimed = await store.claim_one()
    await delete_thread(store.database, DEFAULT_TENANT, "t1", actor="test")
    assert [await store.status(run_id) for run_id in operations] == [Status.RUNNING, Status.CANCELLED]
    await store.record(entry_of(claimed, graph=checkpoint_writes(1)))
    finish = CANCELLED if ends == "cancelled" else completed()
    await store.record(entry_of(claimed, finish, graph=checkpoint_writes(2, parent=1)))
    assert await counts(store) == [0, 0, 0]
    assert (await store.count("threads"), (await store.get(operations[0])).status) == (0, Status(ends))
