"""The LangGraph config of a run: the config of the request, and the keys that identify the run in its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, Send
from langgraph.version import __version__ as langgraph_version

from runlane.domain.graph import GraphRequest, ThreadPlan
from runlane.store.queue.claim import Claimed
from runlane.version import VERSION

# Keys of the config that a request may set. LangGraph's own objects, such as callbacks, are not JSON.
_GIVEN: Final = ("tags", "recursion_limit", "max_concurrency", "run_name")
# Keys of a checkpoint that a request may address.
_ADDRESS: Final = ("checkpoint_id", "checkpoint_ns", "checkpoint_map")


def run_config(claimed: Claimed, graph_id: str, thread: ThreadPlan, request: GraphRequest) -> RunnableConfig:
    """Return the config of an attempt, at the newest checkpoint of the thread."""
    names = {
        "run_id": claimed.run_id,
        "thread_id": thread.id,
        "graph_id": graph_id,
        "assistant_id": thread.assistant_id,
    }
    given = cast("Mapping[str, Any]", request.config.get("configurable") or {})
    # Names with two underscores belong to LangGraph, and a request must not set them.
    configurable = {key: value for key, value in given.items() if not key.startswith("__") and key not in _ADDRESS}
    metadata = {
        **cast("Mapping[str, Any]", request.config.get("metadata") or {}),
        **request.metadata,
        **names,
        "run_attempt": claimed.tries,
        "langgraph_version": langgraph_version,
        "runlane_version": VERSION,
    }
    config: dict[str, Any] = {key: request.config[key] for key in _GIVEN if request.config.get(key) is not None}
    config.setdefault("run_name", graph_id)
    config["configurable"] = {**configurable, **names}
    config["metadata"] = metadata
    return cast("RunnableConfig", config)


def at_checkpoint(config: RunnableConfig, checkpoint: Mapping[str, Any] | None) -> RunnableConfig:
    """Return the config at the checkpoint that a request addresses, if it does."""
    address = {key: checkpoint[key] for key in _ADDRESS if checkpoint.get(key)} if checkpoint else {}
    if not address:
        return config
    return {**config, "configurable": {**config.get("configurable", {}), **address}}


def command_of(given: Mapping[str, Any]) -> Command[Any]:
    """Return the command of a request."""
    goto = given.get("goto")
    targets = cast("list[Any]", goto) if isinstance(goto, list) else [goto] if goto is not None else []
    update = given.get("update")
    if isinstance(update, list):
        # Pairs of key and value, as JSON has no tuples.
        update = [tuple(cast("list[Any]", pair)) for pair in cast("list[Any]", update)]
    return Command(update=update, resume=given.get("resume"), goto=[_target(item) for item in targets])


def _target(given: Any) -> str | Send:
    if isinstance(given, Mapping):
        table = cast("Mapping[str, Any]", given)
        return Send(str(table["node"]), table.get("input", table.get("arg")))
    return str(given)
