"""The outcomes of triggers: one row per event and trigger, with exactly one decision.

An event is matched once: its transaction adds a pending row for each trigger that listens. An evaluator claims pending
rows for a moment, evaluates their conditions outside of a transaction, and decides each in a transaction that locks the
row, finds it still pending, accepts the run and stores the outcome. So a second evaluator, or one that was killed and
replaced, starts nothing twice, and a run exists if and only if its outcome is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import (
    BigInteger,
    Float,
    FromClause,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    cast,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.sql.base import Executable

from runlane.definitions.schema.trigger import Trigger
from runlane.domain.run import Accepted
from runlane.domain.tenant_event import WAITING_RUNS, Outcome, TenantEvent, listens
from runlane.errors import RunlaneError
from runlane.store.access.audit import append_audit
from runlane.store.definitions import load_all
from runlane.store.events.reading import event_of
from runlane.store.events.waiting import awaited
from runlane.store.queue.accept import NewRun, accept
from runlane.store.queue.limit_gate import accept_locks
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member, now_once, now_us, upsert
from runlane.store.sql.schema import definitions, event_outcomes, stored_events
from runlane.store.sql.statement import Row, Statement

# Events that one transaction matches, and pairs that an evaluator claims at once.
MATCHED_AT_ONCE: Final = 100
CLAIMED_AT_ONCE: Final = 20

_UNMATCHED = Statement(
    "unmatched_events",
    select(stored_events.c.id, stored_events.c.tenant, stored_events.c.name)
    .where(stored_events.c.matched_at.is_(None))
    .order_by(stored_events.c.id)
    .limit(lit(MATCHED_AT_ONCE))
    .with_for_update(skip_locked=True),
    purpose="Find events for which no triggers were looked up yet.",
)
_TRIGGERS = Statement(
    "current_triggers",
    select(definitions.c.tenant, definitions.c.id, definitions.c.version)
    .where(
        member(definitions.c.tenant, "tenants"),
        definitions.c.kind == lit("trigger"),
        definitions.c.removed_at.is_(None),
    )
    .order_by(definitions.c.tenant, definitions.c.id),
    purpose="Read the current triggers of tenants.",
)


def _add_pairs(batch: FromClause) -> Executable:
    b = batch.c
    return (
        upsert(event_outcomes)
        .from_select(
            ["event_id", "trigger", "tenant", "outcome", "created_at"],
            select(b.event_id, b.trigger, b.tenant, lit(Outcome.PENDING), now_us()).select_from(batch).where(true()),
        )
        .on_conflict_do_nothing(index_elements=["event_id", "trigger"])
    )


_PAIR = {"event_id": Text(), "trigger": Text(), "tenant": Text()}
_ADD_PAIRS = Statement("add_pending_outcomes", _add_pairs, _PAIR, purpose="Add events and triggers to be evaluated.")


def _reopen(batch: FromClause) -> Executable:
    b = batch.c
    statement = upsert(event_outcomes).from_select(
        ["event_id", "trigger", "tenant", "outcome", "created_at"],
        select(b.event_id, b.trigger, b.tenant, lit(Outcome.PENDING), now_us()).select_from(batch).where(true()),
    )
    return statement.on_conflict_do_update(
        index_elements=["event_id", "trigger"],
        set_={"outcome": lit(Outcome.PENDING), "reason": None, "decided_at": None, "claimed_until": lit(0)},
        where=event_outcomes.c.outcome.in_([lit(Outcome.FILTERED), lit(Outcome.FAILED)]),
    )


_REOPEN = Statement(
    "replay_outcomes", _reopen, _PAIR, purpose="Evaluate events for a trigger again, except those that started a run."
)
_MATCHED = Statement(
    "mark_matched",
    update(stored_events).where(member(stored_events.c.id, "ids")).values(matched_at=now_us()),
    purpose="Note that the triggers of events were looked up.",
)
_lease_us = cast(bindparam("seconds", type_=Float()) * 1_000_000, BigInteger)
_open = (
    select(event_outcomes.c.event_id, event_outcomes.c.trigger, event_outcomes.c.claimed_until)
    .where(
        event_outcomes.c.outcome == lit(Outcome.PENDING),
        event_outcomes.c.claimed_until <= now_once(),
        ~member(event_outcomes.c.tenant, "busy"),
    )
    .order_by(event_outcomes.c.claimed_until)
    .limit(bindparam("most", type_=Integer()))
    .with_for_update(skip_locked=True)
    .cte("open_pairs")
)
_of_pair = and_(
    event_outcomes.c.event_id == bindparam("event_id"),
    event_outcomes.c.trigger == bindparam("trigger"),
    event_outcomes.c.outcome == lit(Outcome.PENDING),
)
_CLAIM = Statement(
    "claim_outcomes",
    update(event_outcomes)
    .where(event_outcomes.c.event_id == _open.c.event_id, event_outcomes.c.trigger == _open.c.trigger)
    .values(
        claimed_until=now_us() + _lease_us,
        # A pair that has waited for an evaluator is given as much time as any other.
        created_at=case((_open.c.claimed_until == lit(0), now_us()), else_=event_outcomes.c.created_at),
    )
    .returning(
        event_outcomes.c.event_id,
        event_outcomes.c.trigger,
        event_outcomes.c.tenant,
        (now_us() - event_outcomes.c.created_at).label("age_us"),
    ),
    purpose="Claim events and triggers to evaluate, for a moment.",
)
_EVENTS = Statement(
    "read_claimed_events",
    select(stored_events).where(member(stored_events.c.id, "ids")),
    purpose="Read the events that an evaluator has claimed.",
)
_LOCK = Statement(
    "lock_outcome",
    select(event_outcomes.c.event_id).where(_of_pair).with_for_update(),
    purpose="Lock an event and trigger while it is decided.",
)
_DECIDE = Statement(
    "decide_outcome",
    update(event_outcomes)
    .where(_of_pair)
    .values(
        outcome=bindparam("decided", type_=Text()),
        run_id=bindparam("run_id", type_=Text()),
        reason=bindparam("reason", type_=Text()),
        decided_at=now_us(),
    ),
    purpose="Store what a trigger made of an event.",
)
_POSTPONE = Statement(
    "postpone_outcome",
    update(event_outcomes).where(_of_pair).values(claimed_until=now_us() + _lease_us),
    purpose="Evaluate an event and trigger later.",
)
_after = bindparam("after", type_=Text())
_REPLAYABLE = Statement(
    "events_to_replay",
    select(stored_events.c.id, stored_events.c.name, event_outcomes.c.outcome)
    .select_from(
        stored_events.outerjoin(
            event_outcomes,
            and_(
                event_outcomes.c.event_id == stored_events.c.id,
                event_outcomes.c.trigger == bindparam("trigger", type_=Text()),
            ),
        )
    )
    .where(
        stored_events.c.tenant == bindparam("tenant"),
        stored_events.c.id > _after,
        stored_events.c.received_at >= bindparam("from_us", type_=BigInteger()),
        or_(
            cast(bindparam("until_us", type_=BigInteger()), BigInteger).is_(None),
            stored_events.c.received_at < bindparam("until_us", type_=BigInteger()),
        ),
    )
    .order_by(stored_events.c.id)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read stored events from a time on, with what a trigger made of them.",
)


@dataclass(frozen=True, slots=True)
class ClaimedPair:
    """An event and a trigger to evaluate. `event` is None if retention has deleted it; `trigger` if it was removed.

    The age counts from the first evaluation, because an event may have waited for an evaluator.
    """

    event_id: str
    trigger_id: str
    tenant: str
    event: TenantEvent | None
    trigger: Trigger | None
    age_seconds: float


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of a trigger about an event: a run to accept, or an outcome without a run."""

    outcome: Outcome
    reason: str | None = None
    run: NewRun | None = None


async def match_events(session: Session) -> int:
    """Add a pending outcome for each trigger that listens to some new events; return how many events."""
    rows = await session.fetch(_UNMATCHED)
    if not rows:
        return 0
    triggers = await read_triggers(session, {row["tenant"] for row in rows})
    pairs = [
        (row["id"], trigger.id, row["tenant"])
        for row in rows
        for trigger in triggers.get(row["tenant"], ())
        if trigger.enabled and listens(trigger.event, row["name"])
    ]
    pairs += [(row["id"], WAITING_RUNS, row["tenant"]) for row in await awaited(session, rows)]
    await session.fetch(_ADD_PAIRS, sorted(pairs))
    await session.fetch(_MATCHED, ids=session.texts([row["id"] for row in rows]))
    return len(rows)


async def read_triggers(session: Session, tenants: Iterable[str]) -> dict[str, list[Trigger]]:
    """Return the current triggers of these tenants."""
    rows = await session.fetch(_TRIGGERS, tenants=session.texts(sorted(tenants)))
    found: dict[str, list[Trigger]] = {}
    for tenant in {row["tenant"] for row in rows}:
        versions = [("trigger", row["id"], row["version"]) for row in rows if row["tenant"] == tenant]
        loaded = await load_all(session, tenant, versions)
        found[tenant] = [trigger for trigger in loaded if isinstance(trigger, Trigger)]
    return found


async def claim_pairs(
    database: Database, seconds: float, most: int = CLAIMED_AT_ONCE, *, busy: Collection[str] = ()
) -> list[ClaimedPair]:
    """Claim some pending pairs for this time, with their events and the current versions of their triggers.

    Those of the tenants in `busy` are left to a later call.
    """

    async def work(session: Session) -> list[ClaimedPair]:
        pairs = await session.fetch(_CLAIM, seconds=seconds, most=most, busy=session.texts(sorted(busy)))
        if not pairs:
            return []
        ids = session.texts(sorted({pair["event_id"] for pair in pairs}))
        events = {row["id"]: row for row in await session.fetch(_EVENTS, ids=ids)}
        loaded = await read_triggers(session, {pair["tenant"] for pair in pairs})
        triggers = {(tenant, trigger.id): trigger for tenant, found in loaded.items() for trigger in found}
        return [_claimed(pair, events, triggers) for pair in pairs]

    return await database.transact(work)


def _claimed(pair: Row, events: Mapping[str, Row], triggers: Mapping[tuple[str, str], Trigger]) -> ClaimedPair:
    row = events.get(pair["event_id"])
    return ClaimedPair(
        pair["event_id"],
        pair["trigger"],
        pair["tenant"],
        None if row is None else event_of(row),
        triggers.get((pair["tenant"], pair["trigger"])),
        pair["age_us"] / 1_000_000,
    )


async def decide_pair(database: Database, pair: ClaimedPair, decision: Decision) -> Accepted | RunlaneError | None:
    """Accept the run and store the outcome in one transaction.

    Return the accepted run; the refusal of a limit, after which the pair is still pending; or None if another evaluator
    has decided the pair, or if no run was to be started.
    """
    named = {"event_id": pair.event_id, "trigger": pair.trigger_id}

    async def work(session: Session) -> Accepted | RunlaneError | None:
        run = decision.run
        if run is not None:
            await session.lock(exclusive=accept_locks([run]))
        if not await session.fetch(_LOCK, **named):
            return None
        accepted = None
        if run is not None:
            (verdict,) = await accept(session, [run], holds_limits=True)
            if not isinstance(verdict, Accepted):
                return verdict
            accepted = verdict
        if accepted is not None and not accepted.run_id:
            reason = f"Flow control has {accepted.outcome} the start."
            await session.fetch(_DECIDE, **named, decided=Outcome.FILTERED.value, run_id=None, reason=reason)
            return None
        run_id = None if accepted is None else accepted.run_id
        await session.fetch(_DECIDE, **named, decided=decision.outcome.value, run_id=run_id, reason=decision.reason)
        return accepted

    return await database.transact(work)


async def postpone_pair(database: Database, pair: ClaimedPair, seconds: float) -> None:
    """Leave a pair to a later evaluation."""

    async def work(session: Session) -> None:
        await session.fetch(_POSTPONE, event_id=pair.event_id, trigger=pair.trigger_id, seconds=seconds)

    await database.transact(work)


async def replay_events(
    database: Database,
    tenant: str,
    trigger: Trigger,
    *,
    from_us: int,
    until_us: int | None,
    after: str,
    limit: int,
    dry_run: bool,
    actor: str,
) -> tuple[list[str], int, str | None]:
    """Evaluate stored events for a trigger, except those that have started a run for it.

    Return the events, how many were left out for that reason, and the last event that was looked at if there may be
    more.
    """

    async def work(session: Session) -> tuple[list[str], int, str | None]:
        rows: Sequence[Row] = await session.fetch(
            _REPLAYABLE, tenant=tenant, trigger=trigger.id, from_us=from_us, until_us=until_us, after=after, limit=limit
        )
        matching = [row for row in rows if listens(trigger.event, row["name"])]
        before = sum(row["outcome"] in (Outcome.STARTED, Outcome.PENDING) for row in matching)
        chosen = [row["id"] for row in matching if row["outcome"] not in (Outcome.STARTED, Outcome.PENDING)]
        if chosen and not dry_run:
            await session.fetch(_REOPEN, [(event_id, trigger.id, tenant) for event_id in chosen])
            replayed = {"events": len(chosen), "first": chosen[0], "last": chosen[-1]}
            await append_audit(
                session, actor=actor, tenant=tenant, action="trigger.replay", subject=trigger.id, new=replayed
            )
        return chosen, before, rows[-1]["id"] if len(rows) == limit else None

    return await database.transact(work)
