"""A run of a thread that is to be accepted: its target, its thread, and its effect on open runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from runlane.domain.access_rule import AccessRule
from runlane.domain.graph import PLAN_KEY as THREAD_PLAN
from runlane.domain.graph import (
    GraphRequest,
    MultitaskStrategy,
    Operation,
    PruneStrategy,
    ThreadPlan,
    thread_key,
    thread_ordering_key,
)
from runlane.domain.graph_registry import DefaultTtl
from runlane.domain.run import RunHook
from runlane.domain.text import dump_json, load_json
from runlane.store.queue.accept import NewRun
from runlane.store.threads.native_runs import NativeTurn

_SERIALIZED: Final = ("tenant", "thread_id", "assistant_id", "graph_id", "creates", "deletes", "actor")


@dataclass(frozen=True, slots=True)
class ThreadStart:
    """A run of a thread to accept. `run` is checked; its ordering key, plan and hooks are set here.

    `creates` creates a missing thread. `deletes` deletes the thread with the end of the run.
    """

    tenant: str
    thread_id: str
    assistant_id: str
    graph_id: str
    run: NewRun
    request: GraphRequest
    strategy: MultitaskStrategy = MultitaskStrategy.ENQUEUE
    creates: bool = False
    deletes: bool = False
    operation: Operation = Operation.RUN
    actor: str = "local"
    turn: NativeTurn | None = None
    # The metadata and the time to live of a thread that is created for the run.
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ttl: DefaultTtl | None = None
    rule: AccessRule | None = None

    def to_dict(self) -> dict[str, Any]:
        """Serialize all of it except the run."""
        values = {name: getattr(self, name) for name in _SERIALIZED}
        message = None if self.turn is None else self.turn.message
        return {
            **values,
            "request": self.request.to_json(),
            "strategy": self.strategy.value,
            "message": message,
            "metadata": dict(self.metadata),
            "ttl": None if self.ttl is None else [self.ttl.minutes, self.ttl.strategy],
        }

    @classmethod
    def from_dict(cls, run: NewRun, stored: Mapping[str, Any]) -> ThreadStart:
        """Parse what `to_dict` returned."""
        values = {name: stored[name] for name in _SERIALIZED}
        request, strategy = GraphRequest.from_json(stored["request"]), MultitaskStrategy(stored["strategy"])
        turn = None if stored["message"] is None else NativeTurn(stored["message"])
        # Starts that an earlier version has stored lack these two fields.
        ttl = None if stored.get("ttl") is None else DefaultTtl(*stored["ttl"])
        metadata = stored.get("metadata", {})
        return cls(**values, run=run, request=request, strategy=strategy, turn=turn, metadata=metadata, ttl=ttl)

    def with_run(self, run: NewRun) -> ThreadStart:
        """Return the start of a run that belongs to the thread."""
        plan = ThreadPlan(self.thread_id, self.key, self.assistant_id, self.operation, is_temporary=self.deletes)
        ready = run._replace(
            ordering_key=thread_ordering_key(self.tenant, self.thread_id),
            plan=dump_json({**load_json(run.plan or "{}"), THREAD_PLAN: plan.to_dict()}),
            hooks=run.hooks | RunHook.THREAD,
        )
        return replace(self, run=ready)

    @property
    def key(self) -> str:
        """The key of the thread."""
        return thread_key(self.tenant, self.thread_id)

    @property
    def on_completion(self) -> str | None:
        """The effect of the end of the run on the thread."""
        return PruneStrategy.DELETE.value if self.deletes else None
