"""How a claim distributes the free slots of a worker.

Ready runs wait in queues: one per lane for the tenants without limits, and one per lane and tenant for those with
limits, so that a tenant at its limit does not block the runs behind it. A lane's cap bounds all of its queues together,
and a tenant's `max_running` bounds its queues in all lanes together.

A quarantined run was executed by several workers that were lost. It may share a worker with few other runs, or with
none, so that a run that kills its worker is identified and its neighbors are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class QueueKey(NamedTuple):
    """A queue of ready runs. `tenant` is None for the queue of all tenants without limits."""

    lane: str
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class SlotCap:
    """A bound in the whole cluster. `most` None means no bound."""

    most: int | None = None
    running: int = 0

    @property
    def free(self) -> int | None:
        """Slots left; None without a bound."""
        return None if self.most is None else max(0, self.most - self.running)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue that has ready runs, read under its locks. `head` is the rank of its first run."""

    key: QueueKey
    head: int
    enabled: bool = True
    lane_cap: SlotCap = SlotCap()
    tenant_cap: SlotCap = SlotCap()


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A ready run that may share a worker with at most `max_neighbors` other runs. The head of its queue is its rank.

    `needs_room`: it has waited too long, so this worker claims nothing else until the run fits.
    """

    run_id: str
    max_neighbors: int
    queue: Queue
    needs_room: bool = False


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """The load of a worker. `max_active` is the bound that its quarantined runs set; None without one."""

    active: int = 0
    max_active: int | None = None


@dataclass(frozen=True, slots=True)
class Shares:
    """The runs to claim: quarantined runs by id, and a number of runs from each queue."""

    quarantined: tuple[str, ...]
    queues: dict[QueueKey, int]


class _Room:
    """The remaining slots of lanes and tenants during the distribution."""

    def __init__(self, queues: Sequence[Queue]) -> None:
        self._lanes = {queue.key.lane: queue.lane_cap.free for queue in queues}
        self._tenants = {queue.key.tenant: queue.tenant_cap.free for queue in queues if queue.key.tenant is not None}

    def of(self, key: QueueKey) -> int | None:
        bounds = [self._lanes[key.lane], None if key.tenant is None else self._tenants[key.tenant]]
        return min((free for free in bounds if free is not None), default=None)

    def take(self, key: QueueKey, count: int) -> None:
        free = self._lanes[key.lane]
        if free is not None:
            self._lanes[key.lane] = free - count
        if key.tenant is not None and (free := self._tenants[key.tenant]) is not None:
            self._tenants[key.tenant] = free - count


def share_slots(
    queues: Sequence[Queue], slots: int, quarantined: Sequence[Quarantined] = (), load: WorkerLoad | None = None
) -> Shares:
    """Decide what to claim with these free slots.

    Quarantined runs are taken first if they fit, oldest first. The other slots are spread evenly over lanes, so that a
    long backlog in one cannot hold up the others, and inside a lane over its queues; the one whose head waits longest
    comes first.
    """
    room = _Room([*queues, *(run.queue for run in quarantined)])
    taken, active, max_active, is_blocked = _take_quarantined(quarantined, slots, load or WorkerLoad(), room)
    left = slots - len(taken)
    if max_active is not None:
        left = min(left, max_active - active)
    shares = {} if is_blocked or left <= 0 else _spread(queues, left, room)
    return Shares(tuple(taken), shares)


def _take_quarantined(
    quarantined: Sequence[Quarantined], slots: int, load: WorkerLoad, room: _Room
) -> tuple[list[str], int, int | None, bool]:
    taken: list[str] = []
    active, max_active, is_blocked = load.active, load.max_active, False
    for run in sorted(quarantined, key=lambda run: run.queue.head):
        if not run.queue.enabled or room.of(run.queue.key) == 0:
            continue
        most = run.max_neighbors + 1 if max_active is None else min(max_active, run.max_neighbors + 1)
        if len(taken) < slots and active < most:
            taken.append(run.run_id)
            room.take(run.queue.key, 1)
            active, max_active = active + 1, most
        else:
            is_blocked = is_blocked or run.needs_room
    return taken, active, max_active, is_blocked


def _spread(queues: Sequence[Queue], slots: int, room: _Room) -> dict[QueueKey, int]:
    """Return even shares over lanes, and inside each lane over its queues."""
    lanes: dict[str, list[Queue]] = {}
    can_take = [queue for queue in queues if queue.enabled and room.of(queue.key) != 0]
    for queue in sorted(can_take, key=lambda queue: queue.head):
        lanes.setdefault(queue.key.lane, []).append(queue)
    shares = {queue.key: 0 for of_lane in lanes.values() for queue in of_lane}
    left = slots
    while left > 0 and lanes:
        even = max(1, left // len(lanes))
        for lane, of_lane in list(lanes.items()):
            given = _spread_in_lane(of_lane, min(even, left), room, shares)
            left -= given
            if given < even:
                # The queues of this lane are at their limits; the rest of its share goes to the other lanes.
                del lanes[lane]
            if left == 0:
                break
    return {key: count for key, count in shares.items() if count > 0}


def _spread_in_lane(queues: Sequence[Queue], slots: int, room: _Room, shares: dict[QueueKey, int]) -> int:
    open_queues, left = list(queues), slots
    while left > 0 and open_queues:
        even = max(1, left // len(open_queues))
        still_open: list[Queue] = []
        for queue in open_queues:
            free = room.of(queue.key)
            count = min(even, left) if free is None else min(even, left, free)
            shares[queue.key] += count
            room.take(queue.key, count)
            left -= count
            if count and (free is None or count < free):
                still_open.append(queue)
        open_queues = still_open
    return slots - left
