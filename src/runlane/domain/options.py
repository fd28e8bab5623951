"""The options of a run: one definition for the app, the client, the API and the command line.

`RunOptions` is the value that is passed on. The typed dictionaries name the options that each kind of request has, so
that callers write them as keyword arguments. A test compares both with each other and with the API's request bodies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from runlane.domain.flow_control import FlowControl
from runlane.domain.run import AfterOn, OnDead


class RunOptions(NamedTuple):
    """How a run is executed. A tuple, because a bulk request creates thousands of them.

    `webhook_url` is called when the run ends, signed with `webhook_secret` or the tenant's default. `session_id` is
    stored with runs of orchestrations.
    """

    idempotency_key: str | None = None
    priority: int = 0
    ordering_key: str | None = None
    on_dead: str = OnDead.SKIP
    delay_seconds: float = 0
    hold: bool = False
    webhook_url: str | None = None
    session_id: str | None = None
    fairness_key: str | None = None
    after: Sequence[str] = ()
    after_on: str = AfterOn.SUCCESS
    tags: Sequence[str] = ()
    webhook_secret: str | None = None
    flow_control: FlowControl | Mapping[str, Any] | None = None

    def to_body(self) -> dict[str, Any]:
        """Return the fields of a request body: those that differ from their defaults, without the idempotency key."""
        given = {name: value for name, value in self._asdict().items() if value != _DEFAULTS[name]}
        given.pop("idempotency_key", None)
        if isinstance(self.flow_control, FlowControl):
            given["flow_control"] = self.flow_control.model_dump(mode="json", exclude_unset=True)
        return given


_DEFAULTS: Mapping[str, Any] = RunOptions._field_defaults


class _CommonOptions(TypedDict, total=False):
    priority: int
    delay_seconds: float
    fairness_key: str | None
    tags: Sequence[str]
    webhook_url: str | None
    webhook_secret: str | None


class BulkOptions(_CommonOptions, total=False):
    """Options that many runs of tasks can share."""

    ordering_key: str | None
    on_dead: str
    hold: bool
    after: Sequence[str]
    after_on: str
    flow_control: FlowControl | Mapping[str, Any] | None


class TaskOptions(BulkOptions, total=False):
    """Options of a run of a task."""

    idempotency_key: str | None


class AgentOptions(TaskOptions, total=False):
    """Options of a run of an agent."""


class OrchestrationOptions(AgentOptions, total=False):
    """Options of a run of an orchestration."""

    session_id: str | None


class ChatOptions(_CommonOptions, total=False):
    """Options of a turn of a conversation, whose order its session determines."""

    idempotency_key: str | None


class ForkOptions(TypedDict, total=False):
    """Options of a fork: with `latest` it is pinned to the current versions. `actor` is for the audit log."""

    idempotency_key: str | None
    latest: bool
    actor: str


def run_options(kind: type[Any], given: Mapping[str, Any]) -> RunOptions:
    """Return options that were given as keyword arguments. Raises TypeError for one that `kind` does not have."""
    unknown = given.keys() - kind.__optional_keys__
    if unknown:
        known = ", ".join(sorted(kind.__optional_keys__))
        raise TypeError(f"{', '.join(sorted(unknown))} is not an option of this call. Options: {known}.")
    return RunOptions(**given)
