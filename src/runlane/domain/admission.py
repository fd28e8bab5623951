"""Decide which waiting runs are admitted. A run takes a slot of each of its concurrency limits, or none.

The waiting runs of a limit are in turns, one for each key that competes for it. Turns alternate, so a key with ten
thousand waiting runs delays another one by one run. Inside a turn the order is fixed when a run begins to wait.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from runlane.domain.concurrency import ConcurrencyLimit
from runlane.domain.run import rank

# The turn of runs that compete with no other key.
NO_TURN: Final = "*"
# Runs that have started before are ahead of all runs that have not started.
_STARTED_US: Final = 1 << 61


class Candidate(NamedTuple):
    """A waiting run: the limit under which it waits, its turn and place there, and all its limits."""

    run_id: str
    key: str
    turn: str
    place: int
    limits: tuple[ConcurrencyLimit, ...]
    fairness_key: str | None = None
    target: str = ""

    def turn_under(self, limit: ConcurrencyLimit) -> str:
        """Return the turn of the run if it waits under this one of its limits."""
        return turn_of(self.limits, limit.key, self.fairness_key, self.target)

    def limits_after(self) -> Sequence[ConcurrencyLimit]:
        """Return its limits after the one under which it waits."""
        keys = [limit.key for limit in self.limits]
        return self.limits[keys.index(self.key) + 1 :]


@dataclass(slots=True)
class Room:
    """How many runs are admitted under each key, and the numbers of shared limits. A deleted limit has no bound."""

    admitted: dict[str, int] = field(default_factory=dict[str, int])
    shared: dict[str, int] = field(default_factory=dict[str, int])
    waited: set[str] = field(default_factory=set[str])

    def most(self, limit: ConcurrencyLimit) -> int | None:
        """Return the number of a limit; None without a bound."""
        return self.shared.get(limit.key) if limit.limit is not None else limit.max_running

    def is_full(self, limit: ConcurrencyLimit) -> bool:
        """Return whether a limit admits no further run."""
        most = self.most(limit)
        return most is not None and self.admitted.get(limit.key, 0) >= most

    def first_full(self, limits: Iterable[ConcurrencyLimit]) -> ConcurrencyLimit | None:
        """Return the first of these limits that is full."""
        for limit in limits:
            if self.is_full(limit):
                return limit
        return None

    def nothing_waits(self, limits: Iterable[ConcurrencyLimit]) -> bool:
        """Return whether no run waits for one of these limits."""
        return not self.waited or not any(limit.key in self.waited for limit in limits)

    def take(self, limits: Iterable[ConcurrencyLimit]) -> None:
        """Take a slot of each limit."""
        for limit in limits:
            self.admitted[limit.key] = self.admitted.get(limit.key, 0) + 1

    def give_back(self, limits: Iterable[ConcurrencyLimit]) -> None:
        """Give back a slot of each limit."""
        for limit in limits:
            self.admitted[limit.key] -= 1


@dataclass(slots=True)
class AdmissionPlan:
    """The decisions about some waiting runs.

    `moved` wait under another limit from now on. `last_turn` is the turn that was served last. `more` are keys that may
    have room for further runs, `unlocked` those with runs whose limits are not all locked.
    """

    admitted: list[Candidate] = field(default_factory=list[Candidate])
    moved: list[tuple[Candidate, ConcurrencyLimit]] = field(default_factory=list[tuple[Candidate, ConcurrencyLimit]])
    last_turn: dict[str, str] = field(default_factory=dict[str, str])
    more: set[str] = field(default_factory=set[str])
    unlocked: set[str] = field(default_factory=set[str])


Queues = Mapping[str, Sequence[Sequence[Candidate]]]


class Admissions:
    """Decides about the first runs of some limits. A queue has one list for each turn, in the order of the turns."""

    def __init__(self, queues: Queues, room: Room, locked: Collection[str]) -> None:
        self.plan = AdmissionPlan()
        self._queues = queues
        self._room = room
        self._locked = locked
        self._heads = {
            (one.key, one.turn): one.place for turns in queues.values() for turn in turns for one in turn[:1]
        }

    def decide(self) -> AdmissionPlan:
        """Serve each limit until it is full, one run of each turn after another."""
        for key, turns in self._queues.items():
            left = [list(reversed(turn)) for turn in turns if turn]
            while left and not self._room_is_used(key, left):
                pass
        return self.plan

    def _room_is_used(self, key: str, turns: list[list[Candidate]]) -> bool:
        """Serve the next run of each turn; return True if the limit is full. A turn that cannot continue is removed."""
        for turn in list(turns):
            candidate = turn[-1]
            if any(limit.key not in self._locked for limit in candidate.limits):
                self.plan.unlocked.add(key)
                turns.remove(turn)
                continue
            full = self._room.first_full(candidate.limits)
            if full is not None and full.key == key:
                return True
            if not self._settle(candidate, full):
                turns.remove(turn)
                continue
            turn.pop()
            if not turn:
                turns.remove(turn)
                self.plan.more.add(key)
        return False

    def _settle(self, candidate: Candidate, full: ConcurrencyLimit | None) -> bool:
        """Admit a run or let it wait under another limit; return False if it stays where it is."""
        if full is not None:
            self.plan.moved.append((candidate, full))
            return True
        contended = next((limit for limit in candidate.limits_after() if limit.key in self._room.waited), None)
        if contended is None:
            self._admit(candidate)
            return True
        # Other keys wait for that limit, so this key takes its turn there, with one run at a time.
        turn = candidate.turn_under(contended)
        head = self._heads.get((contended.key, turn))
        if head is not None and head <= candidate.place:
            return False
        self._heads[contended.key, turn] = candidate.place
        self.plan.moved.append((candidate, contended))
        self.plan.more.add(contended.key)
        return True

    def _admit(self, candidate: Candidate) -> None:
        self._room.take(candidate.limits)
        self.plan.admitted.append(candidate)
        self.plan.last_turn[candidate.key] = candidate.turn
        # The next run of its key may take its turn now.
        self.plan.more |= {limit.key for limit in candidate.limits} & self._room.waited


def turn_of(limits: Sequence[ConcurrencyLimit], key: str, fairness_key: str | None, target: str) -> str:
    """Return the turn of a run that waits under a limit: its own key, if the limit is not the limit of that key."""
    if limits[0].key != key:
        return limits[0].key
    if fairness_key:
        return fairness_key
    return target if limits[0].limit is not None else NO_TURN


def wait_order(accepted_at_us: int, priority: int, *, started: bool) -> int:
    """Return the place of a run in its turn: by priority and age, after the runs that have started before."""
    return rank(accepted_at_us, priority) - (_STARTED_US if started else 0)
