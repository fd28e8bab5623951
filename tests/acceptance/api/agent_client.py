"""The unmodified LangGraph client of a served API, and comparison with recorded answers."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

from langgraph_sdk import get_client

from runlane.domain.assistant import HostedGraph
from runlane.store.access.tenants import create_tenant
from runlane.store.threads.graphs import register_graphs
from tests.acceptance.api.serving import Api

_NODES = [{"id": "__start__"}, {"id": "a"}, {"id": "__end__"}]
_EDGES = [{"source": "__start__", "target": "a"}, {"source": "a", "target": "__end__"}]
THREE = HostedGraph(
    "three",
    schemas={"input_schema": {"title": "S", "type": "object"}, "state_schema": {"title": "S", "type": "object"}},
    drawing={"0": {"nodes": _NODES, "edges": _EDGES}, "1": {"nodes": [*_NODES, {"id": "a:x"}], "edges": _EDGES}},
    subgraphs={"a": {"input_schema": None}, "a|deep": {"input_schema": None}},
)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_RUN_ID = re.compile(r"run_[0-9a-f]{32}")


@asynccontextmanager
async def langgraph_client(api: Api, key: str | None = None) -> AsyncGenerator[Any]:
    """Return the client of a new key of this role, which it sends as x-api-key."""
    client = get_client(url=api.url, api_key=key or await api.key())
    try:
        yield client
    finally:
        await client.aclose()


async def stranger_key(api: Api) -> str:
    """Return the key of another tenant."""
    await create_tenant(api.parts.database, "other", actor="test")
    return await api.key("developer", "other")


async def host(api: Api, *graphs: HostedGraph) -> None:
    """Register graphs as a worker does, without one."""
    await register_graphs(api.parts.database, graphs or (THREE,))


def masked(value: Any) -> Any:
    """Return a value with its ids and times replaced."""
    if isinstance(value, dict):
        return {name: masked(item) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [masked(item) for item in cast("list[Any]", value)]
    if isinstance(value, str):
        if _TIME.match(value):
            return "<time>"
        return _RUN_ID.sub("<id>", _UUID.sub("<id>", value))
    return value


def lacking(recorded: Any, ours: Any, path: str = "") -> list[str]:
    """Return where our answer lacks something of a recorded one. Ours may have more keys."""
    recorded, ours = masked(recorded), masked(ours)
    if isinstance(recorded, dict):
        if not isinstance(ours, dict):
            return [f"{path}: {ours!r} is not an object"]
        mine = cast("dict[str, Any]", ours)
        found: list[str] = []
        for name, value in cast("dict[str, Any]", recorded).items():
            found += lacking(value, mine[name], f"{path}.{name}") if name in mine else [f"{path}.{name} is missing"]
        return found
    if isinstance(recorded, list) and isinstance(ours, list):
        pairs = zip(cast("list[Any]", recorded), cast("list[Any]", ours), strict=False)
        found = [
            problem for index, (one, other) in enumerate(pairs) for problem in lacking(one, other, f"{path}[{index}]")
        ]
        lengths = (len(cast("list[Any]", recorded)), len(cast("list[Any]", ours)))
        return found if lengths[0] == lengths[1] else [*found, f"{path}: {lengths[1]} values instead of {lengths[0]}"]
    return [] if recorded == ours else [f"{path}: {ours!r} instead of {recorded!r}"]
