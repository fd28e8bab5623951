"""What requests and answers look like. Requests are strict: a wrong type or an unknown field is refused by name.

Answers are written straight from our own values; the models here document them, and the fuzz test holds both together.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from runlane.model.lane import POLL_BOUNDS_MS, SLOT_BOUNDS
from runlane.model.run import MAX_PRIORITY, MIN_PRIORITY, OnDead, Status
from runlane.model.tenant import MAX_LIMIT, MAX_RATE
from runlane.requests import MAX_DELAY_SECONDS, MAX_KEY
from runlane.store.keys import MAX_LIFE_SECONDS

MAX_BATCH = 1000
MAX_BULK = 1000
MAX_PAGE = 1000
MAX_WAIT_SECONDS = 60

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Neither NUL nor a control character can be part of a name or key; Postgres could not even store the first.
_CLEAN = r"^[^\x00-\x1f\x7f]*$"


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is not text") from None
    return value


def moment_us(value: str) -> int:
    """A moment in microseconds since the epoch; without an offset it is UTC."""
    at = datetime.fromisoformat(value)
    return ((at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def _moment(value: str) -> str:
    try:
        moment_us(value)
    except (ValueError, OverflowError):
        raise ValueError("a moment is written 2026-01-31T12:00:00Z") from None
    return value


Moment = Annotated[str, StringConstraints(max_length=40), AfterValidator(_moment)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=MAX_KEY, pattern=_CLEAN), AfterValidator(_text)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=_CLEAN), AfterValidator(_text)]
Priority = Annotated[int, Field(ge=MIN_PRIORITY, le=MAX_PRIORITY, description="Higher runs earlier.")]
At = Annotated[str, Field(description="RFC 3339, UTC.", examples=["2026-01-31T12:00:00.000000Z"])]


class Request(BaseModel):
    """Base of every request body."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Answer(BaseModel):
    """Base of every answer."""


class RunOptions(Request):
    """How a run is to be executed."""

    input: dict[str, Any] = Field(default_factory=dict[str, Any], description="The task's arguments by name.")
    priority: Priority = 0
    ordering_key: Key | None = Field(default=None, description="Runs with one key run one at a time, in order.")
    on_dead: str = Field(
        default=OnDead.SKIP.value,
        pattern="^(skip|block)$",
        description="What a failed run does to those behind it under its ordering key.",
    )
    delay_seconds: float = Field(default=0.0, ge=0, le=MAX_DELAY_SECONDS)
    hold: bool = Field(default=False, description="Wait for an approval.")


class RunRequest(RunOptions):
    """Run a task."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"input": {"text": "hello"}, "priority": 10, "ordering_key": "customer-7"}]}
    )


class BatchItem(RunOptions):
    """One run of a batch."""

    task: Name
    idempotency_key: Key | None = None


class BatchRequest(Request):
    """Accept many runs at once: all of them or none."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"runs": [{"task": "greet", "input": {"text": "hello"}}]}]}
    )

    runs: list[BatchItem] = Field(min_length=1, max_length=MAX_BATCH)


class PatchRun(Request):
    """Move a waiting run forward or back."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"priority": 50}]})

    priority: Priority


class ResumeRun(Request):
    """Answer a paused run. A text becomes {"response": text}."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"response": {"approved": True}}]})

    response: dict[str, Any] | str = Field(default_factory=dict[str, Any])


class BulkFilter(Request):
    """Which runs; at least one field must be given."""

    status: list[Annotated[Status, Field(strict=False)]] | None = Field(default=None, min_length=1, max_length=9)
    target: Name | None = None
    lane: Name | None = None
    tenant: Name | None = None
    ordering_key: Key | None = None
    accepted_from: Moment | None = Field(default=None, description="RFC 3339; this moment or later.")
    accepted_before: Moment | None = Field(default=None, description="RFC 3339; before this moment.")
    text: Name | None = Field(default=None, description="Part of the id, target, ordering key or progress note.")


class BulkRequest(Request):
    """Change every run that fits, at most `limit` of them, newest first."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"filter": {"lane": "default", "status": ["queued"]}, "limit": 100}]}
    )

    filter: BulkFilter
    limit: int = Field(default=100, ge=1, le=MAX_BULK)
    dry_run: bool = Field(default=False, description="Only count.")


class PatchLane(Request):
    """What to change of a lane; at least one field must be given."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_slots": 4}, {"enabled": False}]})

    enabled: bool | None = None
    max_slots: int | None = Field(
        default=None, ge=SLOT_BOUNDS[0], le=SLOT_BOUNDS[1], description="Null removes the cap, 0 pauses the lane."
    )
    poll_interval_ms: int | None = Field(default=None, ge=POLL_BOUNDS_MS[0], le=POLL_BOUNDS_MS[1])


class Links(Answer):
    """An accepted run."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "run_id": "run_0192f3a1b2c37abc8def0123456789ab",
                    "status": "queued",
                    "lane": "default",
                    "replayed": False,
                    "stream_url": "/api/v2/runs/run_0192f3a1b2c37abc8def0123456789ab/stream",
                    "status_url": "/api/v2/runs/run_0192f3a1b2c37abc8def0123456789ab/status",
                }
            ]
        }
    )

    run_id: str
    status: Status
    lane: str
    stream_url: str
    status_url: str
    replayed: bool = Field(description="The Idempotency-Key had been used before; this is that run.")


class Batch(Answer):
    """The accepted runs, in the order of the request."""

    runs: list[Links]
    count: int


class RunSummary(Answer):
    """A run without its input and result."""

    run_id: str
    target: str
    lane: str
    tenant: str
    status: Status
    priority: int
    attempt: int
    failures: int
    losses: int
    max_attempts: int
    ordering_key: str | None
    accepted_at: At
    due_at: At | None
    started_at: At | None
    ended_at: At | None
    cancel_requested_at: At | None
    worker_id: str | None
    first_seq: int
    last_seq: int
    progress: float | None
    progress_note: str | None


class RunWhole(RunSummary):
    """A run with its input, and its result or error."""

    input: dict[str, Any] | None
    result: Any
    error: dict[str, Any] | None


class RunPage(Answer):
    """A page of runs, newest first."""

    runs: list[RunSummary]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null on the last one.")


class RunStatus(Answer):
    """Where a run stands, with the fields of the orchestration API."""

    run_id: str
    orchestration_id: str = Field(description="What the run executes.")
    status: Status
    current_step_id: str | None
    waiting_for_human: bool
    worker_id: str | None
    total_cost_usd: float
    total_tokens_used: int
    started_at: At | None
    ended_at: At | None
    attempt: int
    progress: float | None
    progress_note: str | None


class Attempt(Answer):
    """An attempt that has ended, or with outcome null the one that runs."""

    attempt: int
    worker_id: str | None
    started_at: At | None
    ended_at: At | None
    outcome: str | None
    error: dict[str, Any] | None


class Attempts(Answer):
    """Every attempt of a run, in order."""

    run_id: str
    attempts: list[Attempt]


class Step(Answer):
    """A recorded step."""

    path: str
    kind: str
    attempt: int
    output: Any
    ended_at: At


class Steps(Answer):
    """The recorded steps of a run."""

    run_id: str
    steps: list[Step]


class EventsPage(Answer):
    """Events of a run in order, as its stream gives them."""

    run_id: str
    count: int
    events: list[dict[str, Any]] = Field(
        examples=[[{"type": "queued", "seq": 1, "run_id": "run_1", "attempt": 0, "at": "2026-01-31T12:00:00.000000Z"}]]
    )
    next_after: int = Field(description="Pass it as `after` for what follows.")
    last_seq: int
    first_seq: int = Field(description="The oldest event that is kept.")


class LogsPage(Answer):
    """Log lines from an index on. Every event of the run is one line, so indexes never shift.

    A poller passes `next_index` as `since` and ends when `expected_log_count` is there and `next_index` has reached it.
    """

    run_id: str
    logs: list[dict[str, Any]] = Field(
        examples=[[{"index": 2, "event": "log", "message": "hello", "at": "2026-01-31T12:00:00.000000Z"}]]
    )
    next_index: int
    status: Status
    expected_log_count: int | None = Field(description="How many lines there are in all, once the run has ended.")
    first_index: int = Field(description="The oldest line that is kept.")
    truncated: bool = Field(description="Lines at or after `since` are no longer kept.")
    runner_id: str | None
    log_source: str


class Changed(Answer):
    """What became of a run."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"run_id": "run_0192f3a1b2c37abc8def0123456789ab", "status": "queued"}]}
    )

    run_id: str
    status: str
    stream_url: str


class Bulk(Answer):
    """What a bulk change did."""

    matched: int = Field(description="Runs that fit, at most `limit`.")
    changed: int
    refused: int = Field(description="Runs whose state did not allow it any more.")
    more: bool = Field(description="More runs may fit: ask again.")
    run_ids: list[str]
    dry_run: bool


class TaskView(Answer):
    """A task that runs can be asked for."""

    name: str
    lane: str
    signature: str
    max_attempts: int
    timeout_seconds: float | None
    description: str


class Tasks(Answer):
    """The registered tasks."""

    tasks: list[TaskView]


class LaneView(Answer):
    """A lane with what runs and waits in it."""

    name: str
    enabled: bool
    max_slots: int | None
    poll_interval_ms: int
    kinds: list[str]
    running: int
    queued: int
    running_jobs: int
    queued_jobs: int
    slots_available: int | None
    oldest_queued_at: At | None


class Lanes(Answer):
    """Every lane."""

    lanes: list[LaneView]


class LaneChanged(Answer):
    """A lane after a change, and what changed."""

    lane: LaneView
    changed: dict[str, dict[str, Any]] = Field(examples=[{"max_slots": {"old": None, "new": 4}}])


class WorkerView(Answer):
    """A worker."""

    worker_id: str
    hostname: str
    pid: int
    status: str
    version: str
    lanes: list[str]
    active_jobs: int
    max_jobs: int
    started_at: At
    last_heartbeat: At
    ended_at: At | None


class Workers(Answer):
    """The workers, newest first."""

    workers: list[WorkerView]


class Alive(Answer):
    """The process runs."""

    status: str
    version: str


class Ready(Answer):
    """Whether the process can do its work, and what it found."""

    status: str
    database: str
    schema_revision: str | None
    redis: str = Field(description="For information: nothing needs Redis to be there.")
    problems: list[str]


class JobCancelled(Answer):
    """A cancelled run, as the worker administration tells it."""

    job_id: str
    cancelled: bool
    message: str


class JobPriority(Answer):
    """A run's priority before and after."""

    job_id: str
    old_priority: int
    new_priority: int


class WorkerStatus(Answer):
    """Slots, what runs, and what waits."""

    running_jobs: list[dict[str, Any]]
    running_count: int
    queued_by_type: list[dict[str, Any]]
    total_queued: int
    lanes: list[dict[str, Any]]
    total_slots: int = Field(description="Of enabled lanes that have a cap.")
    slots_in_use: int


class Me(Answer):
    """Who asks."""

    key_id: str
    name: str
    tenant: str
    role: str
    permissions: list[str]


class NewKey(Request):
    """Make a key. It can do no more than the key that makes it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ci", "role": "developer"}]})

    name: Name
    role: Name
    tenant: Name | None = Field(default=None, description="For platform admins; others make keys of their own.")
    expires_in_seconds: float | None = Field(default=None, gt=0, le=MAX_LIFE_SECONDS)


class KeyView(Answer):
    """A key; the key itself is stored nowhere."""

    id: str
    name: str
    key_prefix: str
    tenant: str
    role: str
    created_at: At
    expires_at: At | None
    revoked_at: At | None
    last_used_at: At | None
    created_by: str


class ShownKey(KeyView):
    """A new key, the only time it can be seen."""

    key: str | None = Field(description="sk-rl- and 64 hex digits; null when the request was repeated.")


class KeyPage(Answer):
    """A page of keys."""

    keys: list[KeyView]
    next_cursor: str | None


class NewTenant(Request):
    """Make a tenant; a limit that is left out does not exist."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"id": "acme", "name": "Acme", "max_queued": 1000}]})

    id: Name
    name: Name | None = None
    max_queued: int | None = Field(default=None, ge=0, le=MAX_LIMIT)
    max_running: int | None = Field(default=None, ge=0, le=MAX_LIMIT)
    rate_per_second: float | None = Field(default=None, ge=0.001, le=MAX_RATE)


class PatchTenant(Request):
    """What to change; a limit that is null is removed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"rate_per_second": 50.0}]})

    name: Name | None = None
    enabled: bool | None = None
    max_queued: int | None = Field(default=None, ge=0, le=MAX_LIMIT)
    max_running: int | None = Field(default=None, ge=0, le=MAX_LIMIT)
    rate_per_second: float | None = Field(default=None, ge=0.001, le=MAX_RATE)


class TenantView(Answer):
    """A tenant with its limits; null is no limit."""

    id: str
    name: str
    enabled: bool
    max_queued: int | None
    max_running: int | None
    rate_per_second: float | None
    created_at: At
    updated_at: At


class Tenants(Answer):
    """Tenants by id."""

    tenants: list[TenantView]


class PutRole(Request):
    """What a custom role allows."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"permissions": ["runs:read", "audit:read"]}]})

    permissions: list[Name] = Field(min_length=1, max_length=20)


class RoleView(Answer):
    """A role and what it allows."""

    name: str
    permissions: list[str]
    built_in: bool


class Roles(Answer):
    """The roles."""

    roles: list[RoleView]


class AuditEntryView(Answer):
    """One administrative change."""

    id: str
    at: At
    actor: str
    tenant: str
    action: str
    subject: str
    old: dict[str, Any] | None
    new: dict[str, Any] | None


class AuditPage(Answer):
    """A page of changes."""

    entries: list[AuditEntryView]
    next_cursor: str | None
