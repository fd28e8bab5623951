"""The restore drill: a backup under load becomes a second database, which acts only when it was prepared."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2

from runlane.access.keyring import Keyring
from runlane.store.access.keys import create_key
from runlane.store.webhooks.endpoints import EndpointFields
from runlane.submit.schedules import parse_schedule
from runlane.testing import PostgresServer
from runlane.testing.binaries import find_postgres
from runlane.webhooks.endpoints import WebhookManager
from tests import forking
from tests.chaos.cluster import RUNLANE, Cluster, MakeCluster, eventually
from tests.chaos.test_webhooks import ENVIRONMENT, KEY
from tests.harness import settings_for
from tests.webhook_receiver import Answer, WebhookReceiver

RUNS = 200
PERIOD_US = 3600 * 1_000_000
# The restored database is five hours older than the production that continued.
LATE_US = 5 * PERIOD_US
SCHEDULE = {"id": "hourly", "target": {"kind": "task", "name": "short"}, "spec": [{"every_seconds": 3600}],
            "input": {"milliseconds": 1}, "catch_up": "all", "catch_up_window_seconds": 86_400}  # fmt: skip
PENDING = "select message_id from webhook_deliveries where status in ('pending', 'delivering')"


def backup(url: str, file: Path) -> None:
    subprocess.run([find_postgres() / "pg_dump", "--format=custom", f"--file={file}", url], check=True, timeout=120)


def restore(file: Path, url: str) -> None:
    command = [find_postgres() / "pg_restore", "--exit-on-error", "--no-owner", f"--dbname={url}", file]
    subprocess.run(command, check=True, timeout=120)


async def prepare(cluster: Cluster, receiver: WebhookReceiver) -> str:
    """Create a schedule, an endpoint that answers 500, and a key; return the key."""
    receiver.answer(Answer(500))
    settings = settings_for(cluster.url, outbound_allow="127.0.0.0/8", secret_key=KEY)
    database = await cluster.app.database()
    fields = EndpointFields(url=receiver.url(), types=["run.completed"], rate_per_second=1000.0, max_in_flight=8)
    await WebhookManager(database, settings, Keyring(settings)).create("default", fields, actor="test")
    await (await cluster.app.schedules()).create("default", parse_schedule(SCHEDULE), actor="test")
    return (await create_key(database, "drill", "platform_admin", actor="test"))[1]


async def back_up_under_load(cluster: Cluster, file: Path) -> None:
    """Back up while runs are accepted and executed, some before and some after."""
    (worker,) = await cluster.start_workers(1)
    await cluster.app.enqueue_many([("short", {"milliseconds": 5})] * RUNS)
    await eventually(lambda: cluster.rows(PENDING), "messages that are not delivered")
    saving = asyncio.create_task(asyncio.to_thread(backup, cluster.url, file))
    while not saving.done():
        await cluster.app.enqueue_many([("short", {"milliseconds": 1})] * 5)
    await saving
    await cluster.all_ended()
    worker.kill()


async def let_time_pass(cluster: Cluster) -> None:
    """Move the schedule back, as if the backup were restored some slots later."""
    columns = ("anchor_at", "cursor_at", "next_at", "next_due_at")
    changes = ", ".join(f"{name} = {name} - {LATE_US}" for name in columns)
    await cluster.rows(f"update schedules set {changes} returning id")


def command(cluster: Cluster, *arguments: str) -> Any:
    """Run a command on the database of a cluster; return what it prints as JSON."""
    done = forking.run(
        [*RUNLANE, *arguments], env=cluster.environment, capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


async def check_paused(cluster: Cluster, key: str) -> None:
    """A paused server shows the runs and refuses to start one; a paused worker does not start."""
    paused = {"RUNLANE_PAUSED": "true"}
    url = await cluster.url_of(cluster.start_server(environment=paused))
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=30) as client:
        assert (await client.get(f"{url}/api/v2/runs")).json()["runs"]
        refused = await client.post(f"{url}/api/v2/tasks/short/runs", json={"input": {"milliseconds": 1}})
    assert (refused.status_code, refused.json()["code"]) == (503, "paused")
    worker = cluster.start_worker(environment=paused)
    assert await worker.ended() != 0
    assert "RUNLANE_PAUSED" in worker.log_text()


async def test_a_restored_database_repeats_nothing_unasked(
    make_cluster: MakeCluster, chaos_postgres: PostgresServer, tmp_path: Path
) -> None:
    production = await make_cluster(**ENVIRONMENT)
    async with WebhookReceiver() as receiver:
        key = await prepare(production, receiver)
        file = tmp_path / "backup.dump"
        await back_up_under_load(production, file)

        url = chaos_postgres.create_database(f"restored_{uuid4().hex}")
        restore(file, url)
        copy = await make_cluster(url=url, **ENVIRONMENT)
        await let_time_pass(copy)
        unsent = {row["message_id"] for row in await copy.rows(PENDING)}
        assert unsent
        open_runs = await copy.count("ended_at is null")
        receiver.received.clear()
        receiver.answer(Answer(204))
        await check_paused(copy, key)
        assert await copy.rows("select * from schedule_firings") == []

        done = command(copy, "db", "recovered", "--json")
        assert (done["schedules"], done["missed_slots"], done["deliveries"]) == (1, 5, len(unsent))
        assert done["continuing"] == open_runs
        copy.start_worker()
        await copy.all_ended()
        # Runs that had not ended in the backup end now, and report it; nothing of the backup is sent.
        await eventually(lambda: _arrived(receiver, open_runs), "the messages of the runs that continued")
        assert not unsent & {item.id for item in receiver.received}
        assert {row["outcome"] for row in await copy.rows("select outcome from schedule_firings")} == {"missed"}
        assert await copy.count("status <> 'completed'") == 0


async def _arrived(receiver: WebhookReceiver, count: int) -> bool:
    return len({item.id for item in receiver.received}) >= count
