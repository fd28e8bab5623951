"""Runs, workers and conversations as readers see them: the same values from App, API and Client.

Times are microseconds since the epoch by the database's clock; in JSON they are RFC 3339.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field, with_config

from runlane.domain.run import Claims, RunSummary, Status, Tries
from runlane.domain.wait import Question
from runlane.domain.wire import WIRE, Duration, Timestamp
from runlane.errors import RateQuota

NextCursor = Annotated[str | None, Field(description="Pass it as `cursor` for the next page; null on the last one.")]


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """A live event that is not stored, such as progress. It has no number and is not repeated.

    It belongs to its attempt: after a `worker_picked_up` with a higher attempt, output of older ones is void.
    `truncated` belongs to none: the events before its `first_seq` are no longer kept.
    """

    run_id: str
    type: str
    attempt: int
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    seq: Literal[None] = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class RunPage:
    """A page of runs, newest first."""

    runs: tuple[RunSummary, ...]
    next_cursor: NextCursor
    truncated: Annotated[
        bool, Field(description="The page ends early because enough runs were examined; older ones may match.")
    ]
    examined_from_us: Annotated[
        Timestamp | None,
        Field(alias="examined_from", description="Of a truncated page: runs accepted before this were not examined."),
    ] = None


@dataclass(frozen=True, slots=True)
class StatusCount:
    """The number of runs in a status."""

    status: Status
    count: int
    exact: Annotated[bool, Field(description="False when there are more: counting stops at 1,000.")]


@dataclass(frozen=True, slots=True)
class GroupCount:
    """The number of open runs of a lane or a target, by status."""

    name: str
    counts: tuple[StatusCount, ...]


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The number of runs in each status; with `group`, also of the open runs of each lane or target."""

    counts: tuple[StatusCount, ...]
    groups: tuple[GroupCount, ...] = ()


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class RunStatus:
    """The progress of a run. A task has no steps and uses no tokens."""

    run_id: str
    orchestration_id: Annotated[str, Field(description="The orchestration; for other runs the target.")]
    status: Status
    current_step_id: Annotated[str | None, Field(description="The step that asks, or the step that started last.")]
    waiting_for_human: bool
    worker_id: str | None
    total_cost_usd: Annotated[
        float | None, Field(description="The cost so far of model answers with a known price; null if none has one.")
    ]
    total_tokens_used: Annotated[int, Field(description="So far, including steps that are running.")]
    started_at_us: Annotated[Timestamp | None, Field(alias="started_at", description="The start of the first attempt.")]
    ended_at_us: Annotated[Timestamp | None, Field(alias="ended_at")]
    attempt: Claims
    tries: Tries
    progress: float | None
    progress_note: str | None
    blocked_by: Annotated[str | None, Field(description="The run that holds the ordering key of a blocked run.")]


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a run. `outcome` is null while it runs."""

    attempt: int
    worker_id: str | None
    started_at_us: Annotated[Timestamp | None, Field(alias="started_at")]
    ended_at_us: Annotated[Timestamp | None, Field(alias="ended_at")]
    outcome: str | None
    error: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class StartResult:
    """One start that a batch has collected, and its part of the result.

    A result that is an object with the ids of the starts as keys is divided; any other result belongs to every start.
    """

    run_id: str
    start_id: str
    status: Status
    result: Any = None
    error: Mapping[str, Any] | None = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class AttemptList:
    """Every attempt of a run, in order."""

    run_id: str
    attempts: tuple[Attempt, ...]


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class Step:
    """A recorded step, which the run does not repeat. A task's checkpoint is one; the last nine fields need steps."""

    path: Annotated[str, Field(description="Identifies the execution of the step; a fork may begin here.")]
    kind: str
    attempt: Annotated[int, Field(description="0 for a step that a fork has copied.")]
    output: Any
    ended_at_us: Annotated[Timestamp, Field(alias="ended_at")]
    step_id: str | None = None
    outcome: Annotated[
        str | None,
        Field(description="`done`, `retrying`, `handled` (failed and routed to its error step) or `failed`."),
    ] = None
    route: Annotated[str | None, Field(description="The route that the step chose.")] = None
    input: Annotated[
        Mapping[str, Any] | None,
        Field(description="The part of the state that it read: `input_keys`, and by path the values in its templates."),
    ] = None
    error: Mapping[str, Any] | None = None
    tries: Annotated[int, Field(description="Tries that failed.")] = 0
    cost_usd: Annotated[float | None, Field(description="The cost of all its tries.")] = None
    tokens: int = 0
    duration_us: Annotated[
        Duration | None, Field(alias="duration_seconds", description="The duration of its last try, without waits.")
    ] = None
    started_at_us: Annotated[
        Timestamp | None,
        Field(alias="started_at", description="The start of the first try; null if that event is no longer kept."),
    ] = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class StepPage:
    """The recorded steps of a run, in order."""

    run_id: str
    steps: tuple[Step, ...]
    next_cursor: NextCursor


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class WaitList:
    """The open waits of a run, oldest first."""

    run_id: str
    waits: tuple[Question, ...]


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class InboxPage:
    """A page of questions to people, oldest first."""

    questions: tuple[Question, ...]
    next_cursor: NextCursor


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a run's log: an event as text. `index` is the event's number less one, so it never shifts."""

    index: int
    event: str
    message: str
    at: str
    attempt: int
    fields: Annotated[Mapping[str, Any], Field(exclude_if=lambda fields: not fields)] = field(
        default_factory=dict[str, Any]
    )
    traceback: Annotated[str | None, Field(exclude_if=lambda traceback: traceback is None)] = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class Logs:
    """A page of a run's log. Every event of the run is one line, so indexes never shift.

    A poller passes `next_index` as `since` until `expected_log_count` is set and `next_index` has reached it.
    """

    lines: Annotated[tuple[LogLine, ...], Field(alias="logs")]
    next_index: int
    first_index: Annotated[int, Field(description="The oldest line that is kept.")]
    status: Status
    expected_log_count: Annotated[
        int | None, Field(description="The number of lines in total, once the run has ended.")
    ]
    truncated: Annotated[bool, Field(description="Lines at or after `since` are no longer kept.")]
    runner_id: str | None
    run_id: str = ""
    log_source: str = "database"

    @property
    def complete(self) -> bool:
        """Return whether no line follows this page."""
        return self.expected_log_count is not None and self.next_index >= self.expected_log_count


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker. A tenant sees neither its host nor its targets, and of its runs only the tenant's own."""

    id: Annotated[str, Field(alias="worker_id")]
    status: str
    host: Annotated[str | None, Field(alias="hostname", description="For platform admins.")]
    pid: Annotated[int | None, Field(description="For platform admins.")]
    version: str
    lanes: tuple[str, ...]
    capacity: Annotated[int, Field(alias="max_jobs")]
    active: Annotated[
        int, Field(alias="active_jobs", description="Runs that it executes; for a tenant, its own among them.")
    ]
    started_at_us: Annotated[Timestamp, Field(alias="started_at")]
    heartbeat_at_us: Annotated[Timestamp, Field(alias="last_heartbeat")]
    ended_at_us: Annotated[Timestamp | None, Field(alias="ended_at")]
    targets: Annotated[
        tuple[str, ...] | None,
        Field(description="For platform admins: what it can execute; null if it does not report it."),
    ] = None
    lease_until_us: Annotated[int | None, Field(exclude=True)] = None
    drain_requested_at_us: Annotated[
        Timestamp | None,
        Field(
            alias="drain_requested_at",
            description="Since when an operator has drained the worker: it claims no more runs.",
        ),
    ] = None
    drain_until_us: Annotated[
        Timestamp | None,
        Field(
            alias="drain_until",
            description="The end of the grace period of a stopping worker. Runs that are still executing then continue "
            "elsewhere. Null for a worker that an operator drains, because its process keeps running.",
        ),
    ] = None
    health_address: Annotated[
        str | None, Field(description="For platform admins: where /health, /ready and /metrics answer.")
    ] = None
    memory_bytes: Annotated[
        int | None, Field(description="For platform admins: resident memory of its process, at its last heartbeat.")
    ] = None
    cpu_percent: Annotated[
        float | None,
        Field(description="For platform admins: processor time between its last two heartbeats; 100 is one core."),
    ] = None
    python: Annotated[str | None, Field(description="For platform admins: the version of Python.")] = None

    def without_process(self, active: int) -> WorkerInfo:
        """Return the worker as a tenant sees it: without its host and process, and with only the tenant's runs."""
        return replace(
            self, host=None, pid=None, targets=None, health_address=None, memory_bytes=None, cpu_percent=None,
            python=None, active=active,
        )  # fmt: skip


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class WorkerLoss:
    """An attempt that ended because its worker died or was cut off. `status` is that of the run now."""

    run_id: str
    target: str
    status: Status
    attempt: int
    started_at_us: Annotated[Timestamp, Field(alias="started_at")]
    ended_at_us: Annotated[Timestamp, Field(alias="ended_at", description="When the loss was noticed.")]


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """Whether a server is ready, and its reports about its components."""

    ready: bool
    parts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatPost:
    """An accepted turn of a conversation. `replayed` means that its idempotency key had been used before.

    `quota` is what is left of the tenant's rate, if it has one; only App returns it.
    """

    session_id: str
    turn: int
    run_id: str
    status: Status
    replayed: bool = False
    quota: Annotated[RateQuota | None, Field(exclude=True)] = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a conversation. A failed or cancelled turn has a message and no answer."""

    turn: int
    role: Literal["user", "assistant"]
    content: Annotated[Any, Field(description="A string; an object if the agent answers with one.")]
    status: Annotated[Status, Field(description="The status of the turn.")]
    run_id: str
    at_us: Annotated[Timestamp, Field(alias="at")]
    error: Annotated[
        Mapping[str, Any] | None, Field(description="Why a failed turn has no answer; with the user's message.")
    ] = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class ChatSummary:
    """A conversation in a list."""

    session_id: str
    agent_id: str
    tenant: str
    status: Annotated[
        Status, Field(description="The status of the running or next turn; if none is open, of the last one.")
    ]
    turns: int
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    last_message_at_us: Annotated[Timestamp, Field(alias="last_message_at")]
    worker_id: Annotated[str | None, Field(description="The worker of the open turn.")]


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class ChatState(ChatSummary):
    """A conversation with its newest messages."""

    messages: Annotated[
        tuple[ChatMessage, ...], Field(description="The newest ones, oldest first; all of them: /messages.")
    ] = ()


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class ChatPage:
    """A page of conversations, newest first."""

    sessions: tuple[ChatSummary, ...]
    next_cursor: NextCursor


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class MessagePage:
    """A page of messages, oldest first."""

    session_id: str
    messages: tuple[ChatMessage, ...]
    next_after: Annotated[int, Field(description="The last turn of the page. Pass it as `after` for the next one.")]
    last_turn: int
