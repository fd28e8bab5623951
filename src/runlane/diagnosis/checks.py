"""The checks that need the database, in the order in which they are reported."""

from __future__ import annotations

import time
from collections import Counter

from runlane.access.keyring import Keyring
from runlane.diagnosis.operation_findings import (
    bulk_findings,
    event_findings,
    flow_findings,
    graph_findings,
    hold_findings,
    letters_finding,
    quota_findings,
    retention_finding,
    schedule_findings,
    statements_finding,
    webhook_findings,
)
from runlane.diagnosis.work_findings import (
    clock_finding,
    lane_findings,
    secrets_finding,
    task_findings,
    transaction_finding,
    workers_finding,
)
from runlane.domain.finding import Finding, Level
from runlane.errors import InvalidSettings
from runlane.settings import Settings
from runlane.store.access.quota_health import read_nearly_used
from runlane.store.access.secrets import count_by_key
from runlane.store.access.servers import list_servers
from runlane.store.events.health import read_event_health
from runlane.store.failures.bulk_jobs import count_overdue_jobs
from runlane.store.failures.letters import count_open_letters
from runlane.store.queue.flow_overview import read_flow_health
from runlane.store.queue.lanes import list_lanes
from runlane.store.queue.operation_gauges import oldest_ended_seconds
from runlane.store.queue.search import count_queued_in_lanes
from runlane.store.queue.workers import list_workers
from runlane.store.schedules.health import read_schedule_health
from runlane.store.sql.database import Database, read_clock
from runlane.store.sql.transaction_age import oldest_transaction_seconds
from runlane.store.threads.graphs import list_hosted_graphs
from runlane.store.webhooks.retention import webhook_overview
from runlane.store.webhooks.secrets import count_webhook_secrets


async def check_work(database: Database) -> list[Finding]:
    """Check the clock, the database, and everything that may keep runs from being executed."""
    before = time.time()
    now_us = await read_clock(database)
    skew_seconds = now_us / 1_000_000 - (before + time.time()) / 2
    workers, lanes = await list_workers(database), await list_lanes(database)
    letters = await count_open_letters(database)
    return [
        clock_finding(skew_seconds),
        transaction_finding(await oldest_transaction_seconds(database)),
        workers_finding(workers, lanes),
        *lane_findings(lanes, workers, now_us),
        *hold_findings(lanes, now_us),
        *task_findings(await count_queued_in_lanes(database), workers),
        *bulk_findings(await count_overdue_jobs(database)),
        letters_finding(letters.count, (now_us - (letters.oldest_died_at_us or now_us)) / 1_000_000),
        *schedule_findings(await read_schedule_health(database)),
        *event_findings(await read_event_health(database)),
        *flow_findings(await read_flow_health(database)),
        *quota_findings(await read_nearly_used(database)),
        *graph_findings(await list_hosted_graphs(database)),
        statements_finding(await list_servers(database)),
    ]


async def check_secrets(database: Database, settings: Settings) -> Finding:
    """Check that every secret can be decrypted."""
    counts = Counter(await count_by_key(database)) + Counter(await count_webhook_secrets(database))
    try:
        return secrets_finding(counts, Keyring(settings).key_ids)
    except InvalidSettings as error:
        return Finding("secrets", Level.BROKEN, str(error), "Correct the file, or RUNLANE_SECRET_KEY_FILE.")


async def check_webhooks(database: Database, settings: Settings) -> list[Finding]:
    """Check endpoints and undelivered messages."""
    return list(webhook_findings(await webhook_overview(database), delivers=settings.webhooks))


async def check_retention(database: Database, settings: Settings) -> Finding:
    """Check that expired runs are deleted."""
    oldest = await oldest_ended_seconds(database)
    return retention_finding(settings.retention_days, oldest, settings.retention_seconds)
