"""Runs of graphs for tests: accepted as the server accepts them, without a server."""

from __future__ import annotations

from typing import Any

from runlane.domain.graph import GraphRequest, Operation, ThreadPlan, graph_target, thread_key, thread_ordering_key
from runlane.domain.ids import new_id
from runlane.domain.run import RunHook
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.text import dump_json, load_json
from runlane.resources import Resources
from tests.harness import Store, new_run
from tests.threads import add_thread


class GraphThread:
    """A thread of a graph. `resources` are those of an app whose worker is woken; without them no worker is."""

    def __init__(self, store: Store, resources: Resources | None, graph_id: str, thread_id: str = "t1") -> None:
        self._store = store
        self._resources = resources
        self._graph_id = graph_id
        self.id = thread_id
        self.key = thread_key(DEFAULT_TENANT, thread_id)

    async def create(self) -> GraphThread:
        await add_thread(self._store, self.id)
        return self

    async def start(
        self, operation: Operation = Operation.RUN, *, max_attempts: int = 1, run_id: str | None = None, **request: Any
    ) -> str:
        """Accept a run and return its id."""
        plan = ThreadPlan(self.id, self.key, "assistant", operation)
        run = new_run(
            id=run_id or new_id("run"),
            target=graph_target(self._graph_id),
            input=GraphRequest(**request).to_json(),
            plan=dump_json({"thread": plan.to_dict()}),
            ordering_key=thread_ordering_key(DEFAULT_TENANT, self.id),
            hooks=RunHook.THREAD,
            max_attempts=max_attempts,
        )
        if operation is Operation.RUN:
            await self._store.sql(
                "insert into thread_runs (run_id, thread, tenant, assistant_id, metadata, multitask_strategy, "
                "created_at, updated_at) values (:run_id, :thread, 'default', 'assistant', '{}', 'enqueue', 1, 1)",
                run_id=run.id,
                thread=self.key,
            )
        await self._store.sql("update threads set open_runs = open_runs + 1 where key = :key", key=self.key)
        await (self._store.add_all(run) if self._resources is None else self._resources.accept([run]))
        return run.id

    async def row(self) -> dict[str, Any]:
        """Return the thread, with its JSON parsed."""
        (row,) = await self._store.sql("select * from threads where key = :key", key=self.key)
        parsed = {name: None if row[name] is None else load_json(row[name]) for name in ("state_values", "interrupts")}
        return {**row, **parsed}

    async def outcome(self, run_id: str) -> str | None:
        (row,) = await self._store.sql("select outcome from thread_runs where run_id = :run_id", run_id=run_id)
        return row["outcome"]
