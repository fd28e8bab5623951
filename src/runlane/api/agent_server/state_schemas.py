"""Request bodies for the state of threads."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import Field, field_validator

from runlane.api.agent_server.assistant_schemas import Json, NodeName
from runlane.api.agent_server.thread_schemas import CheckpointBody, CheckpointId
from runlane.api.schemas.fields import RequestModel

StateField = Literal[
    "values",
    "next",
    "tasks",
    "metadata",
    "created_at",
    "checkpoint",
    "parent_checkpoint",
    "interrupts",
    "checkpoint_id",
    "parent_checkpoint_id",
]


class StateQuery(RequestModel):
    """A checkpoint whose state is read."""

    checkpoint: CheckpointBody
    subgraphs: bool = False
    select: list[StateField] | None = None


class StateChange(RequestModel):
    """An update of the thread's state with values that a node could have returned."""

    values: Json | list[Any] | None = None
    as_node: NodeName | None = None
    checkpoint: CheckpointBody | None = None
    checkpoint_id: CheckpointId | None = None


class HistoryQuery(RequestModel):
    """The filters and page of a list of a thread's states."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 10
    before: CheckpointId | CheckpointBody | None = None
    metadata: Json | None = None
    checkpoint: CheckpointBody | None = None
    select: list[StateField] | None = None

    @field_validator("before", mode="before")
    @classmethod
    def _unwrap(cls, given: Any) -> Any:
        """Return the checkpoint from a config, which the JavaScript SDK sends."""
        body = cast("Json", given) if isinstance(given, dict) else {}
        return body["configurable"] if list(body) == ["configurable"] else cast("Any", given)
