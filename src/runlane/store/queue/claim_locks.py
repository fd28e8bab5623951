"""The locks of a claim, which make the bounds of lanes and tenants exact.

A claim takes the locks before it reads the rows of lanes and tenants, so it locks the lanes and tenants of previous
claims. A lane or tenant whose lock is not held, or is held shared although it has a bound, is served by the next claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runlane.domain.ids import lock_key
from runlane.store.queue.claim_survey import MAX_LANES, MAX_QUARANTINED, MAX_QUEUES
from runlane.store.sql.statement import Dialect, Row

# The number of lanes that a new worker locks before its first survey.
FIRST_LOCKS = 16
# A claim locks at most this many lanes, and as many tenants: all that one survey can return.
_MAX_LOCKS = MAX_LANES + MAX_QUEUES + MAX_QUARANTINED


@dataclass(slots=True)
class LaneMemory:
    """The state that a worker keeps between claims.

    `names` and `tenants` are those that had ready runs, the latest last; `capped` and `capped_tenants` have a bound.
    """

    only: frozenset[str] | None = None
    names: dict[str, None] = field(default_factory=dict[str, None])
    capped: set[str] = field(default_factory=set[str])
    tenants: dict[str, None] = field(default_factory=dict[str, None])
    capped_tenants: set[str] = field(default_factory=set[str])
    poll_seconds: float = 0.25
    # Where the next survey starts; empty unless there are more queues than one survey reads.
    lane_after: str = ""
    queue_after: tuple[str, str] = ("", "")

    def remember(self, rows: Sequence[Row]) -> None:
        """Note the lanes and tenants of surveyed queues, for the locks of the next claim."""
        _remember(self.names, self.capped, [(row["lane"], row["max_slots"]) for row in rows])
        limited = [(row["tenant"], row["max_running"]) for row in rows if row["tenant"] is not None]
        _remember(self.tenants, self.capped_tenants, limited)


def _remember(names: dict[str, None], capped: set[str], seen: Sequence[tuple[str, int | None]]) -> None:
    """Keep the latest, so that the number of locks stays bounded."""
    for name, bound in seen:
        names.pop(name, None)
        names[name] = None
        (capped.discard if bound is None else capped.add)(name)
    for name in list(names)[:-_MAX_LOCKS]:
        del names[name]
        capped.discard(name)


def lane_lock(name: str) -> int:
    """Return the lock of a lane."""
    return lock_key("lane", name)


def slots_lock(tenant: str) -> int:
    """Return the lock under which the running runs of a tenant with limits are counted."""
    return lock_key("slots", tenant)


def worker_lock(worker_id: str) -> int:
    """Return the lock between the claims of a worker and the reaper."""
    return lock_key("worker", worker_id)


class ClaimLocks:
    """The locks of one claim: exclusive where there is a bound, shared otherwise."""

    def __init__(self, memory: LaneMemory, dialect: Dialect) -> None:
        self._lanes = {name: name in memory.capped for name in memory.names}
        self._tenants = {name: name in memory.capped_tenants for name in memory.tenants}
        self._unneeded = dialect == "sqlite"
        both = [(lane_lock(name), capped) for name, capped in self._lanes.items()]
        both += [(slots_lock(name), capped) for name, capped in self._tenants.items()]
        self.exclusive = [key for key, capped in both if capped]
        self.shared = [key for key, capped in both if not capped]

    def covers(self, row: Row) -> bool:
        """Whether a surveyed queue may be served under the locks that were taken before."""
        return self._unneeded or (
            _is_held(self._lanes, row["lane"], row["max_slots"])
            and (row["tenant"] is None or _is_held(self._tenants, row["tenant"], row["max_running"]))
        )


def _is_held(held: Mapping[str, bool], name: str, bound: int | None) -> bool:
    exclusive = held.get(name)
    return exclusive is not None and (exclusive or bound is None)
