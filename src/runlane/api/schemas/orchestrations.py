"""Starting, answering and forking runs of orchestrations, and what they wait for."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from runlane.api.schemas.fields import At, Key, RequestModel, ResponseModel, StepPath
from runlane.api.schemas.tasks import Links, RunOptions
from runlane.definitions.schema.step import AnswerableBy
from runlane.submit.orchestrations import MAX_URL

_RUN = "run_0192f3a1b2c37abc8def0123456789ab"
_LINKS: JsonDict = {
    "run_id": _RUN,
    "status": "queued",
    "lane": "default",
    "replayed": False,
    "stream_url": f"/api/v2/orchestrations/runs/{_RUN}/stream",
    "status_url": f"/api/v2/orchestrations/runs/{_RUN}/status",
}
_QUESTION: JsonDict = {
    "run_id": _RUN,
    "target": "orchestration:article",
    "tenant": "default",
    "path": "approve",
    "step_id": "approve",
    "kind": "human",
    "name": "Approve",
    "prompt": "Please review the draft.",
    "fields": [{"name": "decision", "type": "select", "options": ["approve", "reject"], "required": True}],
    "context": "The draft",
    "channel_id": None,
    "answerable_by": "tenant",
    "opened_at": "2026-01-31T12:00:00.000000Z",
    "due_at": None,
    "answered_at": None,
    "answered_by": None,
}


class OrchestrationRequest(RunOptions):
    """Run an orchestration."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"message": "Write a competitive analysis of Redis vs Kafka"}]}
    )

    message: str = Field(default="", description="What it is asked to do; its steps see it as `user_input`.")
    input: dict[str, Any] = Field(default_factory=dict[str, Any], description="More of the state that it begins with.")
    webhook_url: str | None = Field(
        default=None, min_length=1, max_length=MAX_URL, description="Kept with the run, for when it ends."
    )
    session_id: Key | None = Field(default=None, description="Kept with the run: the conversation it belongs to.")


class RunLinks(Links):
    """An accepted run of an orchestration."""

    model_config = ConfigDict(json_schema_extra={"examples": [_LINKS]})


class ForkRun(RequestModel):
    """Begin a new run with what another one had finished before a step."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"from_step": "draft", "state": {"tone": "dry"}}]})

    from_step: StepPath = Field(description="The path of a recorded step; it runs again.")
    state: dict[str, Any] = Field(default_factory=dict[str, Any], description="What to change of the state there.")


class SendEvent(RequestModel):
    """An event for the step that waits for it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"data": {"amount": 7}}]})

    data: Any = Field(default=None, description="The output of the step.")


class WaitView(ResponseModel):
    """Something that a run waits for: a person, a time, or an event."""

    model_config = ConfigDict(json_schema_extra={"examples": [_QUESTION]})

    run_id: str
    target: str
    tenant: str
    path: str = Field(description="Which execution of the step asks; give it as `step` when you answer.")
    step_id: str
    kind: str = Field(description="`human`, `time`, `event`, or `sent`: an event that no step has waited for yet.")
    name: str = Field(description="The step's name, or the event's.")
    prompt: str | None
    fields: list[dict[str, Any]] = Field(description="What a person is asked for; empty for a free text.")
    context: Any
    channel_id: str | None
    answerable_by: AnswerableBy = Field(
        description="`tenant`: keys of the tenant with runs:write. `platform`: platform admins alone."
    )
    opened_at: At
    due_at: At | None
    answered_at: At | None = Field(description="Set when there is an answer which no worker has taken up yet.")
    answered_by: str | None


class Waits(ResponseModel):
    """What a run waits for, oldest first."""

    run_id: str
    waits: list[WaitView]


class Inbox(ResponseModel):
    """A page of what waits for a person, oldest first."""

    questions: list[WaitView]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null on the last one.")
