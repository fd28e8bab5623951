"""The members of a transaction of the committer, and its result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from runlane.store.queue.accept import NewRun, Verdict
from runlane.store.queue.ordering import ReleasedRun
from runlane.store.queue.record import Recorded, RecordEntry


@dataclass(slots=True)
class AcceptMember:
    """New runs of one request, and the future of their verdicts."""

    runs: Sequence[NewRun]
    answer: asyncio.Future[list[Verdict]]
    give_up_at: float

    @property
    def size(self) -> int:
        return len(self.runs)

    @property
    def characters(self) -> int:
        return sum(len(run.input) for run in self.runs)

    @property
    def delays_us(self) -> Iterable[int]:
        expiring = (run.flow.expires_us for run in self.runs if run.flow is not None)
        return [
            *(run.delay_us for run in self.runs if run.delay_us > 0),
            *(after_us for after_us in expiring if after_us is not None),
        ]


@dataclass(slots=True)
class RecordMember:
    """An entry of an attempt, and the future of its verdict."""

    entry: RecordEntry
    answer: asyncio.Future[Recorded]
    give_up_at: float

    @property
    def size(self) -> int:
        return 1

    @property
    def characters(self) -> int:
        finish = self.entry.finish
        texts = [self.entry.checkpoint, *(data for _, data in self.entry.events)]
        texts += [text for step in self.entry.steps for text in (step.input, step.output)]
        texts += [call.payload for call in self.entry.calls]
        if finish is not None:
            texts += [finish.result, finish.error, finish.state]
        graph = self.entry.graph
        return sum(len(text) for text in texts if text is not None) + (0 if graph is None else graph.size)

    @property
    def delays_us(self) -> Iterable[int]:
        finish = self.entry.finish
        return () if finish is None or finish.delay_us is None else (finish.delay_us,)


CommitMember = AcceptMember | RecordMember


@dataclass(slots=True)
class CommitResult:
    """The verdicts of a transaction, delivered when it has committed."""

    accepted: list[list[Verdict]] = field(default_factory=list[list[Verdict]])
    recorded: dict[tuple[str, int], Recorded] = field(default_factory=dict[tuple[str, int], Recorded])
    released: list[ReleasedRun] = field(default_factory=list[ReleasedRun])
    late: list[RecordEntry] = field(default_factory=list[RecordEntry])


def merge_entries(entries: Sequence[RecordEntry]) -> tuple[list[RecordEntry], list[RecordEntry]]:
    """Merge the entries of each attempt in this batch, in their order. Return entries after its end separately."""
    merged: dict[tuple[str, int], RecordEntry] = {}
    late: list[RecordEntry] = []
    for entry in entries:
        key = (entry.run_id, entry.attempt)
        known = merged.get(key)
        if known is None:
            merged[key] = entry
            continue
        if known.finish is not None:
            late.append(entry)
            continue
        merged[key] = RecordEntry(
            run_id=entry.run_id,
            attempt=entry.attempt,
            lane=entry.lane,
            # Only a final entry has an ordering key, and merging must not lose it, because its lock is needed.
            ordering_key=entry.ordering_key or known.ordering_key,
            events=[*known.events, *entry.events],
            checkpoint=entry.checkpoint if entry.checkpoint is not None else known.checkpoint,
            progress=entry.progress if entry.progress is not None else known.progress,
            progress_note=entry.progress_note if entry.progress_note is not None else known.progress_note,
            steps=[*known.steps, *entry.steps],
            calls=[*known.calls, *entry.calls],
            tenant=known.tenant or entry.tenant,
            waits=[*known.waits, *entry.waits],
            settled=[*known.settled, *entry.settled],
            budgets=[*known.budgets, *entry.budgets],
            graph=known.graph.merged(entry.graph) if known.graph is not None else entry.graph,
            finish=entry.finish,
        )
    return list(merged.values()), late
