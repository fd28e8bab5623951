"""Triggers: the events that start a run, its target and its input."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from runlane.definitions.schema.base import DefinitionModel, Id
from runlane.domain.flow_control import FlowControl
from runlane.domain.run import AGENT, MAX_PRIORITY, MIN_PRIORITY, ORCHESTRATION
from runlane.domain.tenant_event import LISTEN_PATTERN, MAX_EVENT_NAME, RUN_EVENT, RUN_EVENTS


class Trigger(DefinitionModel):
    """Starts a run for each event with a name, if a condition is true."""

    id: Id = Field(description="Name in URLs and files.")
    name: str = Field("", max_length=200, description="For people; the id if empty.")
    description: str = Field("", max_length=20_000, description="For people.")
    enabled: bool = Field(True, description="A disabled trigger ignores events.")
    event: Annotated[str, Field(pattern=LISTEN_PATTERN, max_length=MAX_EVENT_NAME)] = Field(
        description="Name of the event, or a prefix and `.*`. `run.completed`, `run.failed`, `run.cancelled` and "
        "`run.*` are the ends of runs."
    )
    run_target: str | None = Field(
        None,
        max_length=300,
        description="For ends of runs: only runs of this target, which is a task's name, orchestration:ID or agent:ID.",
    )
    condition: str | None = Field(
        None, max_length=20_000, description="An expression over `event`. Without it, every event starts a run."
    )
    task: str | None = Field(None, min_length=1, max_length=200, description="The registered task to start.")
    orchestration_id: Id | None = Field(None, description="The orchestration to start.")
    agent_id: Id | None = Field(None, description="The agent to start.")
    message: str = Field("", max_length=200_000, description="Message of the run. Placeholders over `event`.")
    input: dict[str, Any] = Field(
        default_factory=dict, description="Input of the run. Placeholders over `event`, such as {{event.data.order}}."
    )
    priority: int = Field(0, ge=MIN_PRIORITY, le=MAX_PRIORITY, description="Priority of the run.")
    ordering_key: str | None = Field(
        None, max_length=512, description="Ordering key of the run. Placeholders over `event`, such as {{event.key}}."
    )
    flow_control: FlowControl | None = Field(
        None, description="Rules for the runs that it starts. They replace the target's rules of the same name."
    )

    @property
    def target(self) -> str:
        """The target of the runs."""
        if self.orchestration_id is not None:
            return f"{ORCHESTRATION}{self.orchestration_id}"
        return f"{AGENT}{self.agent_id}" if self.agent_id is not None else self.task or ""

    @property
    def listens_to_runs(self) -> bool:
        """Whether the trigger uses the ends of runs as events."""
        return self.enabled and self.event.startswith(RUN_EVENT)

    @model_validator(mode="after")
    def _complete(self) -> Trigger:
        if sum(value is not None for value in (self.task, self.orchestration_id, self.agent_id)) != 1:
            raise ValueError("give exactly one of task, orchestration_id and agent_id")
        if self.event.startswith(RUN_EVENT) and self.event not in (*RUN_EVENTS, f"{RUN_EVENT}*"):
            raise ValueError(f"the ends of runs are {', '.join(RUN_EVENTS)} and {RUN_EVENT}*")
        if self.run_target is not None and not self.event.startswith(RUN_EVENT):
            raise ValueError("run_target is only for events that begin with run.")
        if self.task is not None and self.message:
            raise ValueError("a task has no message; use input")
        if self.agent_id is not None and not self.message.strip():
            raise ValueError("an agent needs a message")
        return self
