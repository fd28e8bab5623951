"""What is asked for when a run is to start, and what the answer is."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from runlane.api.schemas.fields import MAX_BATCH, Key, Name, Priority, RequestModel, ResponseModel
from runlane.domain.run import OnDead, Status
from runlane.submit.tasks import MAX_DELAY_SECONDS


class RunOptions(RequestModel):
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


class TaskRunRequest(RunOptions):
    """Run a task."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"input": {"text": "hello"}, "priority": 10, "ordering_key": "customer-7"}]}
    )


class BatchItem(RunOptions):
    """One run of a batch."""

    task: Name
    idempotency_key: Key | None = None


class BatchRequest(RequestModel):
    """Accept many runs at once: all of them or none."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"runs": [{"task": "greet", "input": {"text": "hello"}}]}]}
    )

    runs: list[BatchItem] = Field(min_length=1, max_length=MAX_BATCH)


class Links(ResponseModel):
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


class Batch(ResponseModel):
    """The accepted runs, in the order of the request."""

    runs: list[Links]
    count: int


class TaskView(ResponseModel):
    """A task that runs can be asked for."""

    name: str
    lane: str
    signature: str
    max_attempts: int
    timeout_seconds: float | None
    description: str


class Tasks(ResponseModel):
    """The registered tasks."""

    tasks: list[TaskView]
