"""Shared test helpers: accept, claim and finish runs, raw SQL on either dialect, bounded waiting."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import SecretStr
from sqlalchemy import text

from runlane.domain.events import Event
from runlane.domain.ids import new_id
from runlane.domain.run import Accepted, Run, Status
from runlane.domain.slots import WorkerLoad
from runlane.settings import Settings, load_settings, redact_settings
from runlane.store.queue.accept import NewRun, Verdict, accept
from runlane.store.queue.claim import Claimed, claim
from runlane.store.queue.claim_locks import LaneMemory
from runlane.store.queue.events import read_events
from runlane.store.queue.limit_gate import accept_locks
from runlane.store.queue.ordering import key_locks
from runlane.store.queue.record import AttemptOutcome, Finish, Recorded, RecordEntry, record
from runlane.store.queue.runs import find_run
from runlane.store.queue.timers import queue_due
from runlane.store.queue.workers import register
from runlane.store.sql.database import Database, Session, read
from runlane.store.sql.statement import Statement

WAIT_SECONDS = 90.0
TABLES = (
    "runs", "run_inputs", "run_results", "run_attempts", "run_steps", "run_calls", "run_waits", "run_events",
    "idempotency_keys", "dead_letters", "workers", "lanes", "lane_kinds", "tenants", "api_keys", "roles", "audit",
    "api_answers", "definitions", "definition_versions", "secrets",
    "provider_limits", "provider_states", "provider_leases", "provider_seconds", "provider_waiters",
    "usage_daily", "chat_sessions", "chat_turns", "run_children", "bulk_jobs", "bulk_items", "run_tags",
    "lane_shares", "lane_clocks", "lane_holds", "schedules", "schedule_firings", "run_dependencies", "dependency_work",
    "tenant_quotas", "stored_events", "event_ids", "event_rates", "event_outcomes", "run_listeners", "webhook_sources",
    "webhook_endpoints", "webhook_secrets", "run_webhooks", "webhook_messages", "webhook_notices", "webhook_deliveries",
    "webhook_attempts", "concurrency_limits", "limit_slots", "limit_waits", "limit_turns", "flow_keys", "batch_items",
    "graphs", "assistants", "assistant_versions", "threads", "thread_runs", "checkpoints", "checkpoint_values",
    "checkpoint_writes", "store_items", "memory_users", "memory_vaults", "memories", "memory_entries",
    "memory_fragments", "memory_ops", "memory_nodes", "memory_vectors", "memory_indexes", "browser_sessions",
    "saved_views", "servers", "run_series", "action_links",
)  # fmt: skip


def settings_for(url: str, **overrides: Any) -> Settings:
    """Return settings for a database of the suite, by default without a health port.

    Loading settings takes ten milliseconds of computing, for thousands of tests. They are loaded and validated once
    for each environment and set of overrides, and get the values that differ in every test.
    """
    own = {name: overrides.pop(name) for name in ("redis_prefix", "secret_key") if name in overrides}
    # Rules between settings depend on the kind of database, not on the path of its file.
    kind = "sqlite:///suite.db" if url.startswith("sqlite:") else url
    fields = {"database_url": kind, "worker_health_port": 0} | overrides
    # Pytest changes one variable for each test.
    environment = frozenset(item for item in os.environ.items() if item[0] != "PYTEST_CURRENT_TEST")
    key = (environment, Path.cwd(), pickle.dumps(sorted(fields.items())))
    if key not in _loaded:
        _loaded[key] = load_settings(**fields)
    if isinstance(own.get("secret_key"), str):
        own["secret_key"] = SecretStr(own["secret_key"])
    settings = _loaded[key].model_copy(update={"database_url": SecretStr(url), **own})
    redact_settings(settings)
    return settings


_loaded: dict[tuple[frozenset[tuple[str, str]], Path, bytes], Settings] = {}


async def eventually(condition: Callable[[], Any], what: str = "the condition", seconds: float = WAIT_SECONDS) -> Any:
    """Wait until the condition, plain or async, holds, and return its value. The timeout allows for a busy machine."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not hold within {seconds:g} seconds")
        await asyncio.sleep(0.01)


def new_run(**overrides: Any) -> NewRun:
    """Return a request to run `job` in the default lane."""
    plain = NewRun(
        id=new_id("run"),
        target="job",
        lane="default",
        input="{}",
        priority=0,
        max_attempts=3,
        max_losses=10,
        delay_us=0,
        hold=False,
        ordering_key=None,
        on_dead="skip",
        idempotency_key=None,
        fingerprint="",
    )
    return plain._replace(**overrides)


def completed(result: str = "null") -> Finish:
    return Finish(AttemptOutcome.COMPLETED, Status.COMPLETED, result=result)


def dead(message: str = "no") -> Finish:
    return Finish(
        AttemptOutcome.FAILED, Status.FAILED, error=f'{{"type":"Error","message":"{message}","traceback":"tb"}}'
    )


def failed_once(delay_us: int = 60_000_000) -> Finish:
    error = '{"type":"Error","message":"again","traceback":"tb"}'
    return Finish(AttemptOutcome.FAILED, Status.SCHEDULED, error=error, delay_us=delay_us)


def entry_of(claimed: Claimed, finish: Finish | None = None, **fields: Any) -> RecordEntry:
    return RecordEntry(
        claimed.run_id, claimed.attempt, claimed.lane, ordering_key=claimed.ordering_key, finish=finish, **fields
    )


class Store:
    """A database with shortcuts. Each method is one transaction unless stated otherwise."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self.settings = settings
        self.database = database

    async def accept(self, *requests: NewRun) -> list[Verdict]:
        async def work(session: Session) -> list[Verdict]:
            await session.lock(exclusive=accept_locks(requests))
            return await accept(session, requests, holds_limits=True)

        return await self.database.transact(work)

    async def add(self, **fields: Any) -> str:
        """Accept one run and return its id."""
        return (await self.add_all(new_run(**fields)))[0].run_id

    async def add_all(self, *requests: NewRun) -> list[Accepted]:
        verdicts = await self.accept(*requests)
        assert all(isinstance(verdict, Accepted) for verdict in verdicts)
        return cast("list[Accepted]", verdicts)

    async def worker(self, *, lease_seconds: float = 600, has_lock: bool = False) -> str:
        """Register a worker and return its id."""
        worker_id = new_id("wrk")
        await register(
            self.database,
            worker_id=worker_id,
            host="host",
            pid=1,
            version="test",
            lanes=("default",),
            capacity=10,
            has_lock=has_lock,
            lease_seconds=lease_seconds,
        )
        return worker_id

    async def claim(
        self,
        worker_id: str,
        slots: int = 10,
        *,
        targets: Sequence[str] = ("job",),
        memory: LaneMemory | None = None,
        load: WorkerLoad | None = None,
    ) -> list[Claimed]:
        """Claim as the worker's loop does: repeat while a lane could not be served."""
        memory = memory or LaneMemory()
        while True:
            outcome = await self.database.transact(
                lambda session: claim(session, worker_id, targets, slots, memory, load)
            )
            if outcome.claims or not outcome.again:
                return list(outcome.claims)

    async def claim_one(self, worker_id: str | None = None) -> Claimed:
        claims = await self.claim(worker_id or await self.worker(), 1)
        assert len(claims) == 1
        return claims[0]

    async def record(self, *entries: RecordEntry) -> dict[tuple[str, int], Recorded]:
        async def work(session: Session) -> dict[tuple[str, int], Recorded]:
            await session.lock(exclusive=key_locks([entry.ordering_key for entry in entries if entry.finish]))
            return (await record(session, entries))[0]

        return await self.database.transact(work)

    async def expire(self, worker_id: str) -> None:
        """Expire the worker's lease."""
        await self.sql("update workers set lease_until = 1 where id = :id", id=worker_id)

    async def make_due(self) -> None:
        """Make every scheduled run due and queue it."""
        await self.sql("update runs set due_at = 1 where status = 'scheduled'")
        await self.database.transact(queue_due)

    async def finish(self, claimed: Claimed, finish: Finish | None = None) -> Recorded | None:
        verdicts = await self.record(entry_of(claimed, finish or completed()))
        return verdicts.get((claimed.run_id, claimed.attempt))

    async def get(self, run_id: str) -> Run:
        return await find_run(self.database, run_id)

    async def status(self, run_id: str) -> Status:
        return (await self.get(run_id)).status

    async def events(self, run_id: str) -> list[Event]:
        return list(await read_events(self.database, run_id))

    async def event_types(self, run_id: str) -> list[str]:
        return [event.type for event in await self.events(run_id)]

    async def sql(self, statement: str, **params: Any) -> list[dict[str, Any]]:
        """Execute raw SQL with parameters written as :name."""
        rows = await read(self.database, Statement("raw", text(statement)), **params)
        return [dict(row) for row in rows]

    async def count(self, table: str) -> int:
        return (await self.sql(f"select count(*) as n from {table}"))[0]["n"]

    async def contents(self) -> dict[str, list[dict[str, Any]]]:
        """Return every row of every table, for tests that assert that nothing changed."""
        found: dict[str, list[dict[str, Any]]] = {}
        for table in TABLES:
            rows = await self.sql(f"select * from {table}")
            found[table] = sorted(rows, key=repr)
        return found

    async def check_stream(self, run_id: str) -> list[Event]:
        """Check the rules that hold for every stream, and return the run's events."""
        run, events = await self.get(run_id), await self.events(run_id)
        assert [event.seq for event in events] == list(range(1, run.last_seq + 1))
        done = [event for event in events if event.type == "done"]
        revivals = sum(event.type == "revived" for event in events)
        assert len(done) == revivals + (1 if run.status.terminal else 0)
        if run.status.terminal:
            assert events[-1].type == "done"
            assert events[-1].data == {"status": run.status.value}
        return events
