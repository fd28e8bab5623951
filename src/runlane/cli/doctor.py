"""`runlane doctor`: check everything that a run needs, and report each problem with its fix.

It changes nothing and creates no database file. A finding is broken if runs cannot be accepted or executed because of
it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from runlane.cli.finding import Finding, Level
from runlane.cli.operation_findings import (
    bulk_findings,
    event_findings,
    flow_findings,
    graph_findings,
    hold_findings,
    letters_finding,
    quota_findings,
    schedule_findings,
    webhook_findings,
)
from runlane.cli.options import ApiKey, Json, Url
from runlane.cli.output import print_json
from runlane.cli.terminal import DIM, GREEN, RED, YELLOW, write_line
from runlane.domain.run import AGENT, ORCHESTRATION
from runlane.errors import InvalidSettings, RunlaneError, Unavailable, nearest

if TYPE_CHECKING:
    from runlane.domain.lane import Lane
    from runlane.domain.views import WorkerInfo
    from runlane.settings import Settings
    from runlane.store.queue.search import WaitingInLane
    from runlane.store.sql.database import Database

SKEW_SECONDS = 2.0
OLD_SECONDS = 60.0


def doctor(url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Check settings, database, schema, Redis, clock, workers, lanes, secrets. Exit code 1 if something is broken."""
    findings = asyncio.run(_check_all(dict(os.environ), url, api_key))
    broken = any(finding.level is Level.BROKEN for finding in findings)
    if json:
        print_json({"healthy": not broken, "findings": [asdict(finding) for finding in findings]})
    else:
        _print(findings)
    raise typer.Exit(1 if broken else 0)


async def _check_all(environment: Mapping[str, str], url: str | None, api_key: str | None) -> list[Finding]:
    from runlane.settings import load_settings

    findings = list(unknown_settings(environment))
    try:
        settings = load_settings()
    except InvalidSettings as error:
        findings.append(Finding("settings", Level.BROKEN, str(error), "Correct the variables; see: docs, settings"))
        return findings
    if not findings:
        findings.append(Finding("settings", Level.OK, "valid"))
    if url is not None and settings.database_url is None:
        message = "not checked, because a server is given; see its own check below"
        findings.append(Finding("database", Level.NOTE, message, "Set RUNLANE_DATABASE_URL to check it, too."))
    else:
        findings += await _check_database(settings)
    findings.append(await _check_redis(settings))
    if url is not None:
        findings.append(await _check_server(url, api_key))
    return findings


def unknown_settings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Report variables that look like settings and are ignored."""
    from runlane.settings import unknown_variables

    for name, hint in unknown_variables(environment):
        yield Finding("settings", Level.WARNING, f"{name} is not a known setting and is ignored{hint}", "Correct it.")


async def _check_database(settings: Settings) -> list[Finding]:
    from runlane.store.sql.database import open_database
    from runlane.store.sql.migrate import check_schema

    shown = settings.shown_database
    if settings.sqlite_path is not None and not settings.sqlite_path.exists():
        return [
            Finding("database", Level.NOTE, f"{shown} does not exist yet; the first command that needs it creates it")
        ]
    try:
        database = await open_database(settings, 2)
    except (RunlaneError, OSError) as error:
        cure = "Start the database, or correct RUNLANE_DATABASE_URL."
        return [Finding("database", Level.BROKEN, f"{shown} cannot be reached: {error}", cure)]
    try:
        findings = [Finding("database", Level.OK, f"{shown} answers")]
        try:
            await check_schema(database, shown)
        except RunlaneError as error:
            return [*findings, Finding("schema", Level.BROKEN, str(error), "Run: runlane db upgrade")]
        return [
            *findings,
            Finding("schema", Level.OK, "matches this version"),
            *await _check_work(database),
            await _check_secrets(database, settings),
            *await _check_webhooks(database, settings),
        ]
    except Unavailable as error:
        return [Finding("database", Level.BROKEN, f"{shown} stopped answering: {error}", "Check the database.")]
    finally:
        await database.close()


async def _check_work(database: Database) -> list[Finding]:
    from runlane.store.access.quota_health import read_nearly_used
    from runlane.store.events.health import read_event_health
    from runlane.store.failures.bulk_jobs import count_overdue_jobs
    from runlane.store.failures.letters import count_open_letters
    from runlane.store.queue.flow_overview import read_flow_health
    from runlane.store.queue.lanes import list_lanes
    from runlane.store.queue.search import count_queued_in_lanes
    from runlane.store.queue.workers import list_workers
    from runlane.store.schedules.health import read_schedule_health
    from runlane.store.sql.database import read_clock
    from runlane.store.threads.graphs import list_hosted_graphs

    before = time.time()
    now_us = await read_clock(database)
    skew_seconds = now_us / 1_000_000 - (before + time.time()) / 2
    workers, lanes = await list_workers(database), await list_lanes(database)
    letters = await count_open_letters(database)
    return [
        clock_finding(skew_seconds),
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
    ]


async def _check_secrets(database: Database, settings: Settings) -> Finding:
    from runlane.access.keyring import Keyring
    from runlane.store.access.secrets import count_by_key
    from runlane.store.webhooks.secrets import count_webhook_secrets

    counts = Counter(await count_by_key(database)) + Counter(await count_webhook_secrets(database))
    try:
        return secrets_finding(counts, Keyring(settings).key_ids)
    except InvalidSettings as error:
        return Finding("secrets", Level.BROKEN, str(error), "Correct the file, or RUNLANE_SECRET_KEY_FILE.")


async def _check_webhooks(database: Database, settings: Settings) -> list[Finding]:
    from runlane.store.webhooks.retention import webhook_overview

    return list(webhook_findings(await webhook_overview(database), delivers=settings.webhooks))


def secrets_finding(counts: Mapping[str, int], keys: Sequence[str]) -> Finding:
    """Report secrets whose key is missing or old."""
    missing = {key_id: count for key_id, count in counts.items() if key_id not in keys}
    if missing:
        keys_missing = ", ".join(f"{count} with {key_id}" for key_id, count in sorted(missing.items()))
        return Finding(
            "secrets",
            Level.BROKEN,
            f"{sum(missing.values())} cannot be read, because their key is not configured: {keys_missing}",
            "Add the key after the current one in RUNLANE_SECRET_KEY or its file, or set these secrets again.",
        )
    older = sum(count for key_id, count in counts.items() if key_id != keys[0])
    if older:
        return Finding("secrets", Level.NOTE, f"{older} are encrypted with an older key", "Run: runlane secrets rotate")
    if not keys:
        return Finding("secrets", Level.NOTE, "none, and no encryption key is configured; see: runlane secrets new-key")
    return Finding("secrets", Level.OK, f"{sum(counts.values())}, all encrypted with the key {keys[0]}")


def clock_finding(skew_seconds: float) -> Finding:
    """Report clock skew. It only affects the comparison of logs, because all decisions use the database's clock."""
    if abs(skew_seconds) <= SKEW_SECONDS:
        return Finding("clock", Level.OK, f"this host and the database differ by {abs(skew_seconds):.1f} s")
    direction = "behind" if skew_seconds > 0 else "ahead of"
    return Finding(
        "clock",
        Level.WARNING,
        f"this host is {abs(skew_seconds):.1f} s {direction} the database; its logs do not match the times of runs",
        "Synchronize the clocks (NTP). Leases and due times follow the database and are not affected.",
    )


def workers_finding(workers: Sequence[WorkerInfo], lanes: Sequence[Lane]) -> Finding:
    """Report whether workers are online."""
    live = [worker for worker in workers if worker.status == "online"]
    waiting = sum(lane.queued for lane in lanes)
    if live:
        busy, capacity = sum(worker.active for worker in live), sum(worker.capacity for worker in live)
        return Finding("workers", Level.OK, f"{len(live)} online, {busy} of {capacity} slots busy")
    cure = "Start one: runlane worker module:app"
    if waiting:
        return Finding("workers", Level.BROKEN, f"none online, and {waiting} runs wait", cure)
    return Finding("workers", Level.WARNING, "none online", cure)


def lane_findings(lanes: Sequence[Lane], workers: Sequence[WorkerInfo], now_us: int) -> Iterator[Finding]:
    """Report lanes whose runs cannot start, and why."""
    live = [worker for worker in workers if worker.status == "online"]
    stuck = False
    for lane in lanes:
        if not lane.queued:
            continue
        name, waiting = lane.name, f"{lane.queued} runs wait"
        serving = [worker for worker in live if "*" in worker.lanes or name in worker.lanes]
        age_seconds = 0.0 if lane.oldest_queued_at_us is None else (now_us - lane.oldest_queued_at_us) / 1_000_000
        finding = None
        if not lane.enabled:
            finding = Finding("lanes", Level.WARNING, f"{name}: {waiting}, but it is disabled",
                              f"Enable it: runlane lanes set {name} --enable")  # fmt: skip
        elif lane.max_slots == 0:
            finding = Finding("lanes", Level.WARNING, f"{name}: {waiting}, but it is paused (0 slots)",
                              f"Resume it: runlane lanes set {name} --uncapped")  # fmt: skip
        elif live and not serving:
            finding = Finding("lanes", Level.BROKEN, f"{name}: {waiting}, and no worker serves it",
                              f"Start one: runlane worker module:app --lanes {name}")  # fmt: skip
        elif (
            age_seconds > OLD_SECONDS
            and not lane.held
            and any(worker.active < worker.capacity for worker in serving)
            and (lane.max_slots is None or lane.running < lane.max_slots)
        ):
            finding = Finding(
                "lanes",
                Level.WARNING,
                f"{name}: {waiting}, the oldest for {age_seconds:.0f} s, although its workers have free slots",
                f"List the waiting runs: runlane runs list --status queued --lane {name}",
            )
        if finding is not None:
            stuck = True
            yield finding
    if not stuck:
        waiting = sum(lane.queued for lane in lanes)
        yield Finding("lanes", Level.OK, f"{len(lanes)} lanes, {waiting} runs wait, none is stuck")


def task_findings(waiting: Sequence[WaitingInLane], workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    """Report runs of a task that no live worker of their lane has: they would wait forever."""
    live = [worker for worker in workers if worker.status == "online"]
    unknown = False
    for kind in waiting:
        if kind.target.startswith((ORCHESTRATION, AGENT)):
            # Every worker executes them; workers only register their tasks.
            continue
        serving = [worker for worker in live if "*" in worker.lanes or kind.lane in worker.lanes]
        # The check of lanes reports a lane without workers; a worker without a list of tasks may have the task.
        if not serving or any(worker.targets is None or kind.target in worker.targets for worker in serving):
            continue
        unknown = True
        known = {target for worker in serving for target in worker.targets or ()}
        yield Finding(
            "tasks",
            Level.BROKEN,
            f'{kind.count} runs in the lane {kind.lane} wait for the task "{kind.target}", which no live worker of '
            f"this lane has{nearest(kind.target, known)}",
            "Start a worker with the app that defines it, or cancel them.",
        )
    if live and not unknown:
        yield Finding("tasks", Level.OK, "every task of a waiting run is registered by a live worker")


async def _check_redis(settings: Settings) -> Finding:
    if settings.redis_url is None:
        return Finding("redis", Level.NOTE, "not set; processes poll the database for work")
    from runlane.bus.redis_client import REDIS_ERRORS, open_client

    try:
        client = open_client(settings.redis_url.get_secret_value())
    except RunlaneError as error:
        return Finding("redis", Level.BROKEN, str(error), "Correct RUNLANE_REDIS_URL.")
    try:
        async with asyncio.timeout(5):
            await client.ping()
    except REDIS_ERRORS as error:
        return Finding(
            "redis",
            Level.WARNING,
            f"does not answer: {str(error) or type(error).__name__}",
            "Nothing is lost without it, but starts and streams are slower. Start it, or correct RUNLANE_REDIS_URL.",
        )
    finally:
        await client.close()
    return Finding("redis", Level.OK, "answers")


async def _check_server(url: str, api_key: str | None) -> Finding:
    from runlane.client import Client

    try:
        async with Client(url, api_key) as client:
            health = await client.health()
    except RunlaneError as error:
        return Finding("server", Level.BROKEN, str(error), "Start it: runlane serve module:app")
    if not health.ready:
        return Finding("server", Level.BROKEN, f"{url} is not ready: {dict(health.parts)}", "Check its log.")
    return Finding("server", Level.OK, f"{url} is ready")


def _print(findings: Sequence[Finding]) -> None:
    colours = {Level.OK: GREEN, Level.NOTE: DIM, Level.WARNING: YELLOW, Level.BROKEN: RED}
    for finding in findings:
        write_line(f" {finding.check:<13} {finding.message}", label=(f"{finding.level:<8}", colours[finding.level]))
        if finding.cure is not None:
            write_line(f"{'':<8} {'':<13} -> {finding.cure}")
