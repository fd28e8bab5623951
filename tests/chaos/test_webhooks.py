"""Webhook senders killed before, during and after sending: healthy endpoints get every message, with a stable id."""

from __future__ import annotations

import asyncio
import base64
import signal
from collections import Counter

import pytest
from standardwebhooks.webhooks import Webhook

from runlane.access.keyring import Keyring
from runlane.store.webhooks.endpoints import EndpointFields
from runlane.testing.crash_points import CrashPoint
from runlane.webhooks.endpoints import WebhookManager
from tests.chaos.cluster import Cluster, MakeCluster, Process, eventually
from tests.harness import settings_for
from tests.scale import scaled
from tests.webhook_receiver import Answer, WebhookReceiver

KEY = base64.b64encode(bytes(range(32))).decode()
HEALTHY = ("/a", "/b", "/c")
ENVIRONMENT = {
    "RUNLANE_OUTBOUND_ALLOW": "127.0.0.0/8",
    "RUNLANE_SECRET_KEY": KEY,
    "RUNLANE_WEBHOOK_TIMEOUT_SECONDS": "1",
}


async def add_endpoints(cluster: Cluster, receiver: WebhookReceiver) -> dict[str, str]:
    """Create five endpoints, of which one hangs and one answers 500; return the secrets by path."""
    settings = settings_for(cluster.url, outbound_allow="127.0.0.0/8", secret_key=KEY)
    manager = WebhookManager(await cluster.app.database(), settings, Keyring(settings))
    receiver.answer(Answer(hang=True), "/hangs")
    receiver.answer(Answer(500), "/broken")
    secrets: dict[str, str] = {}
    for path in (*HEALTHY, "/hangs", "/broken"):
        fields = EndpointFields(
            url=receiver.url(path), types=["run.completed"], rate_per_second=1000.0, max_in_flight=8
        )
        _, secret = await manager.create("default", fields, actor="test")
        secrets[path] = secret.secret or ""
    return secrets


async def arrived(receiver: WebhookReceiver, run_ids: set[str]) -> None:
    """Wait until each healthy endpoint has got the end of each run."""

    async def complete() -> bool:
        return all({item.json["data"]["run_id"] for item in receiver.of(path)} >= run_ids for path in HEALTHY)

    await eventually(complete, "every message at the healthy endpoints", 120)


def check(receiver: WebhookReceiver, secrets: dict[str, str], run_ids: set[str]) -> None:
    """Each message has one id at all endpoints and in all tries, and a valid signature."""
    ids: dict[str, set[str]] = {}
    for path in (*HEALTHY, "/broken"):
        for item in receiver.of(path):
            Webhook(secrets[path]).verify(item.body, item.headers)
            ids.setdefault(item.json["data"]["run_id"], set()).add(item.id)
    assert ids.keys() == run_ids
    assert all(len(found) == 1 for found in ids.values())


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_senders_die_before_during_and_after_sending(make_cluster: MakeCluster, kind: str) -> None:
    cluster = await make_cluster(kind, **ENVIRONMENT)
    async with WebhookReceiver() as receiver:
        secrets = await add_endpoints(cluster, receiver)
        count = scaled(150, 1000) if kind == "postgres" else scaled(40, 400)
        run_ids: set[str] = set()
        points = ("webhook.claimed", "webhook.sent", "webhook.recorded", "webhook.sent")
        share = count // len(points)
        for number, point in enumerate(points):
            runs = await cluster.app.enqueue_many([("short", {"milliseconds": 1})] * share)
            run_ids |= {run.run_id for run in runs}
            victim = cluster.start_worker(crash=CrashPoint(point, 1 + number))
            assert await victim.ended() == -signal.SIGKILL, f"{point} was not reached:\n{victim.log_text()}"
        # One dies at any moment, most likely during requests.
        victim = cluster.start_worker()
        await _until_sending(receiver, victim)
        victim.kill()
        cluster.start_worker()
        await cluster.all_ended()
        await arrived(receiver, run_ids)
        check(receiver, secrets, run_ids)
        # Some were sent twice, since a sender died after sending, but not all.
        copies = Counter(item.id for item in receiver.of("/a"))
        assert sum(copies.values()) < 3 * len(run_ids)


async def _until_sending(receiver: WebhookReceiver, victim: Process) -> None:
    before = len(receiver.received)

    async def more() -> bool:
        assert victim.alive, victim.log_text()
        return len(receiver.received) > before

    await eventually(more, "a request of the next sender")
    await asyncio.sleep(0)
