"""Threads and items whose time to live has ended are deleted; a thread in use is not."""

from __future__ import annotations

from typing import Any

from runlane.domain.quota import STORED_BYTES
from runlane.maintenance.retention import Retention
from runlane.store.access.stored_bytes import count_again
from runlane.store.access.tenants import create_tenant, delete_tenant
from runlane.store.sql.database import Session
from runlane.store.threads.deletion import copy_checkpoints, remove_runs
from runlane.store.threads.expiry import THREADS_AT_ONCE, expire_threads
from runlane.store.threads.graph_writes import store_alone
from runlane.store.threads.items import NewItem, put_items
from tests.harness import Store, completed, entry_of
from tests.threads import add_thread, add_thread_run, checkpoint_writes, thread_row

TABLES = ("threads", "thread_runs", "checkpoints", "checkpoint_values", "checkpoint_writes")


async def write(store: Store, number: int, thread: str = "t1", **fields: Any) -> None:
    writes = checkpoint_writes(number, thread, **fields)
    await store.database.transact(lambda session: store_alone(session, writes))


async def counts(store: Store) -> list[int]:
    return [await store.count(table) for table in TABLES]


async def test_an_expired_thread_is_deleted_with_everything(store: Store) -> None:
    for name, expires in (("t1", 1), ("t2", None), ("t3", 2**62)):
        await add_thread(store, name, ttl_minutes=1, ttl_strategy="delete", expires_at=expires)
        await add_thread_run(store, name)
        await write(store, 1, name)
    for claimed in await store.claim(await store.worker()):
        await store.record(entry_of(claimed, completed()))
    await store.sql("update threads set expires_at = 1 where key = 't1'")
    await store.sql("update threads set expires_at = null where key = 't2'")
    assert await store.database.transact(expire_threads) == 1
    assert await counts(store) == [2, 2, 2, 2, 2]
    assert {row["key"] for row in await store.sql("select key from threads")} == {"t2", "t3"}
    assert await store.count("runs") == 3
    assert await store.database.transact(expire_threads) == 0


async def test_the_newest_checkpoint_of_a_thread_is_kept(store: Store) -> None:
    await add_thread(store, ttl_minutes=1, ttl_strategy="keep_latest", expires_at=1)
    for number, parent in ((1, None), (2, 1), (3, 2)):
        await write(store, number, parent=parent)
    await write(store, 9, ns="child")
    await store.database.transact(expire_threads)
    rows = await store.sql("select ns, id from checkpoints order by id")
    assert [(row["ns"], row["id"]) for row in rows] == [("", "c3"), ("child", "c9")]
    versions = await store.sql("select version from checkpoint_values order by version")
    assert [row["version"] for row in versions] == ["3", "9"]
    assert await counts(store) == [1, 0, 2, 2, 2]
    assert (await thread_row(store))["expires_at"] is None
    assert await store.database.transact(expire_threads) == 0


async def test_a_thread_with_an_open_run_does_not_expire(store: Store) -> None:
    await add_thread(store, ttl_minutes=1, ttl_strategy="delete", expires_at=1)
    await add_thread_run(store)
    assert await store.database.transact(expire_threads) == 0
    await store.finish(await store.claim_one())
    # The end of the run restarts its time to live.
    assert (await thread_row(store))["expires_at"] > (await thread_row(store))["updated_at"]
    assert await store.database.transact(expire_threads) == 0
    assert await store.count("threads") == 1


async def test_retention_deletes_expired_threads_and_items(store: Store) -> None:
    for number in range(THREADS_AT_ONCE + 1):
        await add_thread(store, f"t{number}", ttl_minutes=1, ttl_strategy="delete", expires_at=1)
    await store.database.transact(
        lambda session: put_items(session, "default", [NewItem(("a",), "k", {"x": 1}, ttl_minutes=1)])
    )
    await store.sql("update store_items set expires_at = 1")
    retention = Retention(store.settings, store.database)
    assert await retention.run_once()
    assert await store.count("threads") == 1
    assert not await retention.run_once()
    assert (await store.count("threads"), await store.count("store_items")) == (0, 0)


async def test_a_copy_does_not_depend_on_its_source(store: Store) -> None:
    await add_thread(store)
    await add_thread_run(store, on_cancel="rollback")
    claimed = await store.claim_one()
    await store.record(entry_of(claimed, graph=checkpoint_writes(1)))
    await store.database.transact(lambda session: copy_checkpoints(session, "t1", "t2"))
    copied = await store.sql("select run_id, attempt from checkpoints where thread = 't2'")
    assert [(row["run_id"], row["attempt"]) for row in copied] == [(None, None)]
    await store.database.transact(lambda session: remove_runs(session, "t1", [claimed.run_id]))
    rows = await store.sql("select thread from checkpoints union all select thread from checkpoint_values")
    assert [row["thread"] for row in rows] == ["t2", "t2"]


async def test_a_deleted_tenant_leaves_no_thread(store: Store) -> None:
    await create_tenant(store.database, "acme", actor="test")
    await add_thread(store)
    await write(store, 1)
    key = await add_thread(store, tenant="acme")
    await write(store, 1, key)

    async def fill(session: Session) -> None:
        for tenant in ("default", "acme"):
            await put_items(session, tenant, [NewItem(("a",), "k", {})])

    await store.database.transact(fill)
    await store.sql(
        "insert into assistants (tenant, id, graph_id, name, config, context, metadata, version, created_at, "
        "updated_at) values ('acme', 'a', 'g', 'n', '{}', '{}', '{}', 1, 0, 0)"
    )
    await delete_tenant(store.database, "acme", actor="test")
    assert await counts(store) == [1, 0, 1, 1, 1]
    assert [row["tenant"] for row in await store.sql("select tenant from store_items")] == ["default"]
    assert await store.sql("select id from assistants where tenant = 'acme'") == []


async def test_checkpoints_and_items_count_against_the_quota_of_bytes(store: Store) -> None:
    await store.sql(
        "insert into tenant_quotas (tenant, name, most, used) values ('default', :name, 1000000, 0)", name=STORED_BYTES
    )

    async def used() -> int:
        await count_again(store.database, "default")
        return (await store.sql("select used from tenant_quotas"))[0]["used"]

    before = await used()
    await add_thread(store)
    await write(store, 1)
    # The checkpoint, the value of a channel, and the write of a task.
    assert await used() == before + 256 + 257 + 256
    await store.database.transact(lambda session: put_items(session, "default", [NewItem(("a",), "k", {"x": 1})]))
    assert await used() == before + 256 + 257 + 256 + len('{"x":1}')
