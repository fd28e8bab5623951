"""Read and delete the runs of threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import BigInteger, Integer, Text, bindparam, delete, func, select

from runlane.domain.graph import (
    HIDDEN_MODES,
    Durability,
    GraphOutcome,
    GraphRequest,
    ThreadRunStatus,
    run_status,
    thread_key,
)
from runlane.domain.run import GRAPH, Status
from runlane.domain.tenant import bare_key
from runlane.domain.text import load_json
from runlane.domain.thread import ThreadRun
from runlane.errors import RunNotFound, WrongState
from runlane.store.queue.retention import delete_runs
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member
from runlane.store.sql.page_bytes import is_cut, within_bytes
from runlane.store.sql.schema import run_inputs, run_results, runs, thread_runs
from runlane.store.sql.statement import Row, Statement, text_list
from runlane.store.threads.threads import lock_thread_key

if TYPE_CHECKING:
    from runlane.store.threads.thread_start import ThreadStart

_STATUSES: Final = {wire: [status.value for status in Status if run_status(status) is wire] for wire in ThreadRunStatus}


@dataclass(frozen=True, slots=True)
class RunResult:
    """The end of a run of a thread: its result, or its error. With `interrupted`, the graph waits."""

    status: Status
    result: Any
    error: dict[str, Any] | None
    interrupted: bool = False


_run_id = bindparam("run_id", type_=Text())
_thread = bindparam("thread", type_=Text())
_whole = select(
    thread_runs,
    runs.c.status,
    runs.c.target,
    runs.c.claimed_at,
    runs.c.ended_at,
    run_inputs.c.input,
).select_from(
    thread_runs.join(runs, runs.c.id == thread_runs.c.run_id).outerjoin(
        run_inputs, run_inputs.c.run_id == thread_runs.c.run_id
    )
)
_listed = _whole.where(thread_runs.c.thread == _thread)
_FIND = Statement("find_thread_run", _listed.where(thread_runs.c.run_id == _run_id), purpose="Read a run of a thread.")
_LIST = Statement(
    "list_thread_runs",
    within_bytes(
        _whole,
        thread_runs.c.thread == _thread,
        member(runs.c.status, "statuses"),
        keys=[thread_runs.c.run_id],
        order=[(thread_runs.c.created_at, True), (thread_runs.c.run_id, True)],
        large=[run_inputs.c.input, thread_runs.c.metadata],
        limit=bindparam("limit", type_=Integer()),
        offset=bindparam("offset", type_=Integer()),
    ),
    purpose="Read runs of a thread, newest first.",
)
_AFTER = Statement(
    "thread_runs_after",
    select(thread_runs.c.run_id, thread_runs.c.created_at)
    .where(thread_runs.c.thread == _thread, thread_runs.c.created_at > bindparam("after", type_=BigInteger()))
    .order_by(thread_runs.c.created_at)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Find the runs of a thread after one of them.",
)
_AT = Statement(
    "thread_runs_at",
    select(thread_runs.c.run_id, thread_runs.c.created_at, thread_runs.c.ordinal)
    .where(thread_runs.c.thread == _thread, thread_runs.c.ordinal >= bindparam("ordinal", type_=Integer()))
    .order_by(thread_runs.c.ordinal)
    .limit(lit(1)),
    purpose="Find a run of a thread by its ordinal, or the next one that is kept.",
)
_FIRST_OPEN = Statement(
    "first_open_thread_run",
    select(thread_runs.c.ordinal)
    .select_from(thread_runs.join(runs, runs.c.id == thread_runs.c.run_id))
    .where(thread_runs.c.thread == _thread, runs.c.status.not_in([lit(one) for one in Status if one.terminal]))
    .order_by(thread_runs.c.ordinal)
    .limit(lit(1)),
    purpose="Find the first run of a thread that has not ended.",
)
_NEWEST = Statement(
    "newest_thread_run",
    select(func.max(thread_runs.c.created_at).label("created_at")).where(thread_runs.c.thread == _thread),
    purpose="Find when the newest run of a thread was accepted.",
)
_THREAD_OF = Statement(
    "thread_of_run",
    select(thread_runs.c.thread, thread_runs.c.tenant).where(thread_runs.c.run_id == _run_id),
    purpose="Find the thread of a run.",
)
_RESULT = Statement(
    "read_thread_result",
    select(runs.c.id, runs.c.status, run_results.c.result, run_results.c.error, thread_runs.c.outcome)
    .select_from(
        runs.outerjoin(run_results, run_results.c.run_id == runs.c.id).outerjoin(
            thread_runs, thread_runs.c.run_id == runs.c.id
        )
    )
    .where(member(runs.c.id, "run_ids")),
    purpose="Read the results of runs of threads.",
)
_STATUS = Statement(
    "lock_thread_run",
    select(runs.c.status)
    .select_from(thread_runs.join(runs, runs.c.id == thread_runs.c.run_id))
    .where(thread_runs.c.thread == _thread, thread_runs.c.run_id == _run_id)
    .with_for_update(of=runs),
    purpose="Lock a run of a thread.",
)
_DELETE = Statement(
    "delete_thread_run", delete(thread_runs).where(thread_runs.c.run_id == _run_id), purpose="Delete a run of a thread."
)


async def find_thread_run(database: Database, tenant: str, thread_id: str, run_id: str) -> ThreadRun:
    """Return a run of a thread."""
    rows = await database.query(_FIND, thread=thread_key(tenant, thread_id), run_id=run_id)
    if not rows:
        raise RunNotFound(run_id)
    return _thread_run(rows[0], thread_id)


async def list_thread_runs(
    database: Database,
    tenant: str,
    thread_id: str,
    *,
    status: ThreadRunStatus | None = None,
    limit: int = 10,
    offset: int = 0,
) -> tuple[list[ThreadRun], bool]:
    """Return runs of a thread, newest first, and whether the bound in bytes has left out some of the page."""
    statuses = [one.value for one in Status] if status is None else _STATUSES[status]

    async def work(session: Session) -> Sequence[Row]:
        return await session.fetch(
            _LIST,
            thread=thread_key(tenant, thread_id),
            statuses=session.texts(statuses),
            limit=limit,
            offset=offset,
        )

    rows = await database.transact(work)
    return [_thread_run(row, thread_id) for row in rows], is_cut(rows)


async def thread_of_run(database: Database, tenant: str, run_id: str) -> str | None:
    """Return the id of the thread of a run; None for a run without one."""
    for row in await database.query(_THREAD_OF, run_id=run_id):
        if row["tenant"] == tenant:
            return bare_key(row["thread"])
    return None


async def runs_after(database: Database, key: str, after_us: int, limit: int = 100) -> list[tuple[int, str]]:
    """Return runs of a thread that were accepted after a time, in order, each with its time.

    They are accepted under the lock of the thread, so no two have the same time.
    """
    rows = await database.query(_AFTER, thread=key, after=after_us, limit=limit)
    return [(row["created_at"], row["run_id"]) for row in rows]


async def run_at_ordinal(database: Database, key: str, ordinal: int) -> tuple[int, int] | None:
    """Return the ordinal and the time of the first run that is kept and has this ordinal or a higher one."""
    for row in await database.query(_AT, thread=key, ordinal=ordinal):
        return row["ordinal"], row["created_at"]
    return None


async def first_open_ordinal(database: Database, key: str) -> int | None:
    """Return the ordinal of the first run of a thread that has not ended."""
    for row in await database.query(_FIRST_OPEN, thread=key):
        return row["ordinal"]
    return None


async def newest_run_at(database: Database, key: str) -> int:
    """Return when the newest run of a thread was accepted; 0 without runs."""
    return (await database.query(_NEWEST, thread=key))[0]["created_at"] or 0


async def read_result(database: Database, run_id: str) -> RunResult:
    """Return how a run ended."""
    found = (await read_results(database, [run_id]))[run_id]
    if isinstance(found, RunNotFound):
        raise found
    return found


async def read_results(database: Database, run_ids: Sequence[str]) -> dict[str, RunResult | RunNotFound]:
    """Return how runs ended, or that they do not exist."""
    rows = await database.query(_RESULT, run_ids=text_list(database.dialect, run_ids))
    found = {row["id"]: _result(row) for row in rows}
    return {run_id: found.get(run_id) or RunNotFound(run_id) for run_id in run_ids}


def _result(row: Row) -> RunResult:
    result = None if row["result"] is None else load_json(row["result"])
    error = None if row["error"] is None else load_json(row["error"])
    return RunResult(Status(row["status"]), result, error, row["outcome"] == GraphOutcome.INTERRUPTED)


async def delete_thread_run(database: Database, tenant: str, thread_id: str, run_id: str) -> None:
    """Delete an ended run of a thread. Its checkpoints stay, because later runs build on them."""

    async def work(session: Session) -> None:
        await lock_thread_key(session, tenant, thread_id)
        rows = await session.fetch(_STATUS, thread=thread_key(tenant, thread_id), run_id=run_id)
        if not rows:
            raise RunNotFound(run_id)
        if not Status(rows[0]["status"]).terminal:
            raise WrongState(
                f"Run {run_id} is {rows[0]['status']}. Cancel it first: POST /threads/{thread_id}/runs/{run_id}/cancel"
            )
        await session.fetch(_DELETE, run_id=run_id)
        await delete_runs(session, [run_id])

    await database.transact(work)


def new_thread_run(start: ThreadStart, status: Status, created_at_us: int, ordinal: int) -> ThreadRun:
    """Return a run that was accepted in this transaction."""
    metadata = dict(start.request.metadata)
    row = {
        "run_id": start.run.id,
        "target": start.run.target,
        "assistant_id": start.assistant_id,
        "on_completion": start.on_completion,
    }
    return ThreadRun(
        id=start.run.id,
        thread_id=start.thread_id,
        assistant_id=start.assistant_id,
        created_at_us=created_at_us,
        updated_at_us=created_at_us,
        status=run_status(status),
        metadata=metadata,
        kwargs=_kwargs(start.request, row, start.thread_id, metadata),
        multitask_strategy=start.strategy.value,
        ordinal=ordinal,
    )


def _thread_run(row: Row, thread_id: str) -> ThreadRun:
    changed = [row["created_at"], row["claimed_at"], row["ended_at"]]
    metadata = load_json(row["metadata"])
    request = GraphRequest() if row["input"] is None else GraphRequest.from_json(row["input"])
    return ThreadRun(
        id=row["run_id"],
        thread_id=thread_id,
        assistant_id=row["assistant_id"],
        created_at_us=row["created_at"],
        updated_at_us=max(at for at in changed if at is not None),
        status=run_status(Status(row["status"])),
        metadata=metadata,
        kwargs=_kwargs(request, row, thread_id, metadata),
        multitask_strategy=row["multitask_strategy"],
        ordinal=row["ordinal"],
    )


def _kwargs(request: GraphRequest, row: Row, thread_id: str, metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the request of a run, as clients see it."""
    ids = {
        "run_id": row["run_id"],
        "thread_id": thread_id,
        "graph_id": row["target"].removeprefix(GRAPH),
        "assistant_id": row["assistant_id"],
    }
    configurable = {**request.config.get("configurable", {}), **ids}
    config = {**request.config, "configurable": configurable, "metadata": metadata}
    return {
        "input": request.input,
        "command": request.command,
        "config": config,
        "context": {} if request.context is None else request.context,
        "checkpoint": request.checkpoint,
        "stream_mode": [mode for mode in request.stream_mode if mode not in HIDDEN_MODES],
        "interrupt_before": request.interrupt_before,
        "interrupt_after": request.interrupt_after,
        "webhook": None,
        "feedback_keys": request.feedback_keys,
        "temporary": row["on_completion"] is not None,
        "subgraphs": request.stream_subgraphs,
        "resumable": request.stream_resumable,
        "checkpoint_during": request.durability != Durability.EXIT,
        "durability": request.durability,
    }
