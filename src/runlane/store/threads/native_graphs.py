"""Agents and orchestrations as graphs: their names, schemas and drawings, from their definitions."""

from __future__ import annotations

import itertools
from typing import Any, Final

from sqlalchemy import Text, bindparam, select

from runlane.domain.assistant import HostedGraph
from runlane.domain.native_thread import AGENT_NODE, TOOLS_NODE, native_name
from runlane.domain.run import AGENT, ORCHESTRATION
from runlane.store.definitions import find_definition
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit
from runlane.store.sql.schema import definitions
from runlane.store.sql.statement import Statement

_NAMES = Statement(
    "native_graph_ids",
    select(definitions.c.kind, definitions.c.id)
    .where(
        definitions.c.tenant == bindparam("tenant", type_=Text()),
        definitions.c.kind.in_([lit("agent"), lit("orchestration")]),
        definitions.c.removed_at.is_(None),
    )
    .order_by(definitions.c.kind, definitions.c.id),
    purpose="Read the ids of the agents and orchestrations of a tenant.",
)
_PREFIXES: Final = {"agent": AGENT, "orchestration": ORCHESTRATION}
_MESSAGE: Final = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": ["human", "ai", "system", "tool"]},
        "content": {"type": "string"},
        "id": {"type": "string"},
    },
    "required": ["content"],
}


async def native_graph_ids(session: Session, tenant: str) -> list[str]:
    """Return the ids of the agents and orchestrations of a tenant, as graphs."""
    return [f"{_PREFIXES[row['kind']]}{row['id']}" for row in await session.fetch(_NAMES, tenant=tenant)]


async def find_native_graph(database: Database, tenant: str, graph_id: str) -> HostedGraph:
    """Return an agent or orchestration as a graph. Raises UnknownDefinition."""
    is_agent = graph_id.startswith(AGENT)
    found = await find_definition(database, tenant, "agent" if is_agent else "orchestration", native_name(graph_id))
    body = found.body
    nodes = [AGENT_NODE, TOOLS_NODE] if is_agent else [str(step["id"]) for step in body.get("steps", ())]
    return HostedGraph(
        graph_id, body.get("description") or None, _schemas(graph_id, is_agent), {"0": _drawing(nodes, is_agent)}, {}
    )


def _schemas(graph_id: str, is_agent: bool) -> dict[str, Any]:
    title = native_name(graph_id)
    messages = {"type": "array", "items": _MESSAGE, "title": "Messages"}
    given = {"title": title, "type": "object", "properties": {"messages": messages}}
    left: dict[str, Any] = {**given, "properties": {"messages": messages, **({} if is_agent else {"output": {}})}}
    if is_agent:
        given = {**given, "required": ["messages"]}
    context = {"title": "Context", "type": "object", "description": "Fields of the input of the run."}
    return {
        "input_schema": given,
        "output_schema": left,
        "state_schema": left,
        "config_schema": {"title": "Config", "type": "object"},
        "context_schema": context,
    }


def _drawing(nodes: list[str], is_agent: bool) -> dict[str, Any]:
    shown = ["__start__", *nodes, "__end__"]
    if is_agent:
        pairs = [("__start__", AGENT_NODE), (AGENT_NODE, TOOLS_NODE), (TOOLS_NODE, AGENT_NODE), (AGENT_NODE, "__end__")]
    else:
        pairs = list(itertools.pairwise(shown))
    return {
        "nodes": [{"id": node, "type": "runnable", "data": {"name": node}} for node in shown],
        "edges": [{"source": source, "target": target} for source, target in pairs],
    }
