"""The result of a run in its thread: the state and the open interrupts, stored with the end of the run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from langgraph.types import Interrupt, StateSnapshot

from runlane.store.queue.record import RecordEntry
from runlane.store.threads.graph_writes import GraphWrites, ThreadResult


def interrupts_of(state: StateSnapshot) -> dict[str, Any]:
    """Return the open interrupts by task, as a thread shows them."""
    return {
        task.id: [{"id": interrupt.id, "value": interrupt.value} for interrupt in task.interrupts]
        for task in state.tasks
        if task.interrupts
    }


def with_interrupts(values: Any, interrupts: tuple[Interrupt[Any], ...]) -> Any:
    """Return the result of a run: the state, and the questions that it asks."""
    if not interrupts:
        return values
    state = cast("dict[str, Any]", values) if isinstance(values, dict) else {}
    return {**state, "__interrupt__": interrupts}


def with_result(entry: RecordEntry, result: ThreadResult | None) -> RecordEntry:
    """Return the entry of the end of a run, with the state in which it left its thread."""
    if result is None:
        return entry
    written = GraphWrites(thread=result)
    return replace(entry, graph=written if entry.graph is None else entry.graph.merged(written))
