"""What a client gets that the model has no value for: live events, pages of logs, the state of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from runlane.domain.run import Status


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """Something that is told live and not stored, such as progress. It has no number and is not repeated.

    It belongs to its attempt: when `worker_picked_up` comes with a higher one, what was shown of the older is void.
    `truncated` belongs to none: the events before its `first_seq` are no longer kept.
    """

    run_id: str
    type: str
    attempt: int
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    seq: Literal[None] = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a run. `outcome` is None while it runs."""

    attempt: int
    worker_id: str | None
    started_at_us: int | None
    ended_at_us: int | None
    outcome: str | None
    error: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Step:
    """Something that a run has finished and will not do again; a task's checkpoint is one.

    Steps of an orchestration have the rest too. `attempt` is 0 for one that a fork has taken over.
    """

    path: str
    kind: str
    attempt: int
    output: Any
    ended_at_us: int
    step_id: str | None = None
    outcome: str | None = None
    route: str | None = None
    input: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    tries: int = 0
    cost_usd: float | None = None
    tokens: int = 0
    duration_us: int | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """Something that a run waits for. `kind` is human, time or event, or sent: an event that came too early.

    `path` tells which execution of which step asks; `answered_at_us` is set until a worker has taken the answer up.
    `answerable_by` is `tenant`, or `platform` for a question that only platform admins may answer.
    """

    run_id: str
    target: str
    tenant: str
    path: str
    step_id: str
    kind: str
    name: str
    prompt: str | None
    fields: tuple[Mapping[str, Any], ...]
    context: Any
    opened_at_us: int
    due_at_us: int | None
    answered_at_us: int | None
    answered_by: str | None
    answerable_by: str = "tenant"


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a run's log: an event in words. `index` is the event's number less one, so that it never shifts."""

    index: int
    event: str
    message: str
    at: str
    attempt: int
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class Logs:
    """A page of a run's log. `expected_log_count` is known when the run has ended; `truncated` when lines are gone."""

    lines: tuple[LogLine, ...]
    next_index: int
    first_index: int
    status: Status
    expected_log_count: int | None
    truncated: bool
    runner_id: str | None

    @property
    def complete(self) -> bool:
        """True when nothing comes after this page."""
        return self.expected_log_count is not None and self.next_index >= self.expected_log_count


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker as the API shows it. `targets` is what it can execute, None if it does not tell.

    A key of a tenant gets no `host`, `pid` and `targets`, and `active` counts the runs of that tenant.
    """

    id: str
    status: str
    host: str | None
    pid: int | None
    version: str
    lanes: tuple[str, ...]
    capacity: int
    active: int
    started_at_us: int
    heartbeat_at_us: int
    ended_at_us: int | None
    targets: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An administrative change. `old` is None for something new, `new` for something deleted."""

    id: str
    at_us: int
    actor: str
    tenant: str
    action: str
    subject: str
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """Whether a server can work, and what it says about its parts."""

    ready: bool
    parts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatPost:
    """An accepted turn of a conversation. `replayed` means that its idempotency key had been used before."""

    session_id: str
    turn: int
    run_id: str
    status: Status
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """Something that was said. `status` is what became of its turn; `error` why a failed one has no answer."""

    turn: int
    role: Literal["user", "assistant"]
    content: Any
    status: Status
    run_id: str
    at_us: int
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ChatState:
    """A conversation. Its status is that of the turn that is at work or next, or else of the last one."""

    session_id: str
    agent_id: str
    tenant: str
    status: Status
    turns: int
    created_at_us: int
    last_message_at_us: int
    worker_id: str | None
    messages: tuple[ChatMessage, ...] = ()
