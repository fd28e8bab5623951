"""Threads and their runs: the values that clients see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, with_config
from typing_extensions import TypedDict

from runlane.domain.graph import ThreadRunStatus, ThreadStatus
from runlane.domain.native_thread import is_native
from runlane.domain.wire import WIRE, Timestamp


class ThreadTtl(TypedDict):
    """The time to live of a thread: minutes from its last use until it, or its old checkpoints, are deleted."""

    strategy: str
    ttl_minutes: int
    expires_at: str | None


def _without_ttl(schema: dict[str, Any]) -> None:
    """Describe `ttl` as optional: a response has it only if it was requested."""
    schema["required"].remove("ttl")


@with_config({**WIRE, "json_schema_extra": _without_ttl})
@dataclass(frozen=True, slots=True)
class Thread:
    """A thread: the state of a graph and the runs that change it.

    `values`, `interrupts` and `error` are those after the last run. `interrupts` has the open questions by task.
    """

    id: Annotated[str, Field(alias="thread_id")]
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    updated_at_us: Annotated[Timestamp, Field(alias="updated_at")]
    state_updated_at_us: Annotated[Timestamp, Field(alias="state_updated_at")]
    metadata: dict[str, Any]
    status: ThreadStatus
    config: dict[str, Any]
    values: Any
    interrupts: dict[str, Any]
    error: Any = None
    ttl: ThreadTtl | None = None
    tenant: Annotated[str, Field(exclude=True)] = ""
    key: Annotated[str, Field(exclude=True)] = ""
    open_runs: Annotated[int, Field(exclude=True)] = 0
    run_count: Annotated[int, Field(exclude=True)] = 0
    native: Annotated[str | None, Field(exclude=True)] = None
    session_id: Annotated[str | None, Field(exclude=True)] = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class ThreadRun:
    """A run of a thread. `kwargs` is its request, with the config and context of the assistant."""

    id: Annotated[str, Field(alias="run_id")]
    thread_id: str
    assistant_id: str
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    updated_at_us: Annotated[Timestamp, Field(alias="updated_at")]
    status: ThreadRunStatus
    metadata: dict[str, Any]
    kwargs: dict[str, Any]
    multitask_strategy: str
    ordinal: Annotated[int, Field(exclude=True)]
    resumed_at: Annotated[int | None, Field(exclude=True)] = None

    @property
    def is_native(self) -> bool:
        """Whether it is a run of an agent or orchestration."""
        return is_native(self.kwargs["config"]["configurable"]["graph_id"])
