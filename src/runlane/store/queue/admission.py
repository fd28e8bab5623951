"""The admission of waiting runs under the locks of their concurrency limits.

A pass reads the first waiting runs of some limits without a lock, locks these limits and all others of the runs in one
order, and reads again. So two passes never deadlock, and a run with several limits takes a slot of each or none. A run
that is blocked by another of its limits waits under that limit from then on. If a limit has room, each run that waits
under it has therefore been tried, and the end of a run affects only the limits that it held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from runlane.domain.admission import AdmissionPlan, Admissions, Candidate, Queues, Room
from runlane.domain.concurrency import ConcurrencyStrategy, limits_of_text
from runlane.domain.events import EventType
from runlane.domain.run import Status
from runlane.store.queue.events import append
from runlane.store.queue.limit_rows import (
    ADMIT,
    EVICTING,
    FORGET_TURNS,
    HOLDERS,
    MAX_KEYS,
    MOVE_WAITS,
    READ_FIRST,
    READ_TURNS,
    REMOVE_WAITS,
    SET_TURNS,
    WAITING_KEYS,
)
from runlane.store.queue.limits import add_slots, limit_locks, read_room
from runlane.store.queue.ordering import ReleasedRun
from runlane.store.queue.start_tags import place_admitted
from runlane.store.sql.database import Database, Session
from runlane.store.sql.statement import Row

# How many limits a transaction locks at first, and how many runs it admits or moves at most.
KEYS_AT_ONCE: Final = 200
_RUNS_AT_ONCE: Final = 1000
# How many runs of a turn are read at first; each further round of a transaction reads more.
_FIRST: Final = 2
_GROWTH: Final = 8


@dataclass(slots=True)
class Admission:
    """The result of a pass: the admitted runs, the runs to cancel for others, and the limits that need another pass."""

    admitted: list[ReleasedRun] = field(default_factory=list[ReleasedRun])
    evicted: list[str] = field(default_factory=list[str])
    again: set[str] = field(default_factory=set[str])


async def admit(session: Session, keys: Collection[str]) -> Admission:
    """Admit the waiting runs for which all limits have room."""
    outcome = Admission()
    concerned, locked = await _limits_of_pass(session, keys)
    await session.lock(exclusive=limit_locks(locked))
    most, decided = _FIRST, 0
    wanted, waiting = concerned, set[str]()
    while wanted:
        queues = await _read_queues(session, wanted, most)
        waiting |= set(queues)
        if not queues:
            break
        room = await read_room(session, _keys_of(queues) & locked)
        plan = Admissions(queues, room, locked).decide()
        outcome.admitted += await _store(session, plan)
        outcome.again |= plan.unlocked
        decided += len(plan.admitted) + len(plan.moved)
        most *= _GROWTH
        if decided >= _RUNS_AT_ONCE:
            outcome.again |= plan.more
            break
        # A key outside the pass has its own turns, which are not locked.
        outcome.again |= plan.more - concerned
        wanted = plan.more & concerned
    outcome.evicted = await _to_evict(session, waiting)
    return outcome


async def _limits_of_pass(session: Session, keys: Collection[str]) -> tuple[set[str], set[str]]:
    """Return the limits to serve, which are these and all other limits of their first runs, and the limits to lock."""
    first = await _read_queues(session, keys, _FIRST)
    concerned = {*keys, *_keys_of(first)}
    return concerned, {*concerned, *_keys_of(await _read_queues(session, concerned - set(keys), _FIRST))}


def _keys_of(queues: Queues) -> set[str]:
    return {limit.key for turns in queues.values() for turn in turns for one in turn for limit in one.limits}


async def _read_queues(session: Session, keys: Collection[str], most: int) -> Queues:
    """Return the first waiting runs of each limit, by turn, beginning after the turn that was served last."""
    members = [(key, part) for key in sorted(keys) for part in (0, 1)]
    order: dict[str, dict[str, None]] = {}
    rows = await session.fetch(READ_TURNS, members)
    for row in sorted(rows, key=lambda row: (row["key"], row["part"], row["n"])):
        order.setdefault(row["key"], {})[row["turn"]] = None
    if not order:
        return {}
    turns = [(key, turn) for key, found in order.items() for turn in found]
    by_turn: dict[tuple[str, str], list[Row]] = {}
    for row in await session.fetch(READ_FIRST, turns, more=most - 1):
        by_turn.setdefault((row["key"], row["turn"]), []).append(row)
    return {key: [_candidates(by_turn.get((key, turn), ())) for turn in found] for key, found in order.items()}


def _candidates(rows: Sequence[Row]) -> list[Candidate]:
    ordered = sorted(rows, key=lambda row: (row["place"], row["run_id"]))
    return [
        Candidate(
            row["run_id"],
            row["key"],
            row["turn"],
            row["place"],
            limits_of_text(row["limits"]),
            row["fairness_key"],
            row["target"],
        )
        for row in ordered
    ]


async def _store(session: Session, plan: AdmissionPlan) -> list[ReleasedRun]:
    limits = {candidate.run_id: candidate.limits for candidate in plan.admitted}
    # Runs are locked by id, as in every transaction that locks several runs. A run that was cancelled meanwhile is not
    # returned.
    rows = await session.fetch(ADMIT, [(run_id,) for run_id in sorted(limits)])
    if rows:
        await add_slots(session, [(row["id"], limits[row["id"]]) for row in rows])
        await session.fetch(REMOVE_WAITS, ids=session.texts(sorted(row["id"] for row in rows)))
        await place_admitted(session, [row["id"] for row in rows if row["shares"] and row["attempt"] == 0])
        await _append(session, rows, EventType.ADMITTED)
    if plan.moved:
        await session.fetch(MOVE_WAITS, sorted(_moved(plan)))
    await session.fetch(SET_TURNS, sorted(plan.last_turn.items()))
    return [released(row) for row in rows]


def _moved(plan: AdmissionPlan) -> Iterable[tuple[str, str, str, bool]]:
    for candidate, limit in plan.moved:
        evicts = limit.strategy is ConcurrencyStrategy.CANCEL_RUNNING
        yield candidate.run_id, limit.key, candidate.turn_under(limit), evicts


async def _append(session: Session, rows: Sequence[Row], kind: EventType) -> None:
    data = '{{"status":"{}"}}'
    await append(
        session,
        [(row["id"], row["last_seq"], row["attempt"], kind.value, None, data.format(row["status"])) for row in rows],
    )


def released(row: Row) -> ReleasedRun:
    """Return a changed run, for the notices after the commit."""
    return ReleasedRun(row["id"], row["lane"], Status(row["status"]), row["last_seq"])


async def _to_evict(session: Session, keys: Collection[str]) -> list[str]:
    """Return the oldest admitted runs, as many as there are waiting runs that cancel one."""
    counts = await session.fetch(EVICTING, [(key,) for key in sorted(keys)])
    waiting = {row["key"]: row["waiting"] for row in counts if row["waiting"]}
    if not waiting:
        return []
    holders: dict[str, list[Row]] = {}
    for row in await session.fetch(HOLDERS, [(key,) for key in sorted(waiting)]):
        holders.setdefault(row["key"], []).append(row)
    chosen: list[str] = []
    for key, rows in holders.items():
        # Runs whose cancellation was requested earlier are included: their slots are about to be freed.
        rows.sort(key=lambda row: (row["cancel_requested_at"] is None, row["accepted_at"], row["id"]))
        chosen += [row["id"] for row in rows[: waiting[key]] if row["cancel_requested_at"] is None]
    return chosen


async def keys_with_room(database: Database, after: str) -> tuple[list[str], str]:
    """Return the limits, among some after a key, that may admit a waiting run or cancel another run for one.

    Also return the key after which the next call continues. The limits are read without locks.
    """

    async def work(session: Session) -> tuple[list[str], str]:
        keys = [row["key"] for row in await session.fetch(WAITING_KEYS, after=after)]
        queues = await _read_queues(session, keys, 1)
        room = await read_room(session, _keys_of(queues))
        chosen = [key for key, turns in queues.items() if any(_may_move(turn, key, room) for turn in turns)]
        evicting = [row["key"] for row in await session.fetch(EVICTING, [(key,) for key in keys]) if row["waiting"]]
        return sorted({*chosen, *evicting}), keys[-1] if len(keys) == MAX_KEYS else ""

    return await database.transact(work)


def _may_move(turn: Sequence[Candidate], key: str, room: Room) -> bool:
    full = room.first_full(turn[0].limits) if turn else None
    return bool(turn) and (full is None or full.key != key)


async def forget_turns(session: Session) -> None:
    """Delete the last turns of limits without waiting runs."""
    await session.fetch(FORGET_TURNS)
