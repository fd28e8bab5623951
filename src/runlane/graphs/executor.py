"""The executor of graphs in a worker: execute the graph of a run with a checkpointer that stores through the fence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from langgraph.store.base import BaseStore

from runlane.domain.graph import GraphRequest, Operation, ThreadPlan, graph_target
from runlane.domain.graph_registry import GraphSource
from runlane.domain.run import GRAPH
from runlane.domain.text import load_json
from runlane.errors import Fail
from runlane.graphs.attempt import GraphAttempt
from runlane.graphs.call_journal import CallJournal, current_journal
from runlane.graphs.exports import RUN, UPDATE, Export, Graph, GraphUse, StaticGraph
from runlane.graphs.langgraph_internals import NULL_TASK_ID
from runlane.graphs.loader import forget_modules
from runlane.graphs.operations import GraphOperation, WriteBuffer
from runlane.graphs.outbox import GraphOutbox
from runlane.graphs.recent_checkpoint import RecentCheckpoint
from runlane.graphs.recovery import Memo, StartPoint
from runlane.graphs.registry import LoadedGraphs, load_graphs
from runlane.graphs.run_config import run_config
from runlane.graphs.run_saver import RunSaver
from runlane.graphs.saver import RunlaneSaver
from runlane.graphs.snapshot import CheckpointSnapshots
from runlane.store.queue.claim import Claimed
from runlane.store.sql.database import Database
from runlane.store.threads.graph_writes import GraphWrites
from runlane.store.threads.graphs import register_graphs
from runlane.worker.context import Context
from runlane.worker.execution import AttemptEnd
from runlane.worker.run_host import RedactingHost

# Returns the store of a tenant.
Stores = Callable[[str], BaseStore]


class GraphExecutor:
    """Executes runs of graphs. One for all runs of a worker."""

    def __init__(self, database: Database, loaded: LoadedGraphs, stores: Stores, max_run_bytes: int) -> None:
        self._database = database
        self._max_run_bytes = max_run_bytes
        self._exports: Mapping[str, Export] = loaded.exports
        self._stores = stores
        # The snapshots of the graphs that are the same for every run, by the id of the graph.
        self._snapshots: dict[str, CheckpointSnapshots] = {}

    @property
    def targets(self) -> Collection[str]:
        """The targets of the runs that it can execute."""
        return [graph_target(graph_id) for graph_id in self._exports]

    async def reload(self, sources: Collection[GraphSource], folders: Collection[Path]) -> Mapping[str, str]:
        """Load graphs again for later runs; runs in progress keep theirs. Return the errors of those that fail."""
        forget_modules(folders)
        loaded = await load_graphs(sources)
        await register_graphs(self._database, loaded.descriptions)
        self._exports = loaded.exports
        self._snapshots = {}
        return loaded.errors

    async def warm_up(self) -> None:
        """Do nothing: graphs are loaded before the worker starts."""

    async def close(self) -> None:
        """Do nothing: the executor has no open resources between runs."""

    async def run(self, claimed: Claimed, context: Context, host: RedactingHost) -> AttemptEnd:
        """Execute an attempt."""
        graph_id = claimed.target.removeprefix(GRAPH)
        export = self._exports.get(graph_id)
        if export is None:
            raise Fail(
                f'This worker no longer has the graph "{graph_id}". Start a worker that has it, then retry the run.'
            )
        thread = ThreadPlan.from_plan(load_json(claimed.plan or "{}"))
        request = GraphRequest.from_json(claimed.input)
        config = run_config(claimed, graph_id, thread, request)
        store = self._stores(claimed.tenant)
        outbox = GraphOutbox(claimed, host, self._max_run_bytes)
        is_run = thread.operation is Operation.RUN
        use = GraphUse(RUN if is_run else UPDATE, config, store, request.context)
        try:
            async with export.open(use) as made:
                snapshot = self._snapshots_of(graph_id, export, made).describe
                if not is_run:
                    buffer = WriteBuffer()
                    saver = RunlaneSaver(self._database, claimed.tenant, write=buffer.write, snapshot=snapshot)
                    graph = _connected(made, saver, store)
                    return await GraphOperation(claimed, thread, request, graph, config, outbox, buffer).run()
                marker = _Marker(outbox)
                recent = RecentCheckpoint(thread.key)
                saver = RunSaver(
                    self._database,
                    claimed.tenant,
                    marker,
                    recent,
                    snapshot,
                    request.durability,
                    # The thread was made for this run, and no attempt has stored anything in it.
                    has_history=not (thread.is_temporary and claimed.attempt == 1),
                )
                graph = _connected(made, saver, store)
                current_journal.set(CallJournal(claimed, self._database, outbox))
                attempt = GraphAttempt(claimed, thread, request, graph, config, outbox, context, host)
                return await attempt.run(marker.start)
        finally:
            outbox.close()

    def _snapshots_of(self, graph_id: str, export: Export, made: Graph) -> CheckpointSnapshots:
        if not isinstance(export, StaticGraph):
            return CheckpointSnapshots(made)
        # A run in progress may still use the graph from before a reload.
        found = self._snapshots.get(graph_id)
        if found is None or not found.describes(made):
            found = self._snapshots[graph_id] = CheckpointSnapshots(made)
        return found


def _connected(made: Graph, saver: RunlaneSaver, store: BaseStore) -> Graph:
    """Return the graph with this run's checkpointer and store, whatever it was compiled with."""
    # Pregel.copy() is not used, because it validates the whole graph again.
    graph = copy(made)
    graph.checkpointer, graph.store = saver, store
    return graph


class _Marker:
    """Stores the memo of an attempt with its writes, so that a later attempt does not repeat them."""

    def __init__(self, outbox: GraphOutbox) -> None:
        self._outbox = outbox
        self._memo = Memo()
        self._stored = Memo()

    def start(self, start: StartPoint) -> None:
        """Begin with the memo of this attempt's start."""
        self._memo = start.memo

    def add(self, written: GraphWrites) -> bool:
        """Add writes of the graph. Return False if too much is pending: the caller then calls settle()."""
        return self._outbox.add_writes(written, self._changed_memo(written))

    def write(self, written: GraphWrites) -> Coroutine[Any, Any, None]:
        """Store writes of the graph."""
        return self._outbox.write(written, saved=self._changed_memo(written))

    def _changed_memo(self, written: GraphWrites) -> str | None:
        """Return the memo to store with these writes, if it has changed. The writes of a command belong to no task."""
        # The writes of one call have one task.
        first = written.writes[0] if written.writes else None
        if first is not None and first.task_id == NULL_TASK_ID and not first.ns:
            self._memo = replace(self._memo, applied=True)
        if self._memo == self._stored:
            return None
        self._stored = self._memo
        return self._memo.to_json()

    async def settle(self) -> None:
        """Wait until the writes of the graph are stored."""
        await self._outbox.settle()
