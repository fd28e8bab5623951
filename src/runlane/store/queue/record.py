"""The writes of a worker about its run: events, checkpoints, progress and the end, all through the fence.

The head of RECORD is the fence: it names the run, the attempt and `running`, and returns only the members that passed.
The later writes of the transaction are made for these members only. A rejected member changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Float,
    FromClause,
    Integer,
    SmallInteger,
    Text,
    and_,
    case,
    func,
    insert,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.budget import BudgetNotice
from runlane.domain.events import EventType, Notice, StoredEvent
from runlane.domain.run import RunHook, Status
from runlane.store.events.run_ends import hooks_of_end
from runlane.store.orchestration.calls import RECORD_CALLS, CallKind, CallRecord
from runlane.store.orchestration.children import wake_paused_too_late
from runlane.store.orchestration.steps import CHECKPOINT_PATH, RECORD_STEPS, SAVE_STEPS, StepRecord, last_of_each
from runlane.store.orchestration.waits import OPEN_WAITS, SETTLE_WAITS, WAKE_ANSWERED, NewWait
from runlane.store.queue.events import APPEND_FENCED, EventRow
from runlane.store.queue.limits import free_slots
from runlane.store.queue.ordering import ReleasedRun
from runlane.store.queue.run_ends import settle_ended
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import MARK, by_key_only, json_of, lit, now_us
from runlane.store.sql.schema import run_attempts, run_events, run_results, runs
from runlane.store.sql.statement import Row
from runlane.store.threads.graph_writes import GraphWrites, OwnedWrites, store_graphs
from runlane.store.usage import ADD_USAGE, CallUsage, usage_rows
from runlane.store.webhooks.notices import report_budgets
from runlane.store.webhooks.outbox import has_endpoints
from runlane.store.webhooks.run_messages import report_waiting


class AttemptOutcome(StrEnum):
    """How an attempt ended; stored with it."""

    COMPLETED = "completed"
    FAILED = "failed"
    RETRY_LATER = "retry_later"
    HANDED_BACK = "handed_back"
    CANCELLED = "cancelled"
    PAUSED = "paused"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of an attempt: the new status of its run, and its content. `result`, `error` and `state` are JSON."""

    outcome: AttemptOutcome
    status: Status
    result: str | None = None
    error: str | None = None
    delay_us: int | None = None
    state: str | None = None

    @property
    def failures(self) -> int:
        """1 when the attempt counts against the run's attempts."""
        return 1 if self.outcome is AttemptOutcome.FAILED else 0


@dataclass(slots=True)
class RecordEntry:
    """The writes of an attempt in one transaction. `settled` are the paths of waits that it has consumed."""

    run_id: str
    attempt: int
    lane: str
    ordering_key: str | None = None
    events: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    checkpoint: str | None = None
    progress: float | None = None
    progress_note: str | None = None
    steps: list[StepRecord] = field(default_factory=list[StepRecord])
    calls: list[CallRecord] = field(default_factory=list[CallRecord])
    waits: list[NewWait] = field(default_factory=list[NewWait])
    settled: list[str] = field(default_factory=list[str])
    finish: Finish | None = None
    tenant: str = ""
    budgets: list[BudgetNotice] = field(default_factory=list[BudgetNotice])
    graph: GraphWrites | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """The verdict on an entry that passed the fence: the new status of its run, and the notice for readers."""

    status: Status
    notice: Notice


_TERMINAL = tuple(lit(status) for status in sorted(s for s in Status if s.terminal))


def _record(batch: FromClause) -> Executable:
    b = batch.c
    # A cancelled run is not requeued: it ends here.
    new_status = case(
        (b.new_status.is_(None), runs.c.status),
        (
            and_(
                runs.c.cancel_requested_at.is_not(None),
                b.new_status.in_([lit(Status.QUEUED), lit(Status.SCHEDULED), lit(Status.PAUSED)]),
            ),
            lit(Status.CANCELLED),
        ),
        else_=b.new_status,
    )
    ends = new_status.in_(_TERMINAL)
    keeps_key = and_(new_status == lit(Status.FAILED), runs.c.on_dead == lit("block"))
    return (
        update(runs)
        .where(runs.c.id == b.id, runs.c.attempt == b.attempt, by_key_only(runs.c.status) == lit(Status.RUNNING))
        .values(
            status=new_status,
            failures=runs.c.failures + b.failures,
            due_at=now_us() + b.delay_us,
            ended_at=case((ends, now_us()), else_=None),
            last_seq=runs.c.last_seq + b.events + case((ends, lit(1)), else_=lit(0)),
            holds_key=case((or_(~ends, keeps_key), runs.c.holds_key), else_=False),
            progress=func.coalesce(b.progress, runs.c.progress),
            progress_note=func.coalesce(b.progress_note, runs.c.progress_note),
            recorded_at=now_us(),
        )
        .returning(
            runs.c.id,
            runs.c.attempt,
            runs.c.status,
            runs.c.last_seq,
            runs.c.claimed_at,
            runs.c.worker_id,
            runs.c.ordering_key,
            runs.c.holds_key,
            runs.c.tenant,
            hooks_of_end(),
            now_us().label("at"),
            MARK,
        )
    )


def end_attempts(batch: FromClause | None, changed: FromClause) -> Executable:
    """A link: end the attempts of this change. `changed` has their outcome and error."""
    c = changed.c
    return insert(run_attempts).from_select(
        ["run_id", "attempt", "worker_id", "started_at", "ended_at", "outcome", "error"],
        select(c.id, c.attempt, c.worker_id, c.claimed_at, c.at, c.outcome, c.error)
        .select_from(changed)
        .where(c.outcome.is_not(None)),
    )


def store_results(batch: FromClause | None, changed: FromClause) -> Executable:
    """A link: store the results of the runs that ended with this change. Only ends that workers store have a state."""
    c = changed.c
    state = c.state if "state" in c else null()
    return insert(run_results).from_select(
        ["run_id", "result", "error", "state"],
        select(c.id, c.result, c.error, state).select_from(changed).where(c.status.in_(_TERMINAL)),
    )


def emit_done(batch: FromClause | None, changed: FromClause) -> Executable:
    """A link: add the last event of the runs that ended with this change."""
    c = changed.c
    return insert(run_events).from_select(
        ["run_id", "seq", "attempt", "type", "at", "data"],
        select(c.id, c.last_seq, c.attempt, lit(EventType.DONE), c.at, json_of(status=c.status))
        .select_from(changed)
        .where(c.status.in_(_TERMINAL)),
    )


_SHOWN = ("id", "attempt", "status", "last_seq", "ordering_key", "holds_key", "tenant", "hooks", "at", "mark")
RECORD = CompoundWrite(
    "record",
    _record,
    columns={
        "id": Text(),
        "attempt": Integer(),
        "new_status": Text(),
        "failures": Integer(),
        "delay_us": BigInteger(),
        "events": Integer(),
        "progress": Float(),
        "progress_note": Text(),
        "outcome": Text(),
        "result": Text(),
        "error": Text(),
        "state": Text(),
    },
    returns={
        "id": Text(),
        "attempt": Integer(),
        "status": Text(),
        "last_seq": Integer(),
        "claimed_at": BigInteger(),
        "worker_id": Text(),
        "ordering_key": Text(),
        "holds_key": Boolean(),
        "tenant": Text(),
        "hooks": SmallInteger(),
        "at": BigInteger(),
        "mark": Text(),
    },
    key=("id", "attempt"),
    carries=("outcome", "result", "error", "state"),
    links=[end_attempts, store_results, emit_done],
    final=lambda changed: select(
        *(changed.c[name] for name in _SHOWN), has_endpoints(changed.c.tenant).label("notifies")
    ),
    purpose="Store how attempts ended or what they emitted, through the fence.",
)


async def record(
    session: Session, entries: Sequence[RecordEntry]
) -> tuple[dict[tuple[str, int], Recorded], list[ReleasedRun]]:
    """Write the entries, one per run and attempt. If one is missing in the result, its attempt has lost the run.

    The caller holds the locks of the ordering keys of every entry that finishes.
    """
    # By id, so that two transactions over the same runs lock them in the same order.
    ordered = sorted(entries, key=lambda entry: (entry.run_id, entry.attempt))
    rows = await session.write(RECORD, [_member(entry) for entry in ordered])
    won: dict[tuple[str, int], Row] = {(row["id"], row["attempt"]): row for row in rows}
    events: list[EventRow] = []
    checkpoints: list[tuple[Any, ...]] = []
    steps: list[tuple[Any, ...]] = []
    calls: list[tuple[Any, ...]] = []
    used: list[CallUsage] = []
    opened: list[tuple[Any, ...]] = []
    settled: list[tuple[Any, ...]] = []
    graphs: list[OwnedWrites] = []
    ended: list[Row] = []
    verdicts: dict[tuple[str, int], Recorded] = {}
    for entry in ordered:
        row = won.get((entry.run_id, entry.attempt))
        if row is None:
            continue
        status = Status(row["status"])
        has_ended = entry.finish is not None and status.terminal
        numbered = _numbered(entry, row, has_ended=has_ended)
        events.extend(numbered)
        verdicts[entry.run_id, entry.attempt] = Recorded(status, _notice(entry, row, numbered, has_ended=has_ended))
        if entry.checkpoint is not None:
            checkpoints.append((entry.run_id, CHECKPOINT_PATH, entry.attempt, "checkpoint", entry.checkpoint))
        steps += [step.row(entry.run_id, entry.attempt) for step in last_of_each(entry.steps)]
        calls += [call.row(entry.run_id, entry.attempt) for call in entry.calls]
        used += [_usage(entry, call) for call in entry.calls if call.kind is CallKind.MODEL]
        opened += [wait.row(entry.run_id, entry.attempt) for wait in entry.waits]
        settled += [(entry.run_id, path, entry.attempt) for path in entry.settled]
        if entry.graph is not None:
            graphs.append((entry.run_id, entry.attempt, entry.graph))
        if has_ended:
            ended.append(row)
    await session.fetch(SAVE_STEPS, checkpoints)
    await session.fetch(RECORD_STEPS, steps)
    await session.fetch(RECORD_CALLS, calls)
    await session.fetch(ADD_USAGE, usage_rows(used))
    asked = [wait for wait in await session.fetch(OPEN_WAITS, opened) if wait["kind"] == "human"]
    if asked:
        notified = {row["id"] for row in won.values() if row["notifies"]}
        await report_waiting(session, [wait for wait in asked if wait["run_id"] in notified])
    await session.fetch(SETTLE_WAITS, settled)
    await session.fetch(APPEND_FENCED, events)
    await store_graphs(session, graphs, {row["id"] for row in ended})
    released = await settle_ended(session, ended)
    for run_id, attempt in await _paused_too_late(session, verdicts):
        verdicts[run_id, attempt] = replace(verdicts[run_id, attempt], status=Status.QUEUED)
    await _report_budgets(session, ordered, won, used)
    waiting = [key for key, verdict in verdicts.items() if verdict.status in (Status.PAUSED, Status.SCHEDULED)]
    await free_slots(session, [key[0] for key in waiting if won[key]["hooks"] & RunHook.LIMITS])
    return verdicts, released


async def _report_budgets(
    session: Session,
    entries: Sequence[RecordEntry],
    won: Mapping[tuple[str, int], Row],
    used: Sequence[CallUsage],
) -> None:
    """Report budgets that are nearly or wholly spent, of tenants with webhook endpoints."""
    notified = {row["id"]: row["tenant"] for row in won.values() if row["notifies"]}
    if not notified:
        return
    noticed = [
        (notified[entry.run_id], entry.run_id, entry.lane, notice)
        for entry in entries
        if entry.run_id in notified
        for notice in entry.budgets
    ]
    spenders = {call.tenant for call in used if call.cost_usd and call.run_id in notified}
    if noticed or spenders:
        await report_budgets(session, noticed, spenders)


async def _paused_too_late(session: Session, verdicts: Mapping[tuple[str, int], Recorded]) -> list[tuple[str, int]]:
    """Requeue runs that paused although an answer had been stored or a child had ended before."""
    paused = {run_id: attempt for (run_id, attempt), verdict in verdicts.items() if verdict.status is Status.PAUSED}
    if not paused:
        return []
    answered = [row["id"] for row in await session.fetch(WAKE_ANSWERED, ids=session.texts(sorted(paused)))]
    woken = {*answered, *await wake_paused_too_late(session, sorted(paused))}
    return [(run_id, paused[run_id]) for run_id in sorted(woken)]


def _usage(entry: RecordEntry, call: CallRecord) -> CallUsage:
    return CallUsage(
        entry.run_id,
        entry.attempt,
        entry.tenant,
        call.agent or "",
        call.model or "",
        call.tokens_in,
        call.tokens_out,
        call.cost_usd,
    )


def _member(entry: RecordEntry) -> tuple[Any, ...]:
    finish = entry.finish
    return (
        entry.run_id,
        entry.attempt,
        finish.status.value if finish else None,
        finish.failures if finish else 0,
        finish.delay_us if finish else None,
        len(entry.events),
        entry.progress,
        entry.progress_note,
        finish.outcome.value if finish else None,
        finish.result if finish else None,
        finish.error if finish else None,
        finish.state if finish else None,
    )


def _numbered(entry: RecordEntry, row: Row, *, has_ended: bool) -> list[EventRow]:
    # The closing event, if there is one, has the last number and is written by the compound write.
    last = row["last_seq"] - (1 if has_ended else 0)
    first = last - len(entry.events) + 1
    return [
        (entry.run_id, first + offset, entry.attempt, kind, row["at"], data)
        for offset, (kind, data) in enumerate(entry.events)
    ]


def _notice(entry: RecordEntry, row: Row, numbered: Sequence[EventRow], *, has_ended: bool) -> Notice:
    lines = [StoredEvent(seq, kind, attempt, row["at"], data) for _, seq, attempt, kind, _, data in numbered]
    if has_ended:
        data = f'{{"status":"{row["status"]}"}}'
        lines.append(StoredEvent(row["last_seq"], EventType.DONE.value, entry.attempt, row["at"], data))
    return Notice(entry.run_id, row["last_seq"], tuple(lines))
