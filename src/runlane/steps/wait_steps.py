"""Steps that wait: the run is suspended until a person, a time or an event ends the wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from runlane.definitions.schema.step import AnswerableBy, HumanField, HumanStep, WaitStep
from runlane.interpreter.failure import StepFailed
from runlane.steps.context import StepContext
from runlane.steps.memory_budget import MemoryTimeout


class WaitKind(StrEnum):
    """What ends a wait."""

    HUMAN = "human"
    TIME = "time"
    EVENT = "event"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWait:
    """The wait of a step.

    A wait for a time ends `due_in_seconds` from now or at `until`. A wait for a person or an event expires after
    `due_in_seconds`, or never if it is None. `context` is what the person should look at.

    With `key` a call inside the step waits: the step is performed again after the answer, which its journal then has
    under this key, together with `aside`. The end of a time is stored only with an `aside`. A `shared` question is
    asked once for the whole run. With `arguments_schema` the person may edit arguments, which must match the schema.
    `answerable_by` determines whose keys may answer: the tenant's, or only those of platform admins. `effect` is that
    of the tool that waits for an approval.
    """

    kind: WaitKind
    prompt: str = ""
    fields: tuple[HumanField, ...] = ()
    context: Any = None
    due_in_seconds: float | None = None
    until: datetime | None = None
    event: str | None = None
    match: Mapping[str, Any] | None = None
    lookback_seconds: float = 0
    channel_id: str | None = None
    name: str | None = None
    key: str | None = None
    shared: bool = False
    arguments_schema: Mapping[str, Any] | None = None
    aside: Mapping[str, Any] | None = None
    answerable_by: AnswerableBy = "tenant"
    effect: str | None = None


@dataclass(frozen=True, slots=True)
class Suspended:
    """A step that waits for an answer while it is performed."""

    waits: tuple[StepWait, ...]


class Suspend(Exception):
    """Raised inside a step to suspend it. Everything else that the step could do has been done and stored."""

    # A tracing span from which this exception is raised has not failed.
    code = None

    def __init__(self, *waits: StepWait) -> None:
        super().__init__(", ".join(wait.prompt or wait.kind for wait in waits))
        self.waits = waits


def until_room(wait: MemoryTimeout, key: str = "room") -> StepWait:
    """Return a wait that releases the worker slot until memory may be available."""
    return StepWait(kind=WaitKind.TIME, prompt=wait.reason, due_in_seconds=wait.retry_in_seconds, key=key, name="room")


async def human(context: StepContext[HumanStep]) -> StepWait:
    """Wait for a person."""
    step, state = context.step, context.pending.state
    given = (state[key] for key in step.input_keys if state.get(key) not in (None, "", [], {}))
    last = context.history[-1].output if context.history else None
    return StepWait(
        kind=WaitKind.HUMAN,
        prompt=await context.render(step.human_prompt),
        fields=tuple(step.human_fields),
        context=next(given, last),
        due_in_seconds=step.expires_after_seconds,
        channel_id=step.human_channel_id,
    )


async def wait(context: StepContext[WaitStep]) -> StepWait:
    """Wait for a time or an event."""
    step = context.step
    if step.event is not None:
        return StepWait(
            kind=WaitKind.EVENT,
            event=step.event,
            match=None if step.match is None else await context.render_value(step.match),
            lookback_seconds=step.lookback_seconds,
            due_in_seconds=step.expires_after_seconds,
        )
    if step.seconds is not None:
        return StepWait(kind=WaitKind.TIME, due_in_seconds=step.seconds)
    return StepWait(kind=WaitKind.TIME, until=_moment(await context.render_value(step.until)))


def _moment(value: Any) -> datetime:
    """Parse a date and time in ISO form; UTC if it has no zone."""
    try:
        if not isinstance(value, str):
            raise TypeError
        moment = datetime.fromisoformat(value.strip())
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        raise StepFailed(
            "bad_time", f"{value!r} is not a valid date and time. Write it as 2026-01-31T09:00:00+01:00."[:500]
        ) from None
