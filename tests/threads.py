"""Threads for tests of the store: rows as the server creates them, and runs of them as it accepts them."""

from __future__ import annotations

from typing import Any

from runlane.domain.graph import thread_key, thread_ordering_key
from runlane.domain.run import RunHook
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.store.threads.graph_writes import (
    GraphWrites,
    StoredCheckpoint,
    StoredValue,
    StoredWrite,
    ThreadResult,
)
from tests.harness import Store

# What text columns and JSON cannot carry.
BYTES = bytes(range(256))


async def add_thread(store: Store, thread_id: str = "t1", tenant: str = DEFAULT_TENANT, **columns: Any) -> str:
    """Create a thread and return its key."""
    values: dict[str, Any] = {
        "key": thread_key(tenant, thread_id), "tenant": tenant, "id": thread_id, "status": "idle", "open_runs": 0,
        "metadata": "{}", "config": "{}", "created_at": 1, "updated_at": 1, "state_updated_at": 1, **columns,
    }  # fmt: skip
    names = ", ".join(values)
    await store.sql(
        f"insert into threads ({names}) values ({', '.join(f':{name}' for name in values)})",
        **values,
    )
    return values["key"]


async def add_thread_run(
    store: Store,
    thread_id: str = "t1",
    *,
    tenant: str = DEFAULT_TENANT,
    on_cancel: str | None = None,
    on_completion: str | None = None,
    **fields: Any,
) -> str:
    """Accept a run of a thread and return its id."""
    key = thread_key(tenant, thread_id)
    run_id = await store.add(
        ordering_key=thread_ordering_key(tenant, thread_id), hooks=RunHook.THREAD, tenant=tenant, **fields
    )
    await store.sql(
        "insert into thread_runs (run_id, thread, tenant, assistant_id, metadata, multitask_strategy, on_cancel, "
        "on_completion, created_at, updated_at) values (:run_id, :thread, :tenant, 'a', '{}', 'enqueue', :on_cancel, "
        ":on_completion, 1, 1)",
        run_id=run_id,
        thread=key,
        tenant=tenant,
        on_cancel=on_cancel,
        on_completion=on_completion,
    )
    await store.sql("update threads set open_runs = open_runs + 1 where key = :key", key=key)
    return run_id


async def thread_row(store: Store, key: str = "t1") -> dict[str, Any]:
    """Return a thread."""
    (row,) = await store.sql("select * from threads where key = :key", key=key)
    return row


def checkpoint_writes(
    number: int, thread: str = "t1", *, parent: int | None = None, result: ThreadResult | None = None, ns: str = ""
) -> GraphWrites:
    """Return a checkpoint with a value of its own for channel `a`, and a write of a task to it."""
    return GraphWrites(
        checkpoints=(
            StoredCheckpoint(
                thread, ns, f"c{number}", None if parent is None else f"c{parent}", "msgpack", BYTES,
                f'{{"a":"{number}"}}', f'{{"step":{number}}}',
            ),
        ),
        values=(StoredValue(thread, ns, "a", str(number), "bytes", BYTES + bytes([number])),),
        writes=(StoredWrite(thread, ns, f"c{number}", "task", 0, "", "a", "bytes", BYTES),),
        thread=result,
    )  # fmt: skip
