"""The statuses of a run, the transitions between them, and its rank in the queue.

This is the only description of the life cycle of a run. The store makes each transition with one conditional statement;
the tables here list the transitions and what may cause them, and the tests compare both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag, StrEnum
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, computed_field, with_config
from typing_extensions import TypedDict

from runlane.domain.flow_keys import StartOutcome
from runlane.domain.start_tags import PRIORITY_SECONDS
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.wait import Question
from runlane.domain.wire import WIRE, Timestamp
from runlane.errors import RateQuota


class Status(StrEnum):
    """The status of a run."""

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


# The target of a run that executes an orchestration begins with this prefix; the rest is the orchestration's id.
ORCHESTRATION: Final = "orchestration:"
# The same for a run of an agent.
AGENT: Final = "agent:"
# The same for a run of a graph of LangGraph.
GRAPH: Final = "graph:"


class RunHook(IntFlag):
    """Further work at the end of a run, in the same transaction. Most runs have none, so it costs nothing."""

    SCHEDULE = 2  # a schedule started it
    DEPENDENTS = 4  # other runs start after it
    WEBHOOK = 8  # it has a webhook URL of its own
    TRIGGERS = 16  # its end is an event that may start other runs
    DEAD_LETTER = 32  # it repeats a run that failed for good, so its end settles a dead letter
    AFTER = 64  # it starts after other runs
    WAITS_FOR_RUNS = 128  # it is blocked until enough of them have ended; removed when that is decided
    COLLECTS = 256  # it collects the inputs of a batch; removed when it is due and its input is complete
    LIMITS = 512  # it has concurrency limits: it is queued only with a slot of each
    THREAD = 1024  # it belongs to a thread


class Cause(StrEnum):
    """The cause of a change of a run's status."""

    APPROVE = "approve"
    DUE = "due"
    KEY_FREE = "key_free"
    DEPENDENCIES_MET = "dependencies_met"
    ADMIT = "admit"
    WITHDRAW = "withdraw"
    CLAIM = "claim"
    FINISH = "finish"
    FAIL = "fail"
    RETRY = "retry"
    HAND_BACK = "hand_back"
    LOST = "lost"
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    EXPIRE = "expire"
    REVIVE = "revive"


class AfterOn(StrEnum):
    """The ends of the runs in `after` after which a run may start."""

    SUCCESS = "success"  # all of them have completed
    END = "end"  # all of them have ended
    ANY_FAILED = "any_failed"  # one of them has failed


class OnDead(StrEnum):
    """The effect of a run that fails for good on the runs behind it under the same ordering key."""

    SKIP = "skip"
    BLOCK = "block"


TERMINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
WAITING: Final = frozenset({Status.AWAITING_APPROVAL, Status.SCHEDULED, Status.BLOCKED, Status.QUEUED, Status.PAUSED})

# An approved or released run goes to the first of these that still applies.
_READY: Final = frozenset({Status.AWAITING_APPROVAL, Status.SCHEDULED, Status.QUEUED})

# A run with concurrency limits is blocked until they admit it, wherever another one is queued without a slot.
_QUEUED: Final = frozenset({Status.QUEUED, Status.BLOCKED})

TRANSITIONS: Final[Mapping[tuple[Status, Cause], frozenset[Status]]] = {
    (Status.AWAITING_APPROVAL, Cause.APPROVE): _QUEUED | {Status.SCHEDULED},
    (Status.AWAITING_APPROVAL, Cause.CANCEL): frozenset({Status.CANCELLED}),
    (Status.AWAITING_APPROVAL, Cause.EXPIRE): frozenset({Status.CANCELLED}),
    (Status.SCHEDULED, Cause.DUE): _QUEUED,
    (Status.SCHEDULED, Cause.CANCEL): frozenset({Status.CANCELLED}),
    (Status.SCHEDULED, Cause.EXPIRE): frozenset({Status.CANCELLED}),
    (Status.BLOCKED, Cause.APPROVE): frozenset({Status.BLOCKED}),
    # It stays blocked while it waits for other runs, for its ordering key, or for its concurrency limits.
    (Status.BLOCKED, Cause.KEY_FREE): _READY | {Status.BLOCKED},
    (Status.BLOCKED, Cause.DEPENDENCIES_MET): _READY | {Status.BLOCKED},
    (Status.BLOCKED, Cause.ADMIT): frozenset({Status.QUEUED}),
    (Status.BLOCKED, Cause.CANCEL): frozenset({Status.CANCELLED}),
    (Status.BLOCKED, Cause.EXPIRE): frozenset({Status.CANCELLED}),
    # A concurrency limit was lowered below the number of admitted runs.
    (Status.QUEUED, Cause.WITHDRAW): frozenset({Status.BLOCKED}),
    (Status.QUEUED, Cause.CLAIM): frozenset({Status.RUNNING}),
    (Status.QUEUED, Cause.CANCEL): frozenset({Status.CANCELLED}),
    (Status.QUEUED, Cause.EXPIRE): frozenset({Status.CANCELLED}),
    (Status.RUNNING, Cause.FINISH): frozenset({Status.COMPLETED}),
    (Status.RUNNING, Cause.FAIL): frozenset({Status.FAILED}),
    # A requeue of a cancelled run ends it: a cancelled run is never executed again.
    (Status.RUNNING, Cause.RETRY): frozenset({Status.QUEUED, Status.SCHEDULED, Status.CANCELLED}),
    (Status.RUNNING, Cause.HAND_BACK): frozenset({Status.QUEUED, Status.CANCELLED}),
    (Status.RUNNING, Cause.LOST): frozenset({Status.QUEUED, Status.SCHEDULED, Status.FAILED, Status.CANCELLED}),
    (Status.RUNNING, Cause.PAUSE): frozenset({Status.PAUSED, Status.CANCELLED}),
    (Status.RUNNING, Cause.CANCEL): frozenset({Status.CANCELLED}),
    (Status.PAUSED, Cause.RESUME): _QUEUED,
    (Status.PAUSED, Cause.DUE): _QUEUED,
    (Status.PAUSED, Cause.CANCEL): frozenset({Status.CANCELLED}),
    # An operator's retry of a failed run; it waits again behind others of its ordering key.
    (Status.FAILED, Cause.REVIVE): frozenset({Status.QUEUED, Status.SCHEDULED, Status.BLOCKED}),
}


def may_become(status: Status, cause: Cause) -> frozenset[Status]:
    """Return the statuses that this cause may lead to; empty when it does not apply."""
    return TRANSITIONS.get((status, cause), frozenset())


MIN_PRIORITY: Final = -100
MAX_PRIORITY: Final = 100

# One point of priority is worth this much waiting, unless the lane has another setting. The value is large enough for
# an urgent run to overtake a backlog of hours. It is finite, so that the oldest run of low priority is overtaken for at
# most 200 steps.
PRIORITY_STEP_US: Final = PRIORITY_SECONDS * 1_000_000


def rank(accepted_at_us: int, priority: int) -> int:
    """Return the rank in a lane: lower ranks run first. It never changes while the run waits."""
    return accepted_at_us - priority * PRIORITY_STEP_US


Claims = Annotated[int, Field(description="The number of claims, the fence: claims after a pause count too.")]
Tries = Annotated[
    int, Field(description="1 for the first start, and one more for each failure or lost worker that it survived.")
]
_CallPath = Annotated[str, Field(description="The location of the call: the step's path, and the call within it.")]


class ForkOrigin(TypedDict):
    """The source of a fork, and the path of the step at which it begins."""

    run_id: str
    from_step: str


class RunDependencies(TypedDict):
    """The runs that a run starts after."""

    runs: dict[str, Status | None]
    on: AfterOn
    open: int
    reason: str | None


class WaitingReason(TypedDict):
    """Why a run does not proceed: a code for programs, a sentence for people, and some of the runs that it waits for.

    `refs` names the other objects of the reason: `lane`, `tenant`, `target`, the `path` of a step, an `event`.
    """

    code: str
    message: str
    runs: list[str]
    refs: dict[str, Any]


class ParentCall(TypedDict):
    """The run that called this one as a tool."""

    run_id: str
    path: _CallPath


@dataclass(frozen=True, slots=True)
class ChildRun:
    """A run that another one has called as a tool."""

    run_id: str
    target: str
    status: Status
    path: _CallPath


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run without its input and result. Times are microseconds since the epoch, by the database's clock."""

    id: Annotated[str, Field(alias="run_id")]
    target: str
    lane: str
    status: Status
    priority: int
    attempt: Claims
    failures: int
    losses: int
    max_attempts: int
    ordering_key: str | None
    accepted_at_us: Annotated[Timestamp, Field(alias="accepted_at")]
    due_at_us: Annotated[Timestamp | None, Field(alias="due_at")]
    started_at_us: Annotated[Timestamp | None, Field(alias="started_at", description="The start of the first attempt.")]
    claimed_at_us: Annotated[
        Timestamp | None, Field(alias="claimed_at", description="The start of the latest attempt.")
    ]
    ended_at_us: Annotated[Timestamp | None, Field(alias="ended_at")]
    cancel_requested_at_us: Annotated[Timestamp | None, Field(alias="cancel_requested_at")]
    worker_id: str | None
    last_seq: int
    first_seq: int = 1
    tenant: str = DEFAULT_TENANT
    progress: float | None = None
    progress_note: str | None = None
    tags: Annotated[tuple[str, ...], Field(description="Sorted; see `PATCH /runs/{run_id}/tags`.")] = ()
    total_cost_usd: Annotated[
        float | None, Field(description="The cost of its model calls so far; null for a task, or if no price is known.")
    ] = None
    total_tokens: Annotated[int | None, Field(description="The tokens of its model calls so far; null for a task.")] = (
        None
    )

    @computed_field(description="1 for the first start, and one more for each failure or lost worker that it survived.")
    @property
    def tries(self) -> int:
        """Return how often it has been tried: once, and again after each failure or lost worker; 0 before its start.

        `attempt` also counts claims after a pause, a handover or a `Retry`, which are not new tries. Retrying a failed
        run restarts the count.
        """
        if self.attempt == 0:
            return 0
        # No other try followed the last failure of a failed run.
        counted = self.failures + self.losses
        return max(1, counted) if self.status is Status.FAILED else counted + 1

    @property
    def orchestration(self) -> str | None:
        """Return the id of the orchestration that it executes, or None."""
        return self.target.removeprefix(ORCHESTRATION) if self.target.startswith(ORCHESTRATION) else None

    @property
    def agent(self) -> str | None:
        """Return the id of the agent that it executes, or None."""
        return self.target.removeprefix(AGENT) if self.target.startswith(AGENT) else None

    @property
    def has_steps(self) -> bool:
        """Return whether it executes steps and may wait between them: an orchestration, or an agent."""
        return self.target.startswith((ORCHESTRATION, AGENT))


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class Run(RunSummary):
    """A run with its input, and its result or error. In a list, the fields below have their defaults.

    `plan` is stored with the run: its pinned versions and its origin. Clients get `definition`, `forked_from` and
    `parent` instead.
    """

    input: dict[str, Any] | None = None
    result: Any = None
    error: dict[str, Any] | None = None
    state: Annotated[
        dict[str, Any] | None, Field(description="The state of a run with steps, after the steps that have ended.")
    ] = None
    waiting_for: Annotated[tuple[Question, ...], Field(description="Its open waits.")] = ()
    definition: Annotated[
        str | None, Field(description="The version of the orchestration or agent that the run is pinned to.")
    ] = None
    forked_from: Annotated[ForkOrigin | None, Field(description="Where the run was forked from.")] = None
    parent: Annotated[ParentCall | None, Field(description="The run that has called this one as a tool.")] = None
    children: Annotated[
        tuple[ChildRun, ...],
        Field(description="The runs that this one has called as tools, in order; at most the first 100."),
    ] = ()
    blocked_by: Annotated[str | None, Field(description="The run that holds the ordering key of a blocked run.")] = None
    waiting_reason: Annotated[
        WaitingReason | None,
        Field(description="The reason why an open run does not proceed."),
    ] = None
    schedule_id: Annotated[str | None, Field(description="The schedule that has started the run.")] = None
    slot_us: Annotated[
        Timestamp | None, Field(alias="slot", description="The slot of the schedule that the run was started for.")
    ] = None
    previous_slot_us: Annotated[
        Timestamp | None, Field(alias="previous_slot", description="The previous slot of the schedule.")
    ] = None
    expires_at_us: Annotated[
        Timestamp | None, Field(alias="expires_at", description="A run that has not started by then is cancelled.")
    ] = None
    after: Annotated[
        RunDependencies | None,
        Field(description="The runs that it waits for, each with its final status, and the number of open ones."),
    ] = None
    origin: Annotated[
        dict[str, Any] | None,
        Field(description="What started the run, if it was not a caller: a trigger and its event."),
    ] = None
    session_id: Annotated[str | None, Field(description="The conversation that the run is a turn of.")] = None
    trace_id: Annotated[
        str | None, Field(description="The trace that the run belongs to; null if it was accepted without one.")
    ] = None
    plan: Annotated[dict[str, Any] | None, Field(exclude=True)] = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The result of an accepted request. `replayed` means that its idempotency key had been used before.

    `quota` is what is left of the tenant's rate, if it has one. `outcome` is what flow control made of the start: with
    `skipped` and `dropped` no run exists, `run_id` is empty and `status` is `cancelled`. `start_id` names this start in
    the input and the result of a batch. `replaced_run_id` is the run that was cancelled for this one.
    """

    run_id: Annotated[str, BeforeValidator(lambda run_id: run_id or "")]
    status: Status
    lane: str
    replayed: bool = False
    quota: RateQuota | None = None
    outcome: StartOutcome = StartOutcome.STARTED
    start_id: str | None = None
    due_at_us: Annotated[Timestamp | None, Field(alias="due_at")] = None
    replaced_run_id: str | None = None
    # How long after the decision that is, by the database's clock.
    due_in_us: Annotated[int | None, Field(exclude=True)] = None

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.run_id

    @property
    def affected(self) -> bool:
        """Whether flow control has something to report about the start."""
        return self.outcome is not StartOutcome.STARTED or not (
            self.start_id is None and self.due_at_us is None and self.replaced_run_id is None
        )

    @property
    def debounced(self) -> bool:
        """Whether the start became part of a run that an earlier start has begun."""
        return self.outcome is StartOutcome.DEBOUNCED
