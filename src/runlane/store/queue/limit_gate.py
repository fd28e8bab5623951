"""Concurrency limits of new runs, decided in the transaction that accepts them.

Under the locks of the limits, a run is admitted if each of its limits has room and no run waits for one of them.
Without the locks, a run waits and is admitted right after the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from runlane.domain.admission import Room, wait_order
from runlane.domain.concurrency import (
    ConcurrencyLimit,
    ConcurrencyStrategy,
    counted_limits,
    describe_full,
    limits_to_text,
)
from runlane.domain.run import Accepted, Status
from runlane.errors import ConcurrencyLimited, NotFound, nearest
from runlane.store.queue.limit_rows import ADD_WAITS, LIMIT_NAMES, LIMITS_OF_RUNS
from runlane.store.queue.limits import add_slots, limit_locks, read_room, wait_row, waits_for_limits
from runlane.store.queue.ordering import key_locks
from runlane.store.sql.database import Session

if TYPE_CHECKING:
    from runlane.store.queue.accept import NewRun, Verdict

_RETRY_SECONDS = 1.0


@dataclass(slots=True)
class LimitGate:
    """The decisions about new runs with limits: the waiting runs by their limit, and the rejections.

    `notified` are limits whose waiting runs may be admitted after the commit. `has_several`: a run has several limits.
    """

    limits: dict[str, tuple[ConcurrencyLimit, ...]] = field(default_factory=dict[str, tuple[ConcurrencyLimit, ...]])
    waits: dict[str, ConcurrencyLimit] = field(default_factory=dict[str, ConcurrencyLimit])
    refused: dict[str, ConcurrencyLimited | NotFound] = field(
        default_factory=dict[str, "ConcurrencyLimited | NotFound"]
    )
    admitted: set[str] = field(default_factory=set[str])
    notified: set[str] = field(default_factory=set[str])
    has_several: bool = False

    def limits_text(self, run_id: str) -> str | None:
        """Return the limits of a run as they are stored with it."""
        return limits_to_text(self.limits.get(run_id, ()))


NO_LIMITS = LimitGate()


def accept_locks(new_runs: Iterable[NewRun]) -> list[int]:
    """Return the locks under which these runs are accepted: those of their ordering keys and their limits."""
    keys: list[str | None] = []
    limits: set[str] = set()
    for run in new_runs:
        keys.append(run.ordering_key)
        if run.limits:
            limits.update(limit.key for limit in counted_limits(run.tenant, run.limits))
    return [*key_locks(keys), *limit_locks(limits)]


async def open_gate(session: Session, groups: Iterable[Sequence[NewRun]], *, holds_locks: bool) -> LimitGate:
    """Decide about new runs in groups, each of which is refused as a whole."""
    gate = LimitGate()
    wanted = list(groups)
    keys: set[str] = set()
    for group in wanted:
        for run in group:
            if run.limits:
                limits = gate.limits[run.id] = counted_limits(run.tenant, run.limits)
                if len(limits) == 1:
                    keys.add(limits[0].key)
                else:
                    gate.has_several = True
                    keys.update(limit.key for limit in limits)
    room = await read_room(session, keys)
    for group in wanted:
        refusing = _admit_group(gate, room, group, holds_locks=holds_locks)
        if refusing is not None:
            refusal = await _refusal(session, room, group[0].tenant, refusing)
            gate.refused |= {run.id: refusal for run in group}
            gate.admitted -= {run.id for run in group}
    return gate


def grouped(new_runs: Sequence[NewRun], sizes: Sequence[int] | None, left_out: Collection[str]) -> list[list[NewRun]]:
    """Return the runs in their groups, without those in `left_out`."""
    rest = iter(new_runs)
    groups = ([run for run in islice(rest, size) if run.id not in left_out] for size in sizes or [len(new_runs)])
    return [group for group in groups if group]


def _admit_group(gate: LimitGate, room: Room, group: Sequence[NewRun], *, holds_locks: bool) -> ConcurrencyLimit | None:
    """Admit the runs for which all limits have room; return a limit that refuses one of them."""
    taken: list[ConcurrencyLimit] = []
    for run in group:
        limits = gate.limits.get(run.id)
        if limits is None:
            continue
        for limit in limits:
            if _refuses(limit, room):
                room.give_back(taken)
                return limit
        if run.delay_us > 0 or run.hold:
            continue
        full = room.first_full(limits)
        if full is None and holds_locks and room.nothing_waits(limits):
            room.take(limits)
            taken += limits
            gate.admitted.add(run.id)
            continue
        gate.waits[run.id] = full or limits[0]
        if full is None or full.strategy is ConcurrencyStrategy.CANCEL_RUNNING:
            gate.notified.add(gate.waits[run.id].key)
    return None


def _refuses(limit: ConcurrencyLimit, room: Room) -> bool:
    if limit.limit is not None and limit.key not in room.shared:
        return True
    return limit.strategy is ConcurrencyStrategy.REJECT_NEW and room.is_full(limit)


async def _refusal(session: Session, room: Room, tenant: str, limit: ConcurrencyLimit) -> ConcurrencyLimited | NotFound:
    if limit.limit is not None and limit.key not in room.shared:
        names = [row["name"] for row in await session.fetch(LIMIT_NAMES, tenant=tenant)]
        return NotFound(
            f'The concurrency limit "{limit.limit}" does not exist{nearest(limit.limit, names)}. Create it with: '
            f"runlane concurrency-limits set {limit.limit} NUMBER"
        )
    why = describe_full(limit.label, room.admitted.get(limit.key, 0), -1, room.most(limit) or 0)
    return ConcurrencyLimited(f"{why}, and the limit rejects new runs. Try again when one has ended.", _RETRY_SECONDS)


async def store_gate(
    session: Session, gate: LimitGate, verdicts: Mapping[str, Verdict], *, first_is_stored: bool = False
) -> None:
    """Store the slots of the accepted runs that are queued, and the waits of the other ready runs.

    With `first_is_stored` the statement that stored the runs has stored the slots of their first limits.
    """
    if not gate.limits:
        return
    if first_is_stored and not gate.waits and not gate.has_several:
        return
    stored = {run_id: item for run_id in gate.limits if isinstance(item := verdicts.get(run_id), Accepted)}
    queued = {run_id for run_id, item in stored.items() if item.status is Status.QUEUED}
    skipped = 1 if first_is_stored else 0
    await add_slots(session, ((run_id, gate.limits[run_id][skipped:]) for run_id in queued))
    await _store_waits(session, gate, [run_id for run_id, item in stored.items() if item.status is Status.BLOCKED])
    # A slot that was counted for a run which is not queued is free for the runs that wait.
    unused = gate.admitted - queued
    session.freed.update(limit.key for run_id in unused for limit in gate.limits[run_id])
    session.freed.update(gate.notified)


async def _store_waits(session: Session, gate: LimitGate, blocked: Sequence[str]) -> None:
    waiting = sorted(set(blocked) & set(gate.waits))
    if not waiting:
        return
    members = [
        wait_row(
            row["id"], gate.limits[row["id"]], gate.waits[row["id"]],
            wait_order(row["accepted_at"], row["priority"], started=False), row["fairness_key"], row["target"],
        )
        for row in await session.fetch(LIMITS_OF_RUNS, ids=session.texts(waiting))
        if waits_for_limits(row)
    ]  # fmt: skip
    await session.fetch(ADD_WAITS, members)
