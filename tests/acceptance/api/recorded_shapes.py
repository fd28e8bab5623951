"""The shapes of the answers of the official agent server: the keys that clients find in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

# A value as it is, any value, the keys of an object, or the elements of a list.
Shape = Any
ANY: EllipsisType = ...


def keys(names: str, **values: Shape) -> dict[str, Shape]:
    """Return the shape of an object with at least these keys."""
    return {**dict.fromkeys(names.split(), ANY), **values}


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, and how the official server answered it: status, shape or names of events, and headers.

    `saves` names what later requests take from the answer. `ours` is our status where it differs on purpose, and `row`
    begins the row of the documented differences that describes it.
    """

    request: str
    body: Any = None
    status: int = 200
    shape: Shape = ANY
    events: str | None = None
    headers: tuple[str, ...] = ()
    saves: Mapping[str, str] | None = None
    # Repeated until the answer has the shape.
    until: bool = False
    ours: int | None = None
    row: str | None = None


INPUT: dict[str, Any] = {"value": 1, "items": []}
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
FINAL: dict[str, Any] = {"value": 4, "items": ["a", "b", "c"]}
AFTER_A: dict[str, Any] = {"value": 2, "items": ["a"]}
NOWHERE = "00000000-0000-0000-0000-000000000000"
PROBLEM = keys("detail")
BOOM = {"__error__": {"error": "ValueError", "message": "boom on purpose"}}
ASSISTANT = keys("assistant_id graph_id config context metadata name created_at updated_at version description")
VERSION = keys("assistant_id version graph_id config context metadata created_at name description")
GRAPH = {"nodes": ANY, "edges": ANY}
SCHEMAS = keys("graph_id input_schema output_schema state_schema config_schema context_schema")
NEW_THREAD = keys("thread_id created_at updated_at state_updated_at metadata config values", status="idle")
THREAD = {**NEW_THREAD, **keys("error interrupts")}
ADDRESS = keys("thread_id checkpoint_ns checkpoint_id")
STATE = keys(
    "values next tasks metadata created_at parent_checkpoint interrupts checkpoint_id parent_checkpoint_id",
    checkpoint=ADDRESS,
)
EMPTY_STATE: dict[str, Shape] = {**STATE, "values": {}, "next": [], "tasks": [], "metadata": None, "checkpoint": None}
TASK = keys("id path error checkpoint state result")
QUESTION = {"id": ANY, "value": {"question": "ok?", "value": 2}}
CONFIG = {"configurable": keys("run_id thread_id graph_id assistant_id"), "metadata": keys("graph_id assistant_id")}
KWARGS = keys(
    "input command context stream_mode interrupt_before interrupt_after webhook feedback_keys temporary subgraphs "
    "resumable checkpoint_during durability",
    config=CONFIG,
)
RUN = keys(
    "run_id thread_id assistant_id metadata status created_at updated_at", kwargs=KWARGS, multitask_strategy="enqueue"
)
CRON = keys(
    "cron_id assistant_id thread_id user_id end_time schedule timezone next_run_date metadata on_run_completed enabled "
    "created_at updated_at",
    payload=keys("assistant_id schedule"),
)
ITEM = keys("namespace key value created_at updated_at")
JOINED = ("location", "content-location")
STARTED = {"assistant_id": "three", "input": INPUT}
ASKED = {"assistant_id": "human", "input": INPUT}
SLEEPING = {"assistant_id": "sleepy", "input": INPUT}
