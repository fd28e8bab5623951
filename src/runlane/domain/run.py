"""The statuses of a run, the transitions between them, and its rank in the queue.

This is the only description of the life cycle of a run. The store makes each transition with one conditional statement;
the tables here list the transitions and what may cause them, and the tests compare both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from runlane.domain.tenant import DEFAULT_TENANT
from runlane.errors import RateQuota


class Status(StrEnum):
    """Where a run stands."""

    AWAITING_APPROVAL = "awaiting_approval"
    SCHEDULED = "scheduled"
    BLOCKED = "blocked"
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """True when the run has ended: only a retry changes it."""
        return self in TERMINAL

    @property
    def waiting(self) -> bool:
        """True when the run is neither finished nor held by a worker."""
        return self in WAITING


# The target of a run that executes an orchestration begins with this; the rest is the orchestration's id.
ORCHESTRATION: Final = "orchestration:"
# The same for a run that asks one agent.
AGENT: Final = "agent:"


class Cause(StrEnum):
    """What makes a run change its status."""

    APPROVE = "approve"
    DUE = "due"
    KEY_FREE = "key_free"
    CLAIM = "claim"
    FINISH = "finish"
    FAIL = "fail"
    RETRY = "retry"
    HAND_BACK = "hand_back"
    LOST = "lost"
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    REVIVE = "revive"


class OnDead(StrEnum):
    """What a run that fails for good does to the runs behind it under the same ordering key."""

    SKIP = "skip"
    BLOCK = "block"


TERMINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
WAITING: Final = frozenset({Status.AWAITING_APPROVAL, Status.SCHEDULED, Status.BLOCKED, Status.QUEUED, Status.PAUSED})

# An approved or released run goes to the first of these that still applies.
_READY: Final = frozenset({Status.AWAITING_APPROVAL, Status.SCHEDULED, Status.QUEUED})

TRANSITIONS: Final[Mapping[tuple[Status, Cause], frozenset[Status]]] = {
    (Status.AWAITING_APPROVAL, Cause.APPROVE): frozenset({Status.SCHEDULED, Status.QUEUED}),
    (Status.AWAITING_APPROVAL, Cause.CANCEL): frozenset({Status.CANCELLED}),
    (Status.SCHEDULED, Cause.DUE): frozenset({Status.QUEUED}),
    (Status.SCHEDULED, Cause.CANCEL): frozenset({Status.CANCELLED}),
    (Status.BLOCKED, Cause.APPROVE): frozenset({Status.BLOCKED}),
    (Status.BLOCKED, Cause.KEY_FREE): _READY,
    (Status.BLOCKED, Cause.CANCEL): frozenset({Status.CANCELLED}),
    (Status.QUEUED, Cause.CLAIM): frozenset({Status.RUNNING}),
    (Status.QUEUED, Cause.CANCEL): frozenset({Status.CANCELLED}),
    (Status.RUNNING, Cause.FINISH): frozenset({Status.COMPLETED}),
    (Status.RUNNING, Cause.FAIL): frozenset({Status.FAILED}),
    # A requeue of a cancelled run ends it: a cancelled run is never executed again.
    (Status.RUNNING, Cause.RETRY): frozenset({Status.QUEUED, Status.SCHEDULED, Status.CANCELLED}),
    (Status.RUNNING, Cause.HAND_BACK): frozenset({Status.QUEUED, Status.CANCELLED}),
    (Status.RUNNING, Cause.LOST): frozenset({Status.QUEUED, Status.SCHEDULED, Status.FAILED, Status.CANCELLED}),
    (Status.RUNNING, Cause.PAUSE): frozenset({Status.PAUSED, Status.CANCELLED}),
    (Status.RUNNING, Cause.CANCEL): frozenset({Status.CANCELLED}),
    (Status.PAUSED, Cause.RESUME): frozenset({Status.QUEUED}),
    (Status.PAUSED, Cause.DUE): frozenset({Status.QUEUED}),
    (Status.PAUSED, Cause.CANCEL): frozenset({Status.CANCELLED}),
    # An operator's retry of a dead run; behind others of its ordering key it has to wait again.
    (Status.FAILED, Cause.REVIVE): frozenset({Status.QUEUED, Status.BLOCKED}),
}


def may_become(status: Status, cause: Cause) -> frozenset[Status]:
    """The statuses that this cause may lead to; empty when it does not apply."""
    return TRANSITIONS.get((status, cause), frozenset())


MIN_PRIORITY: Final = -100
MAX_PRIORITY: Final = 100

# One point of priority is worth this much waiting. Large enough that a human's run jumps a backlog of hours,
# finite so that the oldest low run is overtaken for at most 200 steps.
PRIORITY_STEP_US: Final = 600 * 1_000_000


def rank(accepted_at_us: int, priority: int) -> int:
    """The place in a lane: smaller runs first. It never changes while the run waits, so nothing is re-sorted."""
    return accepted_at_us - priority * PRIORITY_STEP_US


@dataclass(frozen=True, slots=True)
class Run:
    """A run. Times are microseconds since the epoch, by the clock of the database.

    `started_at_us` is the start of its first attempt, `claimed_at_us` that of its latest one.
    """

    id: str
    target: str
    lane: str
    status: Status
    priority: int
    attempt: int
    failures: int
    losses: int
    max_attempts: int
    ordering_key: str | None
    accepted_at_us: int
    due_at_us: int | None
    claimed_at_us: int | None
    ended_at_us: int | None
    cancel_requested_at_us: int | None
    worker_id: str | None
    last_seq: int
    progress: float | None = None
    progress_note: str | None = None
    input: dict[str, Any] | None = None
    result: Any = None
    error: dict[str, Any] | None = None
    state: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    tenant: str = DEFAULT_TENANT
    first_seq: int = 1
    children: list[dict[str, str]] | None = None
    blocked_by: str | None = None
    started_at_us: int | None = None

    @property
    def tries(self) -> int:
        """The number of tries: one, plus one for each failure or lost worker. 0 before the first start.

        `attempt` also counts claims after a pause, a handover or a `Retry`, which are not new tries. Retrying a failed
        run starts the count again.
        """
        if self.attempt == 0:
            return 0
        # The last failure of a failed run was not followed by another try.
        counted = self.failures + self.losses
        return max(1, counted) if self.status is Status.FAILED else counted + 1

    @property
    def orchestration(self) -> str | None:
        """The id of the orchestration that it executes; None for a run of a task."""
        return self.target.removeprefix(ORCHESTRATION) if self.target.startswith(ORCHESTRATION) else None

    @property
    def agent(self) -> str | None:
        """The id of the agent that it asks; None for every other run."""
        return self.target.removeprefix(AGENT) if self.target.startswith(AGENT) else None

    @property
    def has_steps(self) -> bool:
        """Whether it goes from step to step, and may wait between them: an orchestration, or an agent."""
        return self.target.startswith((ORCHESTRATION, AGENT))

    @property
    def definition(self) -> str | None:
        """The version of the orchestration, or agent, that it is pinned to."""
        pinned: Mapping[str, str] = (self.plan or {}).get("pins") or {}
        return pinned.get(self.target)

    @property
    def forked_from(self) -> dict[str, str] | None:
        """The run that it is a fork of, and the path of the step from which on it goes its own way."""
        fork: Mapping[str, str] | None = (self.plan or {}).get("fork")
        return None if fork is None else {"run_id": fork["run_id"], "from_step": fork["path"]}

    @property
    def parent(self) -> dict[str, str] | None:
        """The run that has called it as a tool, and the place of the call there."""
        parent: Mapping[str, str] | None = (self.plan or {}).get("parent")
        return None if parent is None else dict(parent)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to an accepted request. `replayed` means that its idempotency key had been used before.

    `quota` is what is left of the tenant's rate, if it has one.
    """

    run_id: str
    status: Status
    lane: str
    replayed: bool = False
    quota: RateQuota | None = None

    @property
    def id(self) -> str:
        """The run's id."""
        return self.run_id
