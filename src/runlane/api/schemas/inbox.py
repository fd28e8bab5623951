"""Answers to several questions, and claims of a question."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints

from runlane.api.schemas.fields import Note, RequestModel, ResponseModel, RunId, StepPath
from runlane.api.schemas.listing import Listing
from runlane.domain.action_link import MAX_LINK_SECONDS, MAX_PERSON, ActionLink
from runlane.domain.wait import AnswerResult

MAX_ANSWERS = 100
LINKS = Listing("links", ActionLink)


class OneAnswer(RequestModel):
    """The answer to one question."""

    run_id: RunId
    step: StepPath | None = Field(default=None, description="The id or path of the step, if several steps ask.")
    response: dict[str, Any] | str = Field(default_factory=dict[str, Any], description="As for a single answer.")


class AnswerMany(RequestModel):
    """Answers to several questions. Each answer is accepted or refused separately."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"answers": [{"run_id": "run_1", "response": {"decision": "approve"}}]}]}
    )

    answers: Annotated[list[OneAnswer], Field(min_length=1, max_length=MAX_ANSWERS)]
    note: Note | None = Field(default=None, description="Stored with each answer.")


class AnswersGiven(ResponseModel):
    """The outcome of each answer, in the order of the request."""

    answered: int
    refused: int
    outcomes: list[AnswerResult]


class CreateLink(RequestModel):
    """A link that gives one answer to one question, for one person."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"run_id": "run_1", "path": "ask", "person": "Ann", "response": {"decision": "approve"}}]
        }
    )

    run_id: RunId
    path: StepPath = Field(description="The path of the question, as listed in the inbox.")
    person: Annotated[str, StringConstraints(min_length=1, max_length=MAX_PERSON)] = Field(
        description="The person who receives the link. The answer and the audit log name this person."
    )
    response: dict[str, Any] | str = Field(description="The answer that the link gives.")
    expires_in_seconds: int = Field(
        default=MAX_LINK_SECONDS, ge=60, le=MAX_LINK_SECONDS, description="The link also ends with the question."
    )


class ClaimQuestion(RequestModel):
    """Claim a question for ten minutes, so that other users see the claim."""

    run_id: RunId
    path: StepPath
    release: bool = Field(default=False, description="Release the claim instead.")
