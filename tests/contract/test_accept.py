"""Accepting runs: what is stored, in which state, in which order, in which lane."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.domain.run import PRIORITY_STEP_US, Accepted, Status
from runlane.store.queue.committer import Committer
from runlane.store.queue.lanes import LaneChange, declare_lanes, move_kinds, set_lane, unassign_kinds
from tests.harness import Store, new_run
from tests.limits import limit
from tests.scale import scaled

MANY = scaled(1_000, 5_000)


async def test_a_run_is_stored_whole(store: Store) -> None:
    run_id = await store.add(input='{"a": 1}', priority=5, max_attempts=4, lane="default")
    run = await store.get(run_id)
    assert (run.target, run.lane, run.status, run.priority) == ("job", "default", Status.QUEUED, 5)
    assert (run.attempt, run.failures, run.losses, run.max_attempts) == (0, 0, 0, 4)
    assert run.input == {"a": 1}
    assert run.due_at_us is run.claimed_at_us is run.ended_at_us is run.worker_id is None
    events = await store.check_stream(run_id)
    assert [(event.type, event.attempt, event.data) for event in events] == [("queued", 0, {"status": "queued"})]


@pytest.mark.parametrize("trace", ["x", "00-x", "00-4bf92f3577b34da6a3ce929d0e0e4736"])
async def test_a_run_with_a_broken_trace_can_be_read(store: Store, trace: str) -> None:
    run_id = await store.add(trace=trace)
    assert (await store.get(run_id)).trace_id is None


async def test_many_runs_keep_their_order(store: Store) -> None:
    requests = [new_run() for _ in range(MANY)]
    verdicts = await store.add_all(*requests)
    assert [verdict.run_id for verdict in verdicts] == [request.id for request in requests]
    assert {table: await store.count(table) for table in ("runs", "run_inputs", "run_events")} == {
        "runs": MANY,
        "run_inputs": MANY,
        "run_events": MANY,
    }
    claims = await store.claim(await store.worker(), MANY)
    assert [claimed.run_id for claimed in claims] == [request.id for request in requests]


async def test_nothing_to_accept_is_nothing(store: Store) -> None:
    assert await store.accept() == []


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, Status.QUEUED),
        ({"delay_us": 60_000_000}, Status.SCHEDULED),
        ({"hold": True}, Status.AWAITING_APPROVAL),
        ({"hold": True, "delay_us": 60_000_000}, Status.AWAITING_APPROVAL),
        ({"ordering_key": "k"}, Status.QUEUED),
        ({"ordering_key": "k", "delay_us": 60_000_000}, Status.SCHEDULED),
    ],
)
async def test_the_first_state(store: Store, fields: dict[str, object], status: Status) -> None:
    (verdict,) = await store.accept(new_run(**fields))
    assert isinstance(verdict, Accepted)
    assert verdict.status is status
    run = await store.get(verdict.run_id)
    assert run.status is status
    assert (run.due_at_us is not None) == ("delay_us" in fields)
    if run.due_at_us is not None:
        assert run.due_at_us - run.accepted_at_us == 60_000_000


async def test_rank_and_time_of_acceptance_agree(store: Store) -> None:
    for priority in (-100, 0, 100):
        run_id = await store.add(priority=priority)
        row = (await store.sql("select rank, accepted_at from runs where id = :id", id=run_id))[0]
        assert row["rank"] == row["accepted_at"] - priority * PRIORITY_STEP_US


async def test_an_operators_lane_wins_over_the_declared_one(store: Store) -> None:
    await declare_lanes(store.database, ["media", "bulk"])
    await move_kinds(store.database, ["job"], "bulk")
    (verdict,) = await store.add_all(new_run(lane="media"))
    assert verdict.lane == "bulk"
    assert (await store.get(verdict.run_id)).lane == "bulk"
    await unassign_kinds(store.database, ["job"])
    (verdict,) = await store.add_all(new_run(lane="media"))
    assert verdict.lane == "media"


@pytest.mark.parametrize("keys", [{}, {"tags": ("a",)}, {"limits": (limit("a", 1),)}])
async def test_a_batch_with_priorities_of_a_moved_kind_is_stored(store: Store, keys: dict[str, Any]) -> None:
    """The points of a priority are those of the lane of each run."""
    await declare_lanes(store.database, ["bulk"])
    await set_lane(store.database, "bulk", LaneChange(priority_seconds=7))
    await move_kinds(store.database, ["job"], "bulk")
    committer = Committer(store.database, lambda lanes: None)
    await committer.start()
    wanted = [new_run(priority=priority, **keys) for priority in (1, 2)] + [new_run(target="other", priority=3, **keys)]
    await committer.accept(wanted, 30)
    await committer.stop()
    rows = await store.sql("select id, accepted_at - rank as ahead from runs order by id")
    ahead = {row["id"]: row["ahead"] for row in rows}
    assert [ahead[run.id] for run in wanted] == [7_000_000, 14_000_000, 3 * PRIORITY_STEP_US]


@pytest.mark.parametrize("text", ["grün 🙂", "tab\tline\nquote'\"\\", "{}[]%$1:name", "\u2028\x01"])
async def test_text_of_any_kind_survives(store: Store, text: str) -> None:
    run_id = await store.add(ordering_key=text, input='{"t": "\\u0000x"}', idempotency_key=text, fingerprint="f")
    run = await store.get(run_id)
    assert run.ordering_key == text
    assert run.input == {"t": "\x00x"}
    replay = (await store.add_all(new_run(idempotency_key=text, fingerprint="f")))[0]
    assert (replay.run_id, replay.replayed) == (run_id, True)
