"""Requests that start runs, and their responses."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from pydantic import ConfigDict, Field

from runlane.api.schemas.fields import (
    MAX_BATCH,
    At,
    Delay,
    FairnessKey,
    Key,
    Name,
    Priority,
    RequestModel,
    ResponseModel,
    RunId,
    Tags,
    WebhookSecretText,
    WebhookUrl,
)
from runlane.api.schemas.listing import Listing
from runlane.domain.example_values import example_of
from runlane.domain.flow_control import FlowControl
from runlane.domain.flow_keys import StartOutcome
from runlane.domain.options import RunOptions
from runlane.domain.run import AfterOn, OnDead, Status
from runlane.domain.task import Task
from runlane.submit.tasks import MAX_PARENTS

# The options of a body and their defaults, in the order of RunOptions, whose first field comes from a header.
_BODY_OPTIONS: Final = [(name, RunOptions._field_defaults[name]) for name in RunOptions._fields[1:]]


class OptionsBody(RequestModel):
    """A request body whose fields include options of a run."""

    def options(self, idempotency_key: str | None) -> RunOptions:
        """Return the options, with the idempotency key of the request."""
        get = self.__dict__.get
        return RunOptions._make([idempotency_key, *[get(name, default) for name, default in _BODY_OPTIONS]])


class RunBody(OptionsBody):
    """The input and options of a run."""

    input: dict[str, Any] = Field(default_factory=dict[str, Any], description="The task's arguments by name.")
    priority: Priority = 0
    ordering_key: Key | None = Field(default=None, description="Runs with the same key run one at a time, in order.")
    on_dead: str = Field(
        default=OnDead.SKIP.value,
        pattern="^(skip|block)$",
        description="Whether the runs behind this one under its ordering key continue or stay blocked if it fails.",
    )
    delay_seconds: Delay = 0.0
    hold: bool = Field(default=False, description="Wait for an approval.")
    fairness_key: FairnessKey | None = None
    after: tuple[RunId, ...] = Field(
        default=(), strict=False, max_length=MAX_PARENTS, description="Start after these runs of the same tenant."
    )
    after_on: str = Field(
        default=AfterOn.SUCCESS.value,
        pattern="^(success|end|any_failed)$",
        description="The condition: all parents have completed, all have ended, or one has failed. If it can no "
        "longer become true, the run is cancelled.",
    )
    tags: Tags = ()
    webhook_url: WebhookUrl | None = None
    webhook_secret: WebhookSecretText | None = None
    flow_control: FlowControl | None = Field(
        default=None, description="Rules in place of those that the target declares by the same name; null removes one."
    )


class TaskRunRequest(RunBody):
    """Run a task."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"input": {"text": "hello"}, "priority": 10, "ordering_key": "customer-7"}]}
    )


class BatchItem(RunBody):
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

    run_id: str | None
    status: Status
    lane: str
    stream_url: str | None
    status_url: str | None
    replayed: bool = Field(description="The Idempotency-Key was used before; the response names that run.")
    outcome: StartOutcome | None = Field(
        default=None, description="With flow control: the result of the start. Without a run, run_id is null."
    )
    debounced: bool | None = Field(default=None, description="With debounce: the run stands for several starts.")
    start_id: str | None = Field(default=None, description="With batch: its id in the run's input and result.")
    due_at: At | None = Field(default=None, description="With throttle, debounce and batch: when the run is due.")
    replaced_run_id: str | None = Field(default=None, description="With unique: the run that this one replaces.")


class Batch(ResponseModel):
    """The accepted runs, in the order of the request."""

    runs: list[Links]
    count: int


@dataclass(frozen=True, slots=True)
class TaskView:
    """A registered task."""

    name: str
    lane: str
    signature: str
    max_attempts: int
    timeout_seconds: float | None
    description: str
    input_schema: Annotated[dict[str, Any], Field(description="JSON Schema of its arguments; empty if unknown.")]
    example: Annotated[dict[str, Any], Field(description="An example input, as close to the schema as possible.")]

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return the public fields of a task."""
        about, schema = inspect.getdoc(task.function) or "", task.input_schema
        example: dict[str, Any] = example_of(schema) if schema else {}
        return cls(
            task.name, task.lane, task.signature, task.max_attempts, task.timeout_seconds, about, schema, example
        )


TASKS = Listing("tasks", TaskView)
