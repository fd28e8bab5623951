"""The graphs that workers have loaded. Workers write them at their start; servers read them and load no graph."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import FromClause, Text, bindparam, func, select
from sqlalchemy.sql.base import Executable

from runlane.domain.assistant import HostedGraph
from runlane.domain.text import dump_json
from runlane.errors import UnknownGraph
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import now_us, upsert
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import graphs
from runlane.store.sql.statement import Row, Statement

_JSON = ("schemas", "drawing", "subgraphs")
_WRITTEN = ("description", *_JSON, "error")


def _register(batch: FromClause) -> Executable:
    given = upsert(graphs).from_select(
        ["id", *_WRITTEN, "updated_at"],
        select(batch.c.id, *(batch.c[name] for name in _WRITTEN), now_us()).where(batch.c.id.is_not(None)),
    )
    return given.on_conflict_do_update(
        index_elements=[graphs.c.id],
        set_={
            # A graph that cannot be loaded keeps the description of the last worker that could load it.
            **{name: func.coalesce(given.excluded[name], graphs.c[name]) for name in _JSON},
            **{name: given.excluded[name] for name in ("description", "error", "updated_at")},
        },
    )


_REGISTER = Statement(
    "register_graphs",
    _register,
    {"id": Text(), **{name: Text() for name in _WRITTEN}},
    purpose="Store the graphs that a worker has loaded.",
)
_FIND = Statement(
    "find_graph", select(graphs).where(graphs.c.id == bindparam("id", type_=Text())), purpose="Read a graph."
)
_NAMES = Statement(
    "list_graph_ids", select(graphs.c.id).order_by(graphs.c.id), purpose="Read the ids of all graphs of workers."
)


_ERRORS = Statement(
    "list_graph_errors",
    select(graphs.c.id, graphs.c.error).order_by(graphs.c.id),
    purpose="Read which graphs the newest workers could not load.",
)


async def register_graphs(database: Database, loaded: Iterable[HostedGraph]) -> None:
    """Store the graphs that a worker has loaded, or why it could not."""
    members = [
        (
            graph.id,
            graph.description,
            *(None if (value := getattr(graph, name)) is None else dump_json(value) for name in _JSON),
            graph.error,
        )
        for graph in loaded
    ]

    async def work(session: Session) -> None:
        await session.fetch(_REGISTER, members)

    if members:
        await database.transact(work)


async def list_hosted_graphs(database: Database) -> dict[str, str | None]:
    """Return why the newest worker could not load each graph; None for those that it could load."""
    return {row["id"]: row["error"] for row in await database.query(_ERRORS)}


async def find_graph(database: Database, graph_id: str) -> HostedGraph:
    """Return a graph of the workers."""
    rows = await database.query(_FIND, id=graph_id)
    if not rows:
        raise UnknownGraph(graph_id, await list_graph_ids(database))
    return _graph(rows[0])


async def list_graph_ids(database: Database) -> list[str]:
    """Return the ids of all graphs of the workers."""
    return [row["id"] for row in await database.query(_NAMES)]


async def graph_ids(session: Session) -> list[str]:
    """Do the same within a transaction."""
    return [row["id"] for row in await session.fetch(_NAMES)]


def _graph(row: Row) -> HostedGraph:
    return from_row(HostedGraph, row, json=_JSON)
