"""An attempt that continues another one: costs are counted once, and later values stay.

Each record is read back from the database as the next attempt would, with a snapshot at every possible position.
"""

from __future__ import annotations

import pytest

from runlane.definitions.schema.definition import Orchestration
from runlane.domain.run import ORCHESTRATION
from runlane.domain.text import dump_json
from runlane.interpreter.machine import Machine
from runlane.interpreter.values import Done, Failed, Outcome
from runlane.orchestration import snapshots
from runlane.orchestration.replay import StateEdit, record_of, replay
from runlane.orchestration.snapshots import Snapshots
from runlane.store.orchestration.steps import SNAPSHOT_PATH, StepOutcome, StepRecord, read_replay_records
from runlane.store.queue.claim import Claimed
from tests.harness import Store, entry_of
from tests.unit.interpreter.play import orchestration, say

RETRY = {"attempts": 3, "backoff_seconds": 0}


class Attempt:
    """Completes steps and records them as an attempt does, each in a commit of its own."""

    def __init__(self, store: Store, claimed: Claimed, definition: Orchestration) -> None:
        self._store = store
        self._claimed = claimed
        self._library = {definition.id: definition}
        self._no = 0
        self._snapshots = Snapshots()
        self.machine = Machine.start(self._library, definition.id, {})
        self.snapshots = 0

    async def complete(self, path: str, outcome: Outcome) -> None:
        (pending,) = [pending for pending in self.machine.pending_steps() if pending.path == path]
        self.machine.complete(path, outcome)
        self._no += 1
        record = record_of(pending, outcome, self.machine, self._no, 0.0)
        steps = [record]
        if self._snapshots.is_due(record, self.machine):
            cursor = dump_json(self.machine.cursor())
            steps.append(StepRecord(SNAPSHOT_PATH, self._no, "", "snapshot", StepOutcome.SNAPSHOT, output=cursor))
            self.snapshots += 1
        await self._store.record(entry_of(self._claimed, steps=steps))

    async def continued(self) -> Machine:
        """Return the machine of an attempt that begins now."""
        way = await read_replay_records(self._store.database, self._claimed.run_id)
        return replay(self._library, "main", {}, {}, way, [])[0]


async def test_a_snapshot_after_every_step_counts_the_cost_of_each_try_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_EVERY", 1)
    await store.add(target=f"{ORCHESTRATION}main", plan='{"pins":{}}')
    (claimed,) = await store.claim(await store.worker(), targets=[ORCHESTRATION])
    attempt = Attempt(store, claimed, orchestration(say("a", "b", retry=RETRY), say("b", "c"), say("c")))
    outcomes: list[tuple[str, Outcome]] = [
        ("a", Failed("timeout", "Late.", retryable=True, cost_usd=1.0, tokens=10)),
        ("a", Failed("timeout", "Late.", retryable=True, cost_usd=2.0, tokens=20)),
        ("a", Done("x", None, 4.0, 40)),
        ("b", Done("y", None, 8.0, 80)),
    ]
    for path, outcome in outcomes:
        await attempt.complete(path, outcome)
        again = await attempt.continued()
        assert (again.cost_usd, again.tokens) == (attempt.machine.cost_usd, attempt.machine.tokens)
        assert [(step.path, step.tries) for step in again.pending_steps()] == [
            (step.path, step.tries) for step in attempt.machine.pending_steps()
        ]
    assert attempt.machine.cost_usd == 15.0
    assert attempt.snapshots == 2, "after the steps that are over, and not between two tries"


def test_an_edit_of_a_fork_is_not_applied_again_after_a_snapshot() -> None:
    library = {"main": orchestration(say("a", "b"), say("b", "c"), say("c"))}
    edits = [StateEdit(1, {"a": "edited before", "note": "first"}), StateEdit(3, {"note": "second"})]
    records = [
        StepRecord("a", 1, "a", "print", StepOutcome.DONE, output='"made later"'),
        StepRecord("b", 2, "b", "print", StepOutcome.DONE, output='"y"'),
    ]
    machine, last = replay(library, "main", {}, {}, records, edits)
    assert (machine.state["a"], machine.state["note"], last) == ("made later", "second", 2)
    machine, _ = replay(library, "main", {}, {}, records[:1], edits[:1])
    snapshot = StepRecord(SNAPSHOT_PATH, 1, "", "snapshot", StepOutcome.SNAPSHOT, output=dump_json(machine.cursor()))
    machine, last = replay(library, "main", {}, {}, [snapshot, records[1]], edits)
    assert (machine.state["a"], machine.state["note"], last) == ("made later", "second", 2)
