"""The waits of a run, as readers see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, with_config

from runlane.domain.wire import WIRE, Timestamp


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
