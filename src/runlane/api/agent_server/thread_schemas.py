"""Request bodies for threads and their state."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from runlane.api.agent_server.assistant_schemas import Json, Limit, NodeName, Offset, SearchedText, SortOrder
from runlane.api.schemas.fields import RequestModel
from runlane.domain.graph import PruneStrategy, ThreadStatus

MAX_EXTRACTED = 10
# The maximum is a century, so that no sum of times overflows.
MAX_TTL_MINUTES = 100 * 366 * 24 * 60

ThreadField = Literal[
    "thread_id",
    "created_at",
    "updated_at",
    "state_updated_at",
    "metadata",
    "config",
    "status",
    "values",
    "interrupts",
    "error",
    "ttl",
]
CheckpointId = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class TtlBody(RequestModel):
    """The time to live of a thread, in minutes after its last run or after its creation."""

    ttl: Annotated[float, Field(gt=0, le=MAX_TTL_MINUTES, description="Minutes; less than one counts as one.")]
    strategy: PruneStrategy = Field(default=PruneStrategy.DELETE, strict=False)


class CheckpointBody(RequestModel):
    """A checkpoint of a thread, in the form in which responses name it."""

    thread_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_id: CheckpointId | None = None
    checkpoint_map: Json | None = None

    def given(self) -> Json:
        """Return the fields that the request contains."""
        return self.model_dump(exclude_none=True)


class CommandBody(RequestModel):
    """A command to a graph: answers to interrupts, an update of the state, and the nodes to continue with."""

    resume: Any = None
    update: Json | list[Any] | None = None
    goto: str | Json | list[str | Json] | None = None

    @model_validator(mode="after")
    def _check(self) -> CommandBody:
        if not (self.update or self.goto or "resume" in self.model_fields_set):
            raise ValueError("send resume, update or goto, or omit the command")
        targets: list[Any] = self.goto if isinstance(self.goto, list) else [self.goto]
        if any(isinstance(target, dict) and not isinstance(target.get("node"), str) for target in targets):
            raise ValueError("goto: write the name of a node, or an object with node and input")
        return self

    def given(self) -> Json:
        """Return the fields that the request contains. `resume` may be null."""
        return self.model_dump(exclude_unset=True)


class StateUpdate(RequestModel):
    """An update of the state by a node."""

    values: Json | list[Any] | None = None
    command: CommandBody | None = None
    as_node: NodeName | None = None


class Superstep(RequestModel):
    """Updates that are applied together."""

    updates: list[StateUpdate]


class ThreadCreate(RequestModel):
    """A new thread."""

    thread_id: str | None = None
    metadata: Json | None = None
    if_exists: Literal["raise", "do_nothing"] = "raise"
    ttl: TtlBody | float | None = None
    supersteps: list[Superstep] | None = None


class ThreadPatch(RequestModel):
    """Changes of a thread; metadata is merged."""

    metadata: Json | None = None
    ttl: TtlBody | float | None = None


class ThreadCount(RequestModel):
    """The filters of a count of threads."""

    metadata: Json | None = None
    values: Json | None = None
    status: ThreadStatus | None = Field(default=None, strict=False)


class ThreadSearch(ThreadCount):
    """The filters, order and page of a search for threads."""

    ids: list[SearchedText] | None = None
    limit: Limit = 10
    offset: Offset = 0
    sort_by: Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"] | None = None
    sort_order: SortOrder | None = None
    select: list[ThreadField] | None = None
    extract: Annotated[dict[str, str], Field(max_length=MAX_EXTRACTED)] | None = None


class ThreadPrune(RequestModel):
    """The threads to prune, and the part of them to delete."""

    thread_ids: Annotated[list[str], Field(max_length=1000)]
    strategy: PruneStrategy = Field(default=PruneStrategy.DELETE, strict=False)
