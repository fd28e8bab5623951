"""Accept runs: one insert per table for any number of runs.

Idempotency keys are decided by their primary key, ordering keys and limits of tenants under their locks, all in the
transaction that stores the runs. Runs without keys, the common case, have a shorter statement that needs no
transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, MutableSet, Sequence
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from sqlalchemy import select

from runlane.domain.concurrency import ConcurrencyLimit
from runlane.domain.flow_keys import RunFlow
from runlane.domain.run import Accepted, AfterOn, RunHook, Status
from runlane.domain.tags import schedule_mark
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.text import load_json
from runlane.errors import IdempotencyConflict, RateQuota, RunlaneError, Unavailable
from runlane.store.queue.accept_keys import free_keys, replays
from runlane.store.queue.accept_statements import ACCEPT, ACCEPT_ALONE, ACCEPT_RULED
from runlane.store.queue.dependencies import prepare_dependencies, store_dependencies
from runlane.store.queue.flow_starts import finish_starts, limited_tenants, lock_keys_of, plan_starts, verdicts_of
from runlane.store.queue.limit_gate import NO_LIMITS, LimitGate, grouped, open_gate, store_gate
from runlane.store.queue.start_tags import NO_TAG, Placement, TagRequest, assign_tags
from runlane.store.queue.tags import add_tags, tags_json
from runlane.store.queue.tenant_limits import Refusal, refusals
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.database import Database, Duplicate, Session
from runlane.store.sql.expressions import member
from runlane.store.sql.schema import runs
from runlane.store.sql.statement import Row, Statement
from runlane.store.webhooks.run_webhooks import RunWebhook, add_run_webhooks


class NewRun(NamedTuple):
    """A validated request to start a run. `input` is JSON. A tuple, since bulk requests create many.

    `limits` are its concurrency limits. Flow control sets `due_at_us` when the run is accepted.
    """

    id: str
    target: str
    lane: str
    input: str
    priority: int
    max_attempts: int
    max_losses: int
    delay_us: int
    hold: bool
    ordering_key: str | None
    on_dead: str
    idempotency_key: str | None
    fingerprint: str
    tenant: str = DEFAULT_TENANT
    limited: bool = False
    trace: str | None = None
    plan: str | None = None
    origin: str | None = None
    hooks: int = 0
    fairness_key: str | None = None
    after: tuple[str, ...] = ()
    after_on: str = AfterOn.SUCCESS
    tags: tuple[str, ...] = ()
    webhook: RunWebhook | None = None
    flow: RunFlow | None = None
    limits: tuple[ConcurrencyLimit, ...] = ()
    due_at_us: int | None = None


_STORED = Statement(
    "find_stored_runs",
    select(runs.c.id, runs.c.status, runs.c.lane).where(member(runs.c.id, "ids")),
    purpose="Find those of some runs that are stored.",
)

Verdict = Accepted | IdempotencyConflict | Refusal | RunlaneError


async def accept(
    session: Session,
    requests: Sequence[NewRun],
    sizes: Sequence[int] | None = None,
    sharing: MutableSet[str] | None = None,
    *,
    holds_limits: bool = False,
) -> list[Verdict]:
    """Store the runs and return verdicts in the order of the requests. The caller holds the locks of ordering keys.

    With `holds_limits` the caller also holds the locks of concurrency limits (`accept_locks`), and runs may be admitted
    at once. `sizes` splits the requests into groups, by default one; a tenant's limit rejects a whole group. `sharing`
    are tenants whose runs got start tags before, which saves a statement; the set is kept up to date.
    """
    replayed, twins = await replays(session, requests)
    dependencies = await prepare_dependencies(
        session, [run for run in requests if run.after and run.id not in replayed and run.id not in twins]
    )
    if dependencies.hooks:
        requests = [run._replace(hooks=run.hooks | dependencies.hooks.get(run.id, 0)) for run in requests]
    fresh = [run for run in requests if run.id not in replayed and run.id not in twins]
    gate = NO_LIMITS
    if any(run.limits for run in fresh):
        # Limits come first, so that a rejected start does not count for any other rule.
        gate = await open_gate(session, grouped(requests, sizes, {**replayed, **twins}), holds_locks=holds_limits)
        await _free_refused(session, fresh, gate.refused)
        fresh = [run for run in fresh if run.id not in gate.refused]
    verdicts: dict[str, Verdict] = {**replayed, **gate.refused}
    if any(run.flow is not None for run in fresh):
        verdicts |= await _store_by_rules(session, requests, sizes, fresh, sharing, gate)
    else:
        verdicts |= await _store_unlimited(session, fresh, sharing, gate)
        left_out = {run.id for run in fresh if run.id not in verdicts}
        if left_out:
            verdicts |= await _store_limited(session, _groups(requests, sizes, left_out), gate)
    await store_gate(session, gate, verdicts)
    if dependencies.rows:
        # Imported here: the end of a run may start the next slot of a schedule, which accepts a run.
        from runlane.store.queue.run_ends import count_ended, settle_ended

        stored = [run_id for run_id, verdict in verdicts.items() if isinstance(verdict, Accepted)]
        impossible = await store_dependencies(session, dependencies, stored)
        await settle_ended(session, impossible.ended)
        count_ended(impossible.ended)
        verdicts |= {item.run_id: Accepted(item.run_id, item.status, item.lane) for item in impossible.released}
    for run_id, first in twins.items():
        verdict = verdicts[first]
        verdicts[run_id] = replace(verdict, replayed=True) if isinstance(verdict, Accepted) else verdict
    return [verdicts[run.id] for run in requests]


async def _store_unlimited(
    session: Session, fresh: Sequence[NewRun], sharing: MutableSet[str] | None, gate: LimitGate
) -> dict[str, Accepted]:
    """Store the runs of tenants without limits. Those of tenants that share lanes get their start tags first."""
    sharing = set() if sharing is None else sharing
    likely = [run for run in fresh if run.fairness_key is not None or run.tenant in sharing]
    places = await assign_tags(session, _tag_requests(likely, gate), sharing)
    stored = await _store(session, fresh, places, gate)
    left_out = [run for run in fresh if run.id not in stored and run.id not in places]
    if left_out:
        places = await assign_tags(session, _tag_requests(left_out, gate), sharing)
        stored |= await _store(session, [run for run in left_out if run.id in places], places, gate)
    return stored


def _tag_requests(fresh: Iterable[NewRun], gate: LimitGate) -> list[TagRequest]:
    return [
        TagRequest(
            run.id, run.target, run.lane, run.tenant, run.fairness_key or "", run.priority, run.limited,
            is_ready=run.delay_us == 0 and not run.hold and run.due_at_us is None and run.id not in gate.waits,
        )
        for run in fresh
    ]  # fmt: skip


async def _store(
    session: Session, fresh: Sequence[NewRun], places: Mapping[str, Placement], gate: LimitGate
) -> dict[str, Accepted]:
    """Store the runs that may be stored now, and find those that an earlier try has stored."""
    if not fresh:
        return {}
    if not places and not gate.limits and _has_only_rules(fresh):
        rows = list(await session.write(ACCEPT_RULED, [(*plain_columns(run), *_flow_columns(run)) for run in fresh]))
    else:
        rows = list(await session.write(ACCEPT, _members(fresh, places, gate)))
    hooked = {run.id: (run.id, run.tenant, run.webhook) for run in fresh if run.webhook is not None}
    if hooked:
        await add_run_webhooks(session, [hooked[row["id"]] for row in rows if row["id"] in hooked])
    if len(rows) < len(fresh):
        missing = {run.id for run in fresh} - {row["id"] for row in rows}
        rows += await session.fetch(_STORED, ids=session.texts(sorted(missing)))
    stored = accepted_of(rows)
    marked = ((run.tenant, run.id, _marks(run)) for run in fresh if run.id in stored and (run.tags or run.origin))
    await add_tags(session, marked)
    return stored


def _marks(run: NewRun) -> tuple[str, ...]:
    """Return the marks by which lists find the run: its tags, and the schedule that started it."""
    schedule_id = None if run.origin is None else load_json(run.origin).get("schedule")
    return run.tags if schedule_id is None else (*run.tags, schedule_mark(schedule_id))


async def _store_by_rules(
    session: Session,
    requests: Sequence[NewRun],
    sizes: Sequence[int] | None,
    fresh: Sequence[NewRun],
    sharing: MutableSet[str] | None,
    gate: LimitGate,
) -> dict[str, Verdict]:
    """Store the runs that the limits of their tenants and then their rules of flow control let start."""
    keys = await lock_keys_of(session, fresh)
    limited = await limited_tenants(session, {run.tenant for run in fresh}) if keys.limited else set[str]()
    counted = {run.id for run in fresh if run.tenant in limited}
    admission = await _admit(session, _groups(requests, sizes, counted)) if counted else _Admission([], {}, {})
    ready = {run.id: run for run in fresh if run.tenant not in limited} | {run.id: run for run in admission.runs}
    groups = [[ready[run.id] for run in group] for group in _groups(requests, sizes, ready)]
    plan = await plan_starts(session, groups, keys.states)
    stored = await _store_unlimited(session, [run for run in plan.new.values() if not run.limited], sharing, gate)
    stored |= await _store_admitted(session, [run for run in plan.new.values() if run.limited], admission, gate)
    if len(stored) < len(plan.new):
        raise Unavailable("The limits of a tenant were changed at this moment; the next try checks them.")
    await finish_starts(session, plan, list(ready.values()))
    return {**admission.refused, **plan.refused, **verdicts_of(plan, stored)}


class _Admission(NamedTuple):
    """The runs that the limits of their tenants admit, and the remaining rate by run."""

    runs: list[NewRun]
    quotas: dict[str, RateQuota | None]
    refused: dict[str, Verdict]


async def _store_limited(session: Session, groups: Sequence[Sequence[NewRun]], gate: LimitGate) -> dict[str, Verdict]:
    """Store the groups that are within the limits of their tenants."""
    admission = await _admit(session, groups)
    return {**admission.refused, **await _store_admitted(session, admission.runs, admission, gate)}


async def _store_admitted(
    session: Session, admitted: Sequence[NewRun], admission: _Admission, gate: LimitGate
) -> dict[str, Accepted]:
    places = await assign_tags(session, _tag_requests(admitted, gate))
    stored = await _store(session, admitted, places, gate)
    return {run_id: replace(item, quota=admission.quotas[run_id]) for run_id, item in stored.items()}


async def _admit(session: Session, groups: Sequence[Sequence[NewRun]]) -> _Admission:
    refused: dict[str, Verdict] = {}
    admitted: list[NewRun] = []
    reasons = await refusals(session, [(group[0].tenant, [run.input for run in group]) for group in groups])
    quotas: dict[str, RateQuota | None] = {}
    for group, reason in zip(groups, reasons, strict=True):
        if reason is None or isinstance(reason, RateQuota):
            admitted += [run._replace(limited=True) for run in group]
            quotas |= {run.id: reason for run in group}
        else:
            refused |= {run.id: reason for run in group}
    await _free_refused(session, (run for group in groups for run in group), refused)
    return _Admission(admitted, quotas, refused)


async def _free_refused(session: Session, new_runs: Iterable[NewRun], refused: Collection[str]) -> None:
    if refused and any(run.idempotency_key is not None for run in new_runs):
        await free_keys(session, refused)


def _groups(requests: Sequence[NewRun], sizes: Sequence[int] | None, wanted: Collection[str]) -> list[list[NewRun]]:
    """Return the requests by group and tenant."""
    groups: list[list[NewRun]] = []
    rest = iter(requests)
    for size in sizes or [len(requests)]:
        by_tenant: dict[str, list[NewRun]] = {}
        for run in islice(rest, size):
            if run.id in wanted:
                by_tenant.setdefault(run.tenant, []).append(run)
        groups += by_tenant.values()
    return groups


def _has_only_rules(requests: Iterable[NewRun]) -> bool:
    """Return whether the runs have rules of flow control, and nothing that their short statement lacks."""
    return all(
        run.flow is not None
        and run.ordering_key is None
        and run.origin is None
        and run.hooks == 0
        and run.fairness_key is None
        and not run.tags
        and not run.limited
        for run in requests
    )


def stand_alone(requests: Iterable[NewRun]) -> bool:
    """Return whether the short statements support all of these runs. Concurrency limits have their own statement."""
    return all(map(_ALONE.__eq__, map(_beyond_alone, requests)))


# The fields that the short statements do not support, with their values in a plain run.
_beyond_alone = itemgetter(
    *map(
        NewRun._fields.index,
        ("ordering_key", "idempotency_key", "origin", "hooks", "fairness_key", "after", "tags", "flow"),
    )
)
_ALONE = (None, None, None, 0, None, (), (), None)


async def accept_alone(
    database: Database, requests: Sequence[NewRun], statement: CompoundWrite = ACCEPT_ALONE
) -> dict[str, Accepted] | None:
    """Store runs without keys with one statement, in one round trip; return the verdicts by id.

    Return None if some runs exist, if a tenant has limits, or if it shares lanes and the statement assigns no start
    tags; then use `accept`. A broken connection leaves nothing in doubt: this process creates the ids, so the next try
    finds the stored runs.
    """
    try:
        rows = await database.execute_single(statement, [plain_columns(run) for run in requests])
    except Duplicate:
        return None
    return accepted_of(rows) if len(rows) == len(requests) else None


def plain_columns(run: NewRun) -> tuple[object, ...]:
    """Return the values that every statement that accepts runs stores."""
    return (
        run.id, run.target, run.lane, run.priority, run.max_attempts, run.max_losses, run.delay_us, run.hold,
        run.on_dead, run.input, run.tenant, run.trace, run.plan,
    )  # fmt: skip


def _members(requests: Sequence[NewRun], places: Mapping[str, Placement], gate: LimitGate) -> list[tuple[object, ...]]:
    positions: Counter[str] = Counter()
    members: list[tuple[object, ...]] = []
    for run in requests:
        position = 0
        if run.ordering_key is not None:
            positions[run.ordering_key] += 1
            position = positions[run.ordering_key]
        keys = (run.ordering_key, position, run.fairness_key)
        place = (run.id in places, *places.get(run.id, NO_TAG))
        hooks, tags = int(run.hooks | RunHook.LIMITS if run.limits else run.hooks), tags_json(run.tags)
        limits = (gate.limits_text(run.id), run.id in gate.waits) if run.limits else (None, False)
        described = (run.limited, run.origin, hooks, tags)
        members.append((*plain_columns(run), *described, *keys, *place, *limits, *_flow_columns(run)))
    return members


def _flow_columns(run: NewRun) -> tuple[object, ...]:
    flow = run.flow
    if flow is None:
        return (None,) * 5
    timed = flow.throttle or flow.debounce or flow.batch
    return (
        run.due_at_us,
        flow.expires_us,
        None if flow.unique is None else flow.unique.key,
        None if flow.max_backlog is None else flow.max_backlog.key,
        None if timed is None or run.due_at_us is None else timed.key,
    )


def accepted_of(rows: Sequence[Row]) -> dict[str, Accepted]:
    """Return the verdicts on stored runs, by id."""
    return {row["id"]: Accepted(row["id"], Status(row["status"]), row["lane"]) for row in rows}
