"""Decide the outcome of starts under flow control.

The plan is pure: its input is the state of the keys, which was read under locks. Starts are decided in order, so that a
start sees the changes of earlier starts in the same transaction. The starts of one request are one group: if a rule
rejects one of them, all are rejected and the state is as before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from runlane.domain.flow_control import MAX_BATCH_BYTES
from runlane.domain.flow_keys import (
    BatchKey,
    DebounceKey,
    FlowRule,
    RateKey,
    RunFlow,
    StartOutcome,
    backlog_of,
    next_tat_ns,
    wait_ns,
)
from runlane.domain.quota import check_collecting_keys
from runlane.domain.run import RunHook, Status
from runlane.errors import BacklogFull, QuotaReached, RunlaneError, StartLimited, UniqueConflict

if TYPE_CHECKING:
    from runlane.store.queue.accept import NewRun

_MISSING: Final = object()
# The time at which a run of the backlog starts is unknown; retry soon, but not in a tight loop.
_BACKLOG_RETRY_SECONDS: Final = 5.0


class KeyState(NamedTuple):
    """The row of a key, and the time of the database when it was locked."""

    now: int
    tat: int | None = None
    run_id: str | None = None
    opened_at: int | None = None
    due_at: int | None = None
    starts: int | None = None
    size: int | None = None
    most: int | None = None
    skipped: int = 0
    used_on: int = 0


class OpenRun(NamedTuple):
    """An open run with a unique key."""

    run_id: str
    lane: str
    status: Status
    ordering_key: str | None = None


class JoinedRun(NamedTuple):
    """The changes to a stored run that starts join. Without an input, the run keeps its own."""

    due_at: int
    starts: int
    input: str | None = None
    plan: str | None = None


class StartDecision(NamedTuple):
    """The decision about one start. `run_id` is empty if it has no run. A tuple, since bulk requests create many."""

    run_id: str
    outcome: StartOutcome = StartOutcome.STARTED
    rule: FlowRule | None = None
    start_id: str | None = None
    due_at: int | None = None
    wait_us: int | None = None
    replaces: str | None = None
    existing: OpenRun | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the start is a run of its own, due at once."""
        return self.outcome is StartOutcome.STARTED and self.due_at is None and self.replaces is None


@dataclass(slots=True)
class FlowPlan:
    """The state of the keys, and the changes of the starts decided so far.

    `joinable` are the stored runs that starts may join. `backlog` counts the runs that wait for their first start.
    """

    states: dict[str, KeyState]
    unique: dict[str, OpenRun] = field(default_factory=dict[str, OpenRun])
    backlog: dict[str, int] = field(default_factory=dict[str, int])
    joinable: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    new: dict[str, NewRun] = field(default_factory=dict[str, "NewRun"])
    joined: dict[str, JoinedRun] = field(default_factory=dict[str, JoinedRun])
    items: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    # For each tenant with the quota: how many of its keys have a debounced run or a batch, and how many may.
    collecting: dict[str, int] = field(default_factory=dict[str, int])
    most_collecting: Mapping[str, int] = field(default_factory=dict[str, int])
    # The run that is cancelled, and the one that takes its place.
    replaced: dict[str, str] = field(default_factory=dict[str, str])
    decisions: dict[str, StartDecision] = field(default_factory=dict[str, StartDecision])
    refused: dict[str, RunlaneError] = field(default_factory=dict[str, RunlaneError])
    _undo: list[tuple[dict[Any, Any], Any, Any]] = field(default_factory=list[tuple[dict[Any, Any], Any, Any]])

    def decide(self, group: Sequence[NewRun]) -> None:
        """Decide the starts of one request: all are decided, or all are refused."""
        self._undo.clear()
        try:
            for run in group:
                self._set(self.decisions, run.id, self._decide(run, run.flow))
        except (StartLimited, BacklogFull, UniqueConflict, QuotaReached) as error:
            for table, key, before in reversed(self._undo):
                if before is _MISSING:
                    del table[key]
                else:
                    table[key] = before
            self.refused |= {run.id: error for run in group}

    def _set(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        self._undo.append((table, key, table.get(key, _MISSING)))
        table[key] = value

    def _change(self, key: str, **fields: Any) -> None:
        self._set(self.states, key, self.states[key]._replace(**fields))

    def _decide(self, run: NewRun, flow: RunFlow | None) -> StartDecision:
        if flow is None:
            self._set(self.new, run.id, run)
            return StartDecision(run.id)
        rate = flow.rate_limit
        if rate is not None:
            state = self.states[rate.key]
            wait = wait_ns(state.tat or 0, state.now * 1000, rate.interval_ns, rate.burst)
            if wait > 0:
                return self._over_rate(run, rate, wait)
        decision = self._join(run, flow) or self._begin(run, flow)
        if rate is not None and decision.outcome not in (StartOutcome.EXISTING, StartOutcome.SKIPPED):
            state = self.states[rate.key]
            self._change(rate.key, tat=next_tat_ns(state.tat or 0, state.now * 1000, rate.interval_ns))
        return decision

    def _over_rate(self, run: NewRun, rate: RateKey, wait: int) -> StartDecision:
        if rate.on_limit == "drop":
            self._change(rate.key, skipped=self.states[rate.key].skipped + 1)
            return StartDecision("", StartOutcome.DROPPED, FlowRule.RATE_LIMIT)
        seconds = wait / 1_000_000_000
        raise StartLimited(
            f"The rate limit of {run.target}{_named(rate.label)} is reached. Retry after {seconds:.3g} seconds.",
            seconds,
        )

    def _join(self, run: NewRun, flow: RunFlow) -> StartDecision | None:
        """Add the start to the run that its key has open, if there is one."""
        rule = flow.debounce or flow.batch
        if rule is None:
            return None
        state = self.states[rule.key]
        if state.run_id is None or (state.due_at or 0) <= state.now:
            return None
        if state.run_id not in self.new and state.run_id not in self.joinable:
            return None
        if isinstance(rule, BatchKey):
            return self._collect(run, rule, state, state.run_id)
        due_at = min(state.now + rule.delay_us, (state.opened_at or 0) + rule.max_delay_us)
        self._change(rule.key, due_at=due_at, starts=(state.starts or 0) + 1)
        self._move(state.run_id, due_at, None if rule.leading else run)
        return StartDecision(
            state.run_id, StartOutcome.DEBOUNCED, FlowRule.DEBOUNCE, due_at=due_at, wait_us=due_at - state.now
        )

    def _collect(self, run: NewRun, rule: BatchKey, state: KeyState, run_id: str) -> StartDecision | None:
        count, size = (state.starts or 0) + 1, (state.size or 0) + len(rule.item)
        if count > rule.max_size or size > MAX_BATCH_BYTES:
            self._add_collecting(run.tenant, -1)
            self._move(run_id, state.now, None, starts=0)
            return None
        due_at = state.now if count == rule.max_size else state.due_at or 0
        self._change(rule.key, due_at=due_at, starts=count, size=size, most=rule.max_size)
        if due_at == state.now:
            self._add_collecting(run.tenant, -1)
        self._set(self.items, (run_id, count), rule.item)
        self._move(run_id, due_at, None)
        return StartDecision(run_id, StartOutcome.BATCHED, FlowRule.BATCH, rule.start_id, due_at, due_at - state.now)

    def _move(self, run_id: str, due_at: int, source: NewRun | None, starts: int = 1) -> None:
        """Change the due time of an open run, and its input to that of `source`."""
        new = self.new.get(run_id)
        if new is not None:
            given = {} if source is None else {"input": source.input, "plan": source.plan}
            self._set(self.new, run_id, new._replace(due_at_us=due_at, **given))
            return
        known = self.joined.get(run_id, JoinedRun(due_at, 0))
        given = {} if source is None else {"input": source.input, "plan": source.plan}
        self._set(self.joined, run_id, known._replace(due_at=due_at, starts=known.starts + starts, **given))

    def _begin(self, run: NewRun, flow: RunFlow) -> StartDecision:
        """Begin a new run, unless its unique key is taken or its backlog is full."""
        replaces: str | None = None
        if flow.unique is not None and flow.unique.key in self.unique:
            taken = self.unique[flow.unique.key]
            match flow.unique.on_conflict:
                case "return":
                    return StartDecision(taken.run_id, StartOutcome.EXISTING, FlowRule.UNIQUE, existing=taken)
                case "skip":
                    self._change(flow.unique.key, skipped=self.states[flow.unique.key].skipped + 1)
                    return StartDecision("", StartOutcome.SKIPPED, FlowRule.UNIQUE, existing=taken)
                case "replace":
                    replaces = taken.run_id
                case _:
                    raise UniqueConflict(run.target, flow.unique.label, taken.run_id)
        self._count_backlog(run, flow)
        due_at = self._throttle(run, flow)
        if replaces is not None:
            self._replace(replaces, run.id)
        if flow.unique is not None:
            self._set(self.unique, flow.unique.key, OpenRun(run.id, run.lane, Status.QUEUED, run.ordering_key))
        rule = flow.debounce or flow.batch
        if rule is None:
            self._set(self.new, run.id, run if due_at is None else run._replace(due_at_us=due_at))
            if due_at is None or flow.throttle is None:
                return StartDecision(run.id, replaces=replaces)
            wait_us = due_at - self.states[flow.throttle.key].now
            return StartDecision(run.id, rule=FlowRule.THROTTLE, due_at=due_at, wait_us=wait_us, replaces=replaces)
        return self._open(run, rule, replaces)

    def _open(self, run: NewRun, rule: DebounceKey | BatchKey, replaces: str | None) -> StartDecision:
        """Begin a run that further starts may join."""
        now = self.states[rule.key].now
        if isinstance(rule, DebounceKey) or rule.max_size > 1:
            self._add_collecting(run.tenant, 1)
        if isinstance(rule, DebounceKey):
            due_at = now + rule.delay_us
            self._change(rule.key, run_id=run.id, opened_at=now, due_at=due_at, starts=1, size=None, most=None)
            self._set(self.new, run.id, run._replace(due_at_us=due_at))
            return StartDecision(
                run.id, StartOutcome.DEBOUNCED, FlowRule.DEBOUNCE, None, due_at, rule.delay_us, replaces
            )
        due_at = now if rule.max_size == 1 else now + rule.max_wait_us
        self._change(
            rule.key, run_id=run.id, opened_at=now, due_at=due_at, starts=1, size=len(rule.item), most=rule.max_size
        )
        self._set(self.items, (run.id, 1), rule.item)
        self._set(self.new, run.id, run._replace(due_at_us=due_at, hooks=run.hooks | RunHook.COLLECTS))
        return StartDecision(
            run.id, StartOutcome.BATCHED, FlowRule.BATCH, rule.start_id, due_at, due_at - now, replaces
        )

    def _add_collecting(self, tenant: str, count: int) -> None:
        most = self.most_collecting.get(tenant)
        if most is None:
            return
        used = self.collecting[tenant]
        refusal = check_collecting_keys(tenant, most, used) if count > 0 else None
        if refusal is not None:
            raise refusal
        self._set(self.collecting, tenant, used + count)

    def _replace(self, run_id: str, by: str) -> None:
        new = self.new.get(run_id)
        if new is not None and new.flow is not None:
            # One statement stores both runs, so only the last one has the unique key.
            self._set(self.new, run_id, new._replace(flow=new.flow._replace(unique=None)))
        self._set(self.replaced, run_id, by)

    def _count_backlog(self, run: NewRun, flow: RunFlow) -> None:
        rule = flow.max_backlog
        if rule is None:
            return
        waiting = self.backlog.get(rule.key, 0)
        if waiting >= rule.most:
            raise BacklogFull(
                f"{waiting} runs of {run.target}{_named(rule.label)} wait for their start, and at most {rule.most} may "
                "(max_backlog). Try again later.",
                _BACKLOG_RETRY_SECONDS,
            )
        self._set(self.backlog, rule.key, waiting + 1)
        if self.states[rule.key].most != rule.most:
            # Stored for readers of the key, who cannot find the number elsewhere; written only when it changes.
            self._change(rule.key, most=rule.most)

    def _throttle(self, run: NewRun, flow: RunFlow) -> int | None:
        rule = flow.throttle
        if rule is None:
            return None
        state = self.states[rule.key]
        now_ns, tat = state.now * 1000, state.tat or 0
        wait = wait_ns(tat, now_ns, rule.interval_ns, rule.burst)
        if backlog_of(wait, rule.interval_ns) > rule.max_backlog:
            raise BacklogFull(
                f"{rule.max_backlog} runs of {run.target}{_named(rule.label)} wait for their turn, as many as the "
                "throttle allows (throttle.max_backlog). Try again later.",
                rule.interval_ns / 1_000_000_000,
            )
        self._change(rule.key, tat=next_tat_ns(tat, now_ns, rule.interval_ns))
        return None if wait <= 0 else math.ceil((now_ns + wait) / 1000)


def _named(label: str) -> str:
    return f' for the key "{label}"' if label else ""
