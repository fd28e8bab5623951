"""Shared helpers for tests of flow control: starts with rules, and time that passes on command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runlane.bus.memory import MemoryBus
from runlane.domain.options import RunOptions
from runlane.domain.run import Accepted, Run
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.text import dump_json
from runlane.maintenance.timers import Timers
from runlane.store.queue.accept import NewRun, Verdict, accept
from runlane.store.queue.ordering import key_locks
from runlane.store.sql.database import Session
from runlane.submit.flow_control import resolve, rule_input, start_flow
from tests.harness import Store, new_run


def start(rules: Mapping[str, Any], given: Mapping[str, Any] | None = None, **fields: Any) -> NewRun:
    """Return a start of `job` with these rules and this input."""
    values = dict(given or {})
    tenant = fields.get("tenant", DEFAULT_TENANT)
    flow = start_flow(None, RunOptions(flow_control=rules, tags=fields.get("tags", ())), values)
    assert flow is not None
    text, flow = rule_input(flow, dump_json(values))
    by_key, limits = resolve(flow, tenant, "job")
    return new_run(input=text, flow=by_key, limits=limits, **fields)


async def accept_in_groups(store: Store, requests: Sequence[NewRun]) -> list[Verdict]:
    """Accept starts in one transaction, each as a request of its own."""

    async def work(session: Session) -> list[Verdict]:
        await session.lock(exclusive=key_locks([request.ordering_key for request in requests]))
        return await accept(session, requests, [1] * len(requests))

    return await store.database.transact(work)


async def accepted(store: Store, request: NewRun) -> Accepted:
    """Accept a start that is not refused."""
    (verdict,) = await store.accept(request)
    assert isinstance(verdict, Accepted), verdict
    return verdict


async def pass_time(store: Store, seconds: float) -> None:
    """Move everything that flow control has scheduled into the past."""
    us = int(seconds * 1_000_000)
    await store.sql(
        f"update flow_keys set tat = tat - {us * 1000}, due_at = due_at - {us}, opened_at = opened_at - {us}"
    )
    await store.sql(f"update runs set due_at = due_at - {us}, expires_at = expires_at - {us}")
    await store.sql(f"update idempotency_keys set expires_at = expires_at - {us}")


async def run_timers(store: Store) -> None:
    """Run the timers service until nothing is due."""
    timers = Timers(store.database, MemoryBus())
    while await timers.run_once():
        pass


def described(run: Run) -> str:
    """Return why a run waits, as people read it."""
    assert run.waiting_reason is not None
    return run.waiting_reason["message"]
