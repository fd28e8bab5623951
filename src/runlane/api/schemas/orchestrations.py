"""Requests that start, answer and fork runs of orchestrations, and the waits of runs."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from runlane.api.schemas.fields import Key, RequestModel, StepPath
from runlane.api.schemas.tasks import RunBody


class OrchestrationRequest(RunBody):
    """Run an orchestration."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"message": "Write a competitive analysis of Redis vs Kafka"}]}
    )

    message: str = Field(default="", description="The request; steps refer to it as `user_input`.")
    input: dict[str, Any] = Field(default_factory=dict[str, Any], description="Further values of the initial state.")
    session_id: Key | None = Field(default=None, description="The conversation of the run, stored with it.")


class ForkRun(RequestModel):
    """Start a new run with the steps that another run had finished before a step."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"from_step": "draft", "state": {"tone": "dry"}}]})

    from_step: StepPath = Field(description="The path of a recorded step, which is performed again.")
    state: dict[str, Any] = Field(default_factory=dict[str, Any], description="Changes of the state at that step.")
    latest: bool = Field(default=False, description="Use the current versions, if the recorded steps match them.")


class SendEvent(RequestModel):
    """An event for the step that waits for it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"data": {"amount": 7}}]})

    data: Any = Field(default=None, description="The output of the step.")
