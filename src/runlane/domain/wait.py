"""The waits of a run, as readers see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field, with_config

from runlane.domain.ids import INSIDE
from runlane.domain.wire import WIRE, Timestamp


class QuestionKind(StrEnum):
    """The subject of a question to a person."""

    STEP = "step"
    APPROVAL = "approval"
    UNKNOWN_EFFECT = "unknown_effect"
    BUDGET = "budget"


# The part of a path after INSIDE names a question that a step asks while it is performed.
_INSIDE_KINDS: Final = {
    "/approve/": QuestionKind.APPROVAL,
    "/unknown/": QuestionKind.UNKNOWN_EFFECT,
    "/cap/": QuestionKind.BUDGET,
}


def question_kind(path: str) -> QuestionKind:
    """Return the subject of the question at a path."""
    inside = path.partition(INSIDE)[2]
    for part, kind in _INSIDE_KINDS.items():
        if part in f"{inside}/":
            return kind
    return QuestionKind.STEP


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class Question:
    """A wait of a run: for a person, a time, or an event."""

    run_id: str
    target: str
    tenant: str
    path: Annotated[str, Field(description="Identifies the execution of the step; pass it as `step` with the answer.")]
    step_id: str
    kind: Annotated[
        str, Field(description="`human`, `time`, `event`, or `sent`: an event that no step has waited for yet.")
    ]
    name: Annotated[str, Field(description="The name of the step or of the event.")]
    prompt: str | None
    fields: Annotated[
        tuple[Mapping[str, Any], ...], Field(description="The form that a person fills in; empty for free text.")
    ]
    context: Any
    opened_at_us: Annotated[Timestamp, Field(alias="opened_at")]
    due_at_us: Annotated[Timestamp | None, Field(alias="due_at")]
    answered_at_us: Annotated[
        Timestamp | None, Field(alias="answered_at", description="Set until a worker has read the answer.")
    ]
    answered_by: str | None
    answerable_by: Annotated[
        str, Field(description="`tenant`: keys of the tenant with runs:write. `platform`: platform admins alone.")
    ] = "tenant"
    channel_id: str | None = None
    about: Annotated[
        QuestionKind, Field(description="`step`: a human step; a tool's `approval`; an `unknown_effect`; a `budget`.")
    ] = QuestionKind.STEP
    claimed_by: Annotated[str | None, Field(description="The key whose owner reads it at the moment.")] = None
    claimed_until_us: Annotated[Timestamp | None, Field(alias="claimed_until")] = None


class QuestionState(StrEnum):
    """The state of a question."""

    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"
    CLOSED = "closed"


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class QuestionDetail:
    """One question, with its answer if it has one."""

    question: Question
    state: Annotated[QuestionState, Field(description="`closed`: the run has ended, or no longer needs an answer.")]
    answer: Any = None
    note: Annotated[str | None, Field(description="What the person who answered has noted.")] = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class InboxCount:
    """The number of open questions."""

    total: int
    by_kind: Mapping[QuestionKind, int]
    exact: Annotated[bool, Field(description="False when there are more: counting stops at 1,000.")]
    newest_at_us: Annotated[
        Timestamp | None, Field(alias="newest_at", description="When the newest of the counted questions was opened.")
    ] = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class AnswerResult:
    """The result of one of several answers."""

    run_id: str
    step: str | None
    answered: bool
    code: Annotated[str | None, Field(description="The error code, if it was not accepted.")] = None
    message: str | None = None
