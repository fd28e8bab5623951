"""Runs that start after other runs: they are blocked until the other runs have ended.

The transaction that accepts such a run locks the runs that it names, in the order of their ids, so that each of them is
either counted as ended or finds the new run when it ends. The transaction that ends a run records the end for every run
that waits for it, locks these runs and decides: a run becomes ready, keeps waiting, or can never start and ends as
cancelled. Work that would make that transaction long, or that needs the lock of an ordering key, is left to a
maintenance service.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runlane.domain.events import EventType
from runlane.domain.run import AfterOn, RunDependencies, RunHook, Status
from runlane.domain.text import dump_json
from runlane.errors import RunNotFound
from runlane.store.queue.dependency_rows import (
    ADD_DEPENDENCIES,
    ADD_WORK,
    CANCEL_IMPOSSIBLE,
    CANCELLED_AT_ONCE,
    COUNT_ENDS,
    DEPENDENCIES_OF_RUN,
    FINISH_WORK,
    LOCK_RUNS,
    LOCK_WAITING,
    MARK_PARENTS,
    NOTE_END,
    READ_WORK,
    RELEASE_DEPENDENTS,
    SETTLED_AT_ONCE,
    STORE_REASONS,
    TENANTS_OF_RUNS,
)
from runlane.store.queue.events import append
from runlane.store.queue.limits import wait_for_limits
from runlane.store.queue.ordering import ReleasedRun
from runlane.store.sql.database import Database, Session
from runlane.store.sql.statement import Row


@dataclass(slots=True)
class NewDependencies:
    """The dependencies of new runs: the rows to store, and the runs that can never start."""

    rows: list[tuple[str, str, str, str | None]] = field(default_factory=list[tuple[str, str, str, str | None]])
    hooks: dict[str, int] = field(default_factory=dict[str, int])
    impossible: set[str] = field(default_factory=set[str])


@dataclass(frozen=True, slots=True)
class SettledDependents:
    """The runs that became ready or were cancelled, and the rows of the cancelled ones, whose end is to be settled."""

    released: Sequence[ReleasedRun] = ()
    ended: Sequence[Row] = ()


@dataclass(frozen=True, slots=True)
class DependencyCounts:
    """The outcomes so far of the runs that a run waits for."""

    after_on: AfterOn
    total: int
    open: int
    failed: int
    cancelled: int

    @property
    def met(self) -> bool | None:
        """True when the run may start, False when it can never start, None while this is undecided."""
        match self.after_on:
            case AfterOn.END:
                return True if self.open == 0 else None
            case AfterOn.ANY_FAILED:
                return True if self.failed else None if self.open else False
            case AfterOn.SUCCESS:
                return False if self.failed or self.cancelled else None if self.open else True

    @property
    def why_never(self) -> str:
        """The reason why the run can never start."""
        runs_named = f"{self.total} {'run' if self.total == 1 else 'runs'}"
        if self.after_on is AfterOn.ANY_FAILED:
            return f"It starts after a failure of {runs_named}, and none of them failed."
        return f"It starts after the success of {runs_named}, of which {_ended_badly(self)}."


def _ended_badly(counts: DependencyCounts) -> str:
    parts = [(counts.failed, "failed"), (counts.cancelled, "cancelled")]
    return " and ".join(f"{count} {'was ' if word == 'cancelled' else ''}{word}" for count, word in parts if count)


def parents_of(new_runs: Iterable[Any]) -> list[str]:
    """Return the runs that these new runs start after, sorted."""
    return sorted({parent for run in new_runs for parent in run.after})


async def check_parents(database: Database, new_runs: Sequence[Any]) -> None:
    """Raise RunNotFound for a run in `after` that the tenant does not have, before anything is locked."""
    waiting = [run for run in new_runs if run.after]
    if not waiting:
        return
    parents = parents_of(waiting)
    _refuse_unknown(waiting, await database.transact(lambda session: _tenants(session, parents)))


async def _tenants(session: Session, parents: Sequence[str]) -> dict[str, str]:
    return {row["id"]: row["tenant"] for row in await session.fetch(TENANTS_OF_RUNS, ids=session.texts(parents))}


def _refuse_unknown(waiting: Iterable[Any], tenants: Mapping[str, str]) -> None:
    for run in waiting:
        for parent in run.after:
            if tenants.get(parent) != run.tenant:
                raise RunNotFound(parent)


async def lock_in_order(session: Session, run_ids: Collection[str]) -> dict[str, Row]:
    """Lock runs in the order of their ids; return those that exist, with tenant and status."""
    if not run_ids:
        return {}
    return {row["id"]: row for row in await session.fetch(LOCK_RUNS, ids=session.texts(sorted(run_ids)))}


async def prepare_dependencies(session: Session, new_runs: Sequence[Any]) -> NewDependencies:
    """Lock the runs that new runs start after, and decide which of the new ones may start."""
    waiting = [run for run in new_runs if run.after]
    found = NewDependencies()
    if not waiting:
        return found
    parents = await lock_in_order(session, parents_of(waiting))
    _refuse_unknown(waiting, {run_id: row["tenant"] for run_id, row in parents.items()})
    for run in waiting:
        ends = {parent: Status(parents[parent]["status"]) for parent in run.after}
        ended = {parent: status if status.terminal else None for parent, status in ends.items()}
        statuses = list(ended.values())
        counts = DependencyCounts(
            AfterOn(run.after_on),
            len(statuses),
            statuses.count(None),
            statuses.count(Status.FAILED),
            statuses.count(Status.CANCELLED),
        )
        found.hooks[run.id] = RunHook.AFTER if counts.met else RunHook.AFTER | RunHook.WAITS_FOR_RUNS
        if counts.met is False:
            found.impossible.add(run.id)
        found.rows += [(parent, run.id, run.after_on, status) for parent, status in ended.items()]
    return found


async def store_dependencies(session: Session, found: NewDependencies, stored: Collection[str]) -> SettledDependents:
    """Store the dependencies of the accepted runs, and cancel those that can never start.

    The caller holds the locks of their ordering keys.
    """
    rows = [row for row in found.rows if row[1] in stored]
    if not rows:
        return SettledDependents()
    await session.fetch(ADD_DEPENDENCIES, rows)
    await session.fetch(MARK_PARENTS, ids=session.texts(sorted({row[0] for row in rows if row[3] is None})))
    return await _cancel(session, sorted(found.impossible & set(stored)))


async def settle_dependents(session: Session, ended: Sequence[Row], may_cancel: int) -> SettledDependents:
    """Note the ends of runs, and decide about the runs that wait for them; cancel at most `may_cancel` of these."""
    parents = sorted(row["id"] for row in ended if row["hooks"] & RunHook.DEPENDENTS)
    return await _settle(session, parents, may_cancel) if parents else SettledDependents()


async def _settle(session: Session, parents: Sequence[str], may_cancel: int) -> SettledDependents:
    rows = await session.fetch(NOTE_END, ids=session.texts(parents))
    if len(rows) == SETTLED_AT_ONCE:
        await session.fetch(ADD_WORK, [(parent, "ended") for parent in parents])
    waiting = sorted({row["run_id"] for row in rows})
    if not waiting:
        return SettledDependents()
    # The ends are counted after the locks are taken, so that the last of several concurrent transactions counts all of
    # them.
    keys = {row["id"]: row["ordering_key"] for row in await session.fetch(LOCK_WAITING, ids=session.texts(waiting))}
    counts = await _counts(session, sorted(keys))
    ready = [run_id for run_id, count in counts.items() if count.met]
    never = [run_id for run_id, count in counts.items() if count.met is False]
    # The end of a run with an ordering key needs the lock of the key, which must be taken before any row.
    now = [run_id for run_id in never if keys[run_id] is None][: max(0, may_cancel)]
    later = sorted(set(never) - set(now))
    await session.fetch(ADD_WORK, [(run_id, "impossible") for run_id in later])
    cancelled = await _cancel(session, now, counts)
    return SettledDependents([*await _release(session, ready), *cancelled.released], cancelled.ended)


async def _counts(session: Session, run_ids: Sequence[str]) -> dict[str, DependencyCounts]:
    if not run_ids:
        return {}
    return {
        row["run_id"]: DependencyCounts(
            AfterOn(row["after_on"]), row["total"], row["open"], row["failed"], row["cancelled"]
        )
        for row in await session.fetch(COUNT_ENDS, ids=session.texts(run_ids))
    }


async def _release(session: Session, run_ids: Sequence[str]) -> list[ReleasedRun]:
    if not run_ids:
        return []
    rows = await session.fetch(RELEASE_DEPENDENTS, ids=session.texts(sorted(run_ids)))
    await wait_for_limits(session, rows)
    await _append(session, rows, EventType.DEPENDENCIES_MET)
    return [_released(row) for row in rows]


async def _cancel(
    session: Session, run_ids: Sequence[str], counts: Mapping[str, DependencyCounts] | None = None
) -> SettledDependents:
    if not run_ids:
        return SettledDependents()
    known = counts if counts is not None else await _counts(session, run_ids)
    rows = await session.fetch(CANCEL_IMPOSSIBLE, ids=session.texts(sorted(run_ids)))
    reasons = [
        (row["id"], dump_json({"type": "dependency_failed", "message": known[row["id"]].why_never})) for row in rows
    ]
    await session.fetch(STORE_REASONS, reasons)
    await _append(session, rows, EventType.DONE)
    return SettledDependents([_released(row) for row in rows], rows)


async def read_work(session: Session) -> Sequence[Row]:
    """Return some of the work that the ends of runs have left: a run, its ordering key, and the kind of work."""
    return await session.fetch(READ_WORK)


async def settle_work(session: Session, work: Sequence[Row]) -> SettledDependents:
    """Cancel runs that can never start, and settle more dependents of ended runs.

    The caller holds the locks of the ordering keys of all runs in `work`.
    """
    impossible = [row["run_id"] for row in work if row["kind"] == "impossible"]
    parents = [row["run_id"] for row in work if row["kind"] == "ended"]
    await session.fetch(FINISH_WORK, ids=session.texts(impossible), kind="impossible")
    await session.fetch(FINISH_WORK, ids=session.texts(parents), kind="ended")
    cancelled = await _cancel(session, impossible)
    more = await _settle(session, parents, CANCELLED_AT_ONCE) if parents else SettledDependents()
    return SettledDependents([*cancelled.released, *more.released], [*cancelled.ended, *more.ended])


async def read_dependencies(database: Database, run_id: str) -> RunDependencies | None:
    """Return the runs that a run starts after, or None."""
    rows = await database.query(DEPENDENCIES_OF_RUN, run_id=run_id)
    if not rows:
        return None
    ends = {row["parent_id"]: None if row["parent_status"] is None else Status(row["parent_status"]) for row in rows}
    still_open = sum(status is None for status in ends.values())
    waits = rows[0]["waits"]
    reason = f"waits for {still_open} of {len(ends)} {'run' if len(ends) == 1 else 'runs'}" if waits else None
    return {"runs": ends, "on": AfterOn(rows[0]["after_on"]), "open": still_open, "reason": reason}


async def _append(session: Session, rows: Sequence[Row], kind: EventType) -> None:
    await append(
        session,
        [
            (row["id"], row["last_seq"], row["attempt"], kind.value, None, f'{{"status":"{row["status"]}"}}')
            for row in rows
        ],
    )


def _released(row: Row) -> ReleasedRun:
    return ReleasedRun(row["id"], row["lane"], Status(row["status"]), row["last_seq"])
