"""A database that answers with errors: read-only after a failover, or with a table that does not fit."""

from __future__ import annotations

from typing import Any, cast

import asyncpg

from runlane.testing import PostgresServer
from tests.chaos.cluster import Cluster, MakeCluster, eventually


async def command(url: str, text: str) -> None:
    link = await cast("Any", asyncpg).connect(url)
    try:
        await link.execute(text)
    finally:
        await link.close()


async def set_read_only(server: PostgresServer, cluster: Cluster, value: str) -> None:
    """Change it from another database, because this one would refuse; then every client has to reconnect."""
    name = cluster.url.rpartition("/")[2]
    await command(server.url, f"alter database {name} set default_transaction_read_only = {value}")
    await command(server.url, f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'")


async def test_a_database_that_refuses_writes_for_a_while_costs_nothing(
    make_cluster: MakeCluster, chaos_postgres: PostgresServer
) -> None:
    # The lease, which cannot be renewed meanwhile, lasts longer than the refusals on any machine.
    cluster = await make_cluster(own_database=True, RUNLANE_LEASE_SECONDS="600")
    [worker] = await cluster.start_workers(1)
    worker_id = await cluster.online(worker)
    runs = await cluster.app.enqueue_many([("gated", {"gate": "go"})] * 3)
    await cluster.running(3)
    await set_read_only(chaos_postgres, cluster, "on")
    cluster.open_gate("go")

    async def effects_done() -> bool:
        return len(cluster.sink.effects()) == 3 and "read-only transaction" in worker.log_text()

    await eventually(effects_done, "effects whose runs cannot be finished")
    assert await cluster.count("status = 'running' and attempt = 1") == 3
    await set_read_only(chaos_postgres, cluster, "off")
    await cluster.all_ended()
    await cluster.check_story()
    cluster.check_effects([run.run_id for run in runs])
    assert await cluster.count("status = 'completed' and attempt = 1") == 3
    fresh = await cluster.app.enqueue("gated", {"gate": "go"})
    await cluster.app.wait(fresh.run_id, 60)
    assert (await cluster.workers())[worker_id] == "online"


async def test_a_heartbeat_that_fails_in_an_unexpected_way_is_tried_again(make_cluster: MakeCluster) -> None:
    """A liveness thread that ends of an error would leave a worker that looks alive and never works again."""
    cluster = await make_cluster(own_database=True)
    [worker] = await cluster.start_workers(1)
    worker_id = await cluster.online(worker)
    run = await cluster.app.enqueue("gated", {"gate": "go"})
    await cluster.running()
    await command(cluster.url, "alter table workers rename column active to not_active")

    async def complains() -> bool:
        return worker.log_text().count('"heartbeat_failed"') >= 3

    await eventually(complains, "heartbeats that fail")
    await command(cluster.url, "alter table workers rename column not_active to active")
    cluster.open_gate("go")
    ended = await cluster.app.wait(run.run_id, 60)
    assert ended.attempt == 1
    fresh = await cluster.app.enqueue("gated", {"gate": "go"})
    await cluster.app.wait(fresh.run_id, 60)
    [row] = await cluster.rows(f"select status, lease_until from workers where id = '{worker_id}'")
    assert row["status"] == "online"

    async def renewed() -> bool:
        rows = await cluster.rows(f"select lease_until from workers where id = '{worker_id}'")
        return rows[0]["lease_until"] > row["lease_until"]

    await eventually(renewed, "a heartbeat")
