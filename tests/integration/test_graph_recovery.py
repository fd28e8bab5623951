"""An attempt that dies around any of its commits: the next one repeats no update and misplaces no answer."""

from __future__ import annotations

import asyncio
import itertools
import operator
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from langgraph._internal._constants import NULL_TASK_ID
from langgraph.checkpoint.base import id as ids
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from runlane import Run, Status
from runlane.domain.graph import Operation, graph_target
from runlane.domain.graph_registry import GraphSource, StoreOptions
from runlane.errors import LeaseLost
from runlane.graphs.executor import GraphExecutor
from runlane.graphs.hosting import host_graphs
from runlane.store.queue.claim import Claimed
from runlane.store.queue.reaping import take_over
from runlane.store.queue.record import Recorded, RecordEntry
from runlane.worker.execution import Execution
from tests.chaos.chaos_graphs import QUESTIONS, approvals
from tests.graph_runs import GraphThread
from tests.harness import Store, eventually

INPUT: dict[str, Any] = {"count": 0, "log": []}
# More commits than any run of these tests has.
MAX_COMMITS = 12


class State(TypedDict):
    count: Annotated[int, operator.add]
    log: Annotated[list[str], operator.add]


class Host:
    """The worker of one attempt. It dies before or after its nth commit, and every later write is rejected."""

    max_result_bytes = 1_000_000
    handing_over = False
    open_answers: Any = None

    def __init__(self, store: Store, dies_at: int | None, *, committed: bool) -> None:
        self._store = store
        self._dies_at = dies_at
        self._committed = committed
        self.commits = 0

    @property
    def dead(self) -> bool:
        return self._dies_at is not None and self.commits >= self._dies_at

    async def record(self, entry: RecordEntry) -> Recorded:
        self.commits += 1
        dead = self.dead
        if not dead or (self._committed and self.commits == self._dies_at):
            verdicts = await self._store.record(entry)
            if not dead:
                return verdicts[entry.run_id, entry.attempt]
        raise LeaseLost("The worker is dead.")

    def send_delta(self, delta: Any) -> None: ...

    async def secret(self, tenant: str, name: str) -> str:
        raise NotImplementedError

    def call_in_thread(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        raise NotImplementedError


class Cluster:
    """Executes the runs of one graph; the first attempt of each run dies at the given commit."""

    def __init__(
        self, store: Store, executor: GraphExecutor, dies_at: int | None = None, *, committed: bool = False
    ) -> None:
        self._store = store
        self._executor = executor
        self._dies_at = dies_at
        self._committed = committed
        self.deaths = 0
        self.host: Host | None = None

    async def run(self, run_id: str) -> Run:
        """Execute attempts until the run has ended."""
        for attempt in itertools.count(1):
            run = await self._store.get(run_id)
            if run.status.terminal:
                return run
            await self._store.make_due()
            worker = await self._store.worker()
            (claimed,) = await self._store.claim(worker, 1, targets=[graph_target("g")])
            host = self.host = Host(self._store, self._dies_at if attempt == 1 else None, committed=self._committed)
            if not await self._executed(claimed, host):
                self.deaths += 1
                await self._store.expire(worker)
                await self._store.database.transact(lambda session, worker=worker: take_over(session, [worker]))
        raise AssertionError

    async def _executed(self, claimed: Claimed, host: Host) -> bool:
        """Execute an attempt as a worker does. Return False if it died."""
        execution = Execution(
            claimed, self._executor, host, asyncio.get_running_loop(), on_timeout=lambda execution: None
        )
        try:
            await execution.run()
        except LeaseLost:
            return False
        return execution.has_ended


async def _cluster(store: Store, graph: Any, dies_at: int | None = None, *, committed: bool = False) -> Cluster:
    executor = await host_graphs(store.database, [GraphSource("g", graph)], StoreOptions(), 100_000_000)
    return Cluster(store, executor, dies_at, committed=committed)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_FOLDER", str(tmp_path))


DEATHS = [(number, committed) for number in range(1, MAX_COMMITS) for committed in (False, True)]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
async def test_a_death_at_any_commit_changes_nothing(store: Store, durability: str) -> None:
    """Two approvals, two more in a subgraph, a fan-out, additive reducers; each question gets its own answer."""
    died = 0
    for number, (dies_at, committed) in enumerate(DEATHS):
        cluster = await _cluster(store, approvals(), dies_at, committed=committed)
        thread = await GraphThread(store, None, "g", f"t{number}").create()
        run = await cluster.run(await thread.start(input=INPUT, durability=durability))
        for question in QUESTIONS:
            assert run.status is Status.COMPLETED, run.error
            assert [asked["value"]["question"] for asked in run.result["__interrupt__"]] == [question]
            run = await cluster.run(await thread.start(command={"resume": question}, durability=durability))
        assert run.result == {
            "count": 12,
            "log": [
                "first", "approve=approve0", "w0", "w1", "w2", "join", "before", "inner=inner0", "other=other0",
                "after", "confirm=confirm0", "confirm=confirm1", "last",
            ],
        }, (dies_at, committed)  # fmt: skip
        died += cluster.deaths
    assert died


# The nodes of chains, in the order in which they were executed.
executed: list[str] = []


def _chain(*names: str) -> StateGraph[Any, Any, Any, Any]:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)

    def node(name: str) -> Any:
        def work(state: State) -> dict[str, Any]:
            executed.append(name)
            return {"count": 1, "log": [name]}

        return work

    for name in names:
        builder.add_node(name, node(name))
    for source, target in itertools.pairwise((START, *names)):
        builder.add_edge(source, target)
    return builder


@pytest.mark.parametrize("how", ["interrupt_before", "interrupt_after"])
# With `sync`, an attempt may die between the checkpoint before a breakpoint and its own end.
@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
async def test_a_breakpoint_holds_across_a_death(store: Store, how: str, durability: str) -> None:
    stops: dict[str, Any] = {how: ["b" if how == "interrupt_before" else "a"], "durability": durability}
    for number, (dies_at, committed) in enumerate(DEATHS):
        cluster = await _cluster(store, _chain("a", "b", "c"), dies_at, committed=committed)
        thread = await GraphThread(store, None, "g", f"t{number}").create()
        run = await cluster.run(await thread.start(input=INPUT, **stops))
        assert run.result == {"count": 1, "log": ["a"]}, (dies_at, committed)
        run = await cluster.run(await thread.start(input=None))
        assert run.result == {"count": 3, "log": ["a", "b", "c"]}, (dies_at, committed)


@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
async def test_a_command_is_applied_once(store: Store) -> None:
    """The node begins after the command is stored, so that the worker may die between the two."""
    cluster: Cluster

    async def command_is_stored() -> bool:
        assert cluster.host is not None
        rows = await store.sql("select 1 from checkpoint_writes where task_id = :id", id=NULL_TASK_ID)
        return bool(rows) or cluster.host.dead

    async def late(state: State) -> dict[str, Any]:
        await eventually(command_is_stored, "the command")
        return {"count": 1, "log": ["late"]}

    builder = _chain("a")
    builder.add_node("late", late)
    for number, (dies_at, committed) in enumerate(DEATHS):
        cluster = await _cluster(store, builder, dies_at, committed=committed)
        thread = await GraphThread(store, None, "g", f"t{number}").create()
        await cluster.run(await thread.start(input=INPUT))
        command = {"update": {"count": 10, "log": ["u"]}, "goto": "late"}
        run = await cluster.run(await thread.start(command=command))
        assert run.result == {"count": 12, "log": ["a", "u", "late"]}, (dies_at, committed)
        await store.sql("delete from checkpoint_writes")


@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
async def test_a_fork_continues_on_its_branch(store: Store) -> None:
    for number, (dies_at, committed) in enumerate(DEATHS):
        cluster = await _cluster(store, _chain("a", "b", "c"), dies_at, committed=committed)
        thread = await GraphThread(store, None, "g", f"t{number}").create()
        await cluster.run(await thread.start(input=INPUT))
        rows = await store.sql("select id, metadata from checkpoints where thread = :key order by id", key=thread.key)
        fork = next(row["id"] for row in rows if '"step":1' in row["metadata"])
        executed.clear()
        run = await cluster.run(await thread.start(input=None, checkpoint={"checkpoint_id": fork}, durability="sync"))
        # At most the superstep in progress is repeated.
        assert len(executed) <= 3, (dies_at, committed)
        assert run.result == {"count": 3, "log": ["a", "b", "c"]}, (dies_at, committed)
        run = await cluster.run(
            await thread.start(input={"count": 5, "log": ["again"]}, checkpoint={"checkpoint_id": fork})
        )
        assert run.result == {"count": 9, "log": ["a", "again", "a", "b", "c"]}, (dies_at, committed)


@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
async def test_answers_by_id_reach_parallel_questions_once(store: Store) -> None:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)

    def asks(name: str) -> Any:
        def node(state: State) -> dict[str, Any]:
            return {"count": 1, "log": [f"{name}={interrupt(name)}"]}

        return node

    for name in ("x", "y"):
        builder.add_node(name, asks(name))
        builder.add_edge(START, name)
    for number, (dies_at, committed) in enumerate(DEATHS):
        cluster = await _cluster(store, builder, dies_at, committed=committed)
        thread = await GraphThread(store, None, "g", f"t{number}").create()
        run = await cluster.run(await thread.start(input=INPUT))
        answers = {asked["id"]: f"for {asked['value']}" for asked in run.result["__interrupt__"]}
        assert len(answers) == 2
        run = await cluster.run(await thread.start(command={"resume": answers}))
        assert run.result == {"count": 2, "log": ["x=for x", "y=for y"]}, (dies_at, committed)


@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
async def test_a_worker_whose_clock_is_behind_continues_at_the_head(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = await _cluster(store, _chain("a", "b"))
    thread = await GraphThread(store, None, "g").create()
    await cluster.run(await thread.start(input=INPUT))
    # As in another process, which has made no id yet.
    monkeypatch.setattr(ids, "_last_v6_timestamp", None)
    monkeypatch.setattr(ids, "time", SimpleNamespace(time_ns=lambda: time.time_ns() - 3_600_000_000_000))
    run = await cluster.run(await thread.start(input=INPUT))
    assert run.result == {"count": 4, "log": ["a", "b", "a", "b"]}


@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
async def test_supersteps_are_applied_once(store: Store) -> None:
    steps = [
        {"updates": [{"values": INPUT, "as_node": "__input__"}]},
        {"updates": [{"values": INPUT, "as_node": "__start__"}]},
        {"updates": [{"values": {"count": 1, "log": ["a"]}, "as_node": "a"}]},
        {"updates": [{"values": {"count": 1, "log": ["b"]}, "as_node": "b"}]},
    ]
    for number, (dies_at, committed) in enumerate(DEATHS):
        cluster = await _cluster(store, _chain("a", "b"), dies_at, committed=committed)
        thread = await GraphThread(store, None, "g", f"t{number}").create()
        run = await cluster.run(await thread.start(Operation.SUPERSTEPS, supersteps=steps))
        assert run.status is Status.COMPLETED
        assert (await thread.row())["state_values"] == {"count": 2, "log": ["a", "b"]}, (dies_at, committed)
