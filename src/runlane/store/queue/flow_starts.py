"""Flow control in the transaction that accepts runs.

The rows of all keys are locked in one order by one statement, so starts with the same key are decided one after
another, in every process, and starts with other keys never wait for them. A transaction that holds keys does not wait
for the row of a run: if another transaction has locked the row, the transaction starts again. Whether a unique key is
taken, how many runs wait, and whether a run can still be joined is read from the runs themselves, so a worker or a
process that dies leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from runlane.domain.events import EventType
from runlane.domain.flow_keys import FlowRule, StartOutcome, label_of_key
from runlane.domain.ids import lock_key
from runlane.domain.quota import COLLECTING_KEYS, DAY_US
from runlane.domain.run import Accepted, Status
from runlane.domain.text import dump_json, load_json
from runlane.errors import BacklogFull, RunlaneError, StartLimited, Unavailable, UniqueConflict
from runlane.observability import metrics
from runlane.store.access.quota_warnings import warn_of_quota
from runlane.store.orchestration.children import MARK_CHILDREN
from runlane.store.queue import flow_statements as sql
from runlane.store.queue.accept_keys import free_keys
from runlane.store.queue.events import append
from runlane.store.queue.flow_plan import FlowPlan, KeyState, OpenRun, StartDecision
from runlane.store.sql.database import Database, Session
from runlane.store.sql.statement import Row

if TYPE_CHECKING:
    from runlane.store.queue.accept import NewRun

_AFTER_RATE = KeyState._fields.index("tat") + 1
_state_of = cast("Callable[[Row], tuple[Any, ...]]", itemgetter(*KeyState._fields))


class LockedByOthers(Unavailable):
    """Another transaction is changing the run that a start would change; the next try decides again."""


async def limited_tenants(session: Session, tenants: Collection[str]) -> set[str]:
    """Return the tenants among these that have limits."""
    rows = await session.fetch(sql.LIMITED_TENANTS, ids=session.texts(sorted(tenants)))
    return {row["id"] for row in rows}


class LockedKeys(NamedTuple):
    """The state of keys that this transaction has locked, and whether one of the tenants has limits."""

    states: Mapping[str, KeyState]
    limited: bool


async def lock_flow_keys(session: Session, keys: Iterable[str], tenants: Collection[str]) -> LockedKeys:
    """Lock keys until the end of the transaction; return their state."""
    wanted = set(keys)
    if not wanted:
        return LockedKeys({}, limited=bool(await limited_tenants(session, tenants)))
    named = session.texts(sorted(tenants))
    rows = list(await session.fetch(sql.LOCK_KEYS, keys=session.texts(sorted(wanted)), tenants=named))
    if missing := sorted(wanted - {row["key"] for row in rows}):
        await session.fetch(sql.ADD_KEYS, [(key,) for key in missing])
        rows += await session.fetch(sql.LOCK_KEYS, keys=session.texts(missing), tenants=named)
    states = {row["key"]: KeyState._make(_state_of(row)) for row in rows}
    return LockedKeys(states, limited=any(row["limited"] for row in rows))


async def lock_keys_of(session: Session, new_runs: Iterable[NewRun]) -> LockedKeys:
    """Lock the keys of starts."""
    known = list(new_runs)
    flows = [run.flow for run in known if run.flow is not None]
    return await lock_flow_keys(session, (key for flow in flows for key in flow.keys), {run.tenant for run in known})


async def plan_starts(session: Session, groups: Sequence[Sequence[NewRun]], states: Mapping[str, KeyState]) -> FlowPlan:
    """Decide starts whose keys are locked, and cancel the stored runs that new ones replace."""
    flows = [run.flow for group in groups for run in group if run.flow is not None]
    plan = FlowPlan(dict(states))
    if unique := sorted({flow.unique.key for flow in flows if flow.unique is not None}):
        plan.unique = await _open_unique(session, unique)
    if backlog := sorted({flow.max_backlog.key for flow in flows if flow.max_backlog is not None}):
        rows = await session.fetch(sql.COUNT_BACKLOG, keys=session.texts(backlog))
        plan.backlog = {row["backlog_key"]: row["waiting"] for row in rows}
    plan.joinable = await _joinable(session, states)
    before = await _read_collecting(session, plan, [run for group in groups for run in group])
    for group in groups:
        plan.decide(group)
    for tenant, used in before.items():
        most, now = plan.most_collecting[tenant], plan.collecting[tenant]
        await warn_of_quota(session, tenant, COLLECTING_KEYS, most, used, now)
    await _store_keys(session, plan, states)
    await _cancel_replaced(session, plan, plan.replaced.keys() - plan.new.keys())
    return plan


async def _store_keys(session: Session, plan: FlowPlan, states: Mapping[str, KeyState]) -> None:
    """Store the keys that the starts have changed or used for the first time today."""
    changed = [
        (key, state)
        for key, state in sorted(plan.states.items(), key=itemgetter(0))
        if state is not states[key] or state.used_on != state.now // DAY_US
    ]
    # The common case, of rate limits and throttles, has two columns instead of nine.
    if all(state[_AFTER_RATE:] == states[key][_AFTER_RATE:] for key, state in changed):
        await session.fetch(sql.STORE_RATES, [(key, state.tat) for key, state in changed])
    else:
        await session.fetch(sql.STORE_KEYS, [(key, *state[1:-1]) for key, state in changed])


async def _read_collecting(session: Session, plan: FlowPlan, starts: Sequence[NewRun]) -> dict[str, int]:
    """Read what tenants have used of their quota of keys. The accept of limited runs has locked their tenants."""
    collecting = (
        run for run in starts if run.limited and run.flow is not None and (run.flow.debounce or run.flow.batch)
    )
    tenants = sorted({run.tenant for run in collecting})
    if not tenants:
        return {}
    rows = await session.fetch(sql.COLLECTING_QUOTAS, ids=session.texts(tenants))
    plan.most_collecting = {row["tenant"]: row["most"] for row in rows}
    for tenant in plan.most_collecting:
        plan.collecting[tenant] = (await session.fetch(sql.COUNT_COLLECTING, tenant=tenant))[0]["used"]
    return dict(plan.collecting)


async def _open_unique(session: Session, keys: Sequence[str]) -> dict[str, OpenRun]:
    rows = await session.fetch(sql.OPEN_UNIQUE, keys=session.texts(keys))
    return {
        row["unique_key"]: OpenRun(row["id"], row["lane"], Status(row["status"]), row["ordering_key"]) for row in rows
    }


async def _joinable(session: Session, states: Mapping[str, KeyState]) -> dict[str, Row]:
    wanted = sorted({state.run_id for state in states.values() if state.run_id and (state.due_at or 0) > state.now})
    if not wanted:
        return {}
    locked = {row["id"]: row for row in await session.fetch(sql.LOCK_JOINABLE, ids=session.texts(wanted))}
    rest = [run_id for run_id in wanted if run_id not in locked]
    if rest and await session.fetch(sql.FIND_JOINABLE, ids=session.texts(rest)):
        raise LockedByOthers("A run that the start joins is being changed; the next try joins it.")
    return locked


async def _cancel_replaced(session: Session, plan: FlowPlan, run_ids: Collection[str]) -> None:
    """Cancel runs that new ones replace. A running one stops soon; its unique key is free at once."""
    if not run_ids:
        return
    # Imported here: the end of a run may start the next slot of a schedule, which accepts a run.
    from runlane.store.queue.early_ends import END_REPLACED, settle_early
    from runlane.store.queue.replaced_runs import LOCK_REPLACED, REQUEST_CANCEL

    ids = session.texts(sorted(run_ids))
    locked = await session.fetch(LOCK_REPLACED, ids=ids)
    if len(locked) < len(run_ids):
        raise LockedByOthers("A run that the start replaces is being changed; the next try replaces it.")
    for key in sorted({row["ordering_key"] for row in locked if row["ordering_key"] is not None}):
        if not await session.try_lock(lock_key("key", key)):
            raise LockedByOthers("The ordering key of a replaced run is in use; the next try replaces the run.")
    await session.fetch(sql.GIVE_UP_UNIQUE, ids=ids)
    for row in locked:
        if row["attempt"] > 0:
            await session.fetch(MARK_CHILDREN, run_id=row["id"])
    ended = await session.fetch(END_REPLACED, ids=ids)
    messages = {row["id"]: f"Run {plan.replaced[row['id']]} with the same unique key takes its place." for row in ended}
    await settle_early(session, ended, {run_id: ("replaced", text) for run_id, text in messages.items()})
    running = await session.fetch(REQUEST_CANCEL, ids=ids)
    kind = EventType.CANCEL_REQUESTED.value
    await append(session, [(row["id"], row["last_seq"], row["attempt"], kind, None, "{}") for row in running])


async def finish_starts(session: Session, plan: FlowPlan, requests: Sequence[NewRun]) -> None:
    """Store the changes of the starts to other runs and keys, after the new runs are stored."""
    await _cancel_replaced(session, plan, plan.replaced.keys() & plan.new.keys())
    inputs = [(run_id, item.input, item.plan) for run_id, item in plan.joined.items() if item.input is not None]
    await session.fetch(sql.REPLACE_INPUTS, sorted(inputs, key=lambda row: row[0]))
    await session.fetch(sql.ADD_ITEMS, sorted((*key, item) for key, item in plan.items.items()))
    members = sorted((run_id, item.due_at, min(1, item.starts)) for run_id, item in plan.joined.items())
    rows = await session.fetch(sql.JOIN_RUNS, members)
    joined = {row["id"]: row for row in rows if plan.joined[row["id"]].starts}
    await append(
        session,
        [
            (run_id, row["last_seq"], row["attempt"], EventType.STARTS_JOINED.value, None, _joined_data(plan, run_id))
            for run_id, row in joined.items()
        ],
    )
    await _settle_keys(session, plan, requests)


def _joined_data(plan: FlowPlan, run_id: str) -> str:
    item = plan.joined[run_id]
    return dump_json({"starts": item.starts, "due_at_us": item.due_at})


async def _settle_keys(session: Session, plan: FlowPlan, requests: Sequence[NewRun]) -> None:
    """Store the joined runs under the idempotency keys of the starts, and free the keys of starts without a run."""
    keyed = [run for run in requests if run.idempotency_key is not None]
    if not keyed:
        return
    decided = {run.id: plan.decisions.get(run.id) for run in keyed}
    without = {run_id for run_id, decision in decided.items() if decision is None or not decision.run_id}
    if without:
        await free_keys(session, without)
    assigned = sorted(
        (run.idempotency_key, decision.run_id, decision.start_id)
        for run in keyed
        if (decision := decided[run.id]) is not None
        and decision.run_id
        and (decision.run_id != run.id or decision.start_id is not None)
    )
    await session.fetch(sql.ASSIGN_KEYS, assigned)


def verdicts_of(plan: FlowPlan, stored: Mapping[str, Accepted]) -> dict[str, Accepted]:
    """Return the verdicts on the decided starts; `stored` are those on the new runs."""
    return {run_id: _verdict(plan, run_id, decision, stored) for run_id, decision in plan.decisions.items()}


def _verdict(plan: FlowPlan, run_id: str, decision: StartDecision, stored: Mapping[str, Accepted]) -> Accepted:
    if decision.outcome in (StartOutcome.SKIPPED, StartOutcome.DROPPED):
        lane = decision.existing.lane if decision.existing is not None else ""
        return Accepted("", Status.CANCELLED, lane, outcome=decision.outcome)
    known = stored.get(decision.run_id)
    if known is not None and decision.is_plain:
        return known
    if known is None and decision.existing is not None:
        known = Accepted(decision.run_id, decision.existing.status, decision.existing.lane)
    if known is None:
        row = plan.joinable[decision.run_id]
        known = Accepted(decision.run_id, Status(row["status"]), row["lane"])
    return replace(
        known,
        outcome=decision.outcome,
        start_id=decision.start_id,
        due_at_us=decision.due_at,
        due_in_us=decision.wait_us,
        replaced_run_id=decision.replaces,
    )


_COUNTED = {
    StartOutcome.EXISTING: FlowRule.UNIQUE,
    StartOutcome.SKIPPED: FlowRule.UNIQUE,
    StartOutcome.DEBOUNCED: FlowRule.DEBOUNCE,
    StartOutcome.BATCHED: FlowRule.BATCH,
    StartOutcome.DROPPED: FlowRule.RATE_LIMIT,
}
_REFUSED: dict[type[RunlaneError], FlowRule] = {
    StartLimited: FlowRule.RATE_LIMIT,
    BacklogFull: FlowRule.MAX_BACKLOG,
    UniqueConflict: FlowRule.UNIQUE,
}


def count_flow_control(verdict: Accepted | RunlaneError) -> None:
    """Count the outcome of a start under flow control, after the commit."""
    if isinstance(verdict, Accepted):
        rule = _COUNTED.get(verdict.outcome)
        if rule is not None:
            metrics.FLOW_CONTROL.add(rule.value, verdict.outcome.value)
        elif verdict.due_at_us is not None:
            metrics.FLOW_CONTROL.add(FlowRule.THROTTLE.value, "delayed")
        if verdict.replaced_run_id is not None:
            metrics.FLOW_CONTROL.add(FlowRule.UNIQUE.value, "replaced")
    elif (refused := _REFUSED.get(type(verdict))) is not None:
        metrics.FLOW_CONTROL.add(refused.value, "rejected")


async def take_unique_key(session: Session, run_id: str) -> None:
    """Lock the unique key of an ended run that is retried. UniqueConflict if another run with it is open."""
    rows = await session.fetch(sql.UNIQUE_KEY_OF, run_id=run_id)
    if not rows or rows[0]["unique_key"] is None:
        return
    key = rows[0]["unique_key"]
    await lock_flow_keys(session, [key], ())
    taken = (await _open_unique(session, [key])).get(key)
    if taken is not None and taken.run_id != run_id:
        raise UniqueConflict(rows[0]["target"], label_of_key(key), taken.run_id)


async def seal_batches(session: Session) -> None:
    """Build the inputs of due batches from their collected starts. A batch is ready only after that."""
    ids = [row["id"] for row in await session.fetch(sql.SEAL_BATCHES)]
    if not ids:
        return
    bound = session.texts(sorted(ids))
    await session.fetch(sql.COMPLETE_INPUTS, ids=bound)
    await session.fetch(sql.DELETE_ITEMS, ids=bound)


async def read_batch_starts(database: Database, run_id: str) -> set[str]:
    """Return the ids of the starts that a batch has collected so far; none once its input is complete."""
    rows = await database.query(sql.READ_ITEMS, run_id=run_id)
    return {load_json(row["item"])["start_id"] for row in rows}


async def forget_flow_keys(session: Session) -> bool:
    """Delete the state of some keys that were not used for a day; return whether there may be more."""
    return len(await session.fetch(sql.FORGET_KEYS)) == sql.FORGOTTEN_AT_ONCE
