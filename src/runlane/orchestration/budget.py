"""Spending of a run: check every cap before each model call, including the spending of open steps so far.

A call is rejected once a cap is reached, so only calls in flight can exceed it. If a person allows more, the answer is
stored in the journal of the step or of the run and raises the cap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runlane.agents.journal import Journal
from runlane.definitions.schema.definition import Agent
from runlane.definitions.schema.step import HumanField
from runlane.domain.budget import BudgetNotice, CapReached, SpendingCap, check_caps, notice_of
from runlane.interpreter.failure import StepFailed
from runlane.interpreter.machine import Machine
from runlane.interpreter.values import Outcome, PendingStep
from runlane.orchestration.retry_unavailable import retry_unavailable
from runlane.steps.wait_steps import StepWait, Suspend, WaitKind
from runlane.store.orchestration.calls import has_unpriced_call
from runlane.store.orchestration.steps import StepOutcome, StepRecord
from runlane.store.queue.claim import Claimed
from runlane.store.sql.database import Database
from runlane.store.usage import read_budget

_MORE = (
    {"name": "decision", "type": "select", "label": "Decision", "options": ["allow", "stop"], "required": True},
    {"name": "amount_usd", "type": "number", "label": "Additional amount in USD; the cap again if empty"},
)


class SpendingTracker:
    """The spending of one attempt. `journals` returns the journal of a step or, for "", of the run.

    `report` stores a notice with what the attempt stores next.
    """

    def __init__(
        self,
        claimed: Claimed,
        database: Database,
        journals: Callable[[str], Journal],
        report: Callable[[BudgetNotice], None],
    ) -> None:
        self._claimed = claimed
        self._database = database
        self._journals = journals
        self._report = report
        self._reported: set[tuple[str, str, float | None, bool]] = set()
        # The cost of earlier tries of a step, which the machine has counted already.
        self._settled: dict[str, tuple[float, int]] = {}
        # Descriptions of the caps at the last call of an open step; and whether the warning was emitted.
        self._caps: dict[str, list[str]] = {}
        self._warned = False

    def learn(self, way: Sequence[StepRecord]) -> None:
        """Load the spending that earlier attempts have recorded for retried steps."""
        for record in way:
            if record.outcome in (StepOutcome.RETRYING, StepOutcome.FAILED):
                self._settled[record.path] = (record.cost_usd or 0.0, record.tokens)

    def complete(self, path: str, outcome: Outcome) -> Outcome:
        """Return the outcome with the cost of this try alone, given the cost of all tries."""
        self._caps.pop(path, None)
        cost, tokens = self._settled.get(path, (0.0, 0))
        self._settled[path] = (max(cost, outcome.cost_usd or 0.0), max(tokens, outcome.tokens))
        fresh = None if outcome.cost_usd is None else max(0.0, outcome.cost_usd - cost)
        return replace(outcome, cost_usd=fresh, tokens=max(0, outcome.tokens - tokens))

    async def check(
        self,
        machine: Machine,
        open_steps: Mapping[str, Journal],
        pending: PendingStep,
        agent: Agent | None,
        step_cap: float | None,
    ) -> None:
        """Raise StepFailed if no further model call is allowed, or Suspend if a person has to allow it."""
        unsettled = {path: self._unsettled(path, journal) for path, journal in open_steps.items()}
        run, own = self._journals(""), self._journals(pending.path)
        caps = [
            SpendingCap("run", bound.limit_usd, bound.spent_usd, bound.on_cap, bound.orchestration_id)
            for bound in machine.budgets(pending.path, unsettled)
        ]
        if step_cap is not None:
            caps.append(
                SpendingCap("step", step_cap, own.cost_usd or 0.0, pending.orchestration.on_cap, pending.step.id)
            )
        caps += await self._caps_of_day(agent)
        self._caps[pending.path] = [cap.title for cap in caps if cap.limit_usd is not None]
        journals = {cap.scope: own if cap.scope == "step" else run for cap in caps}
        raised = [self._raised(cap, journals[cap.scope]) for cap in caps]
        self._notice(raised)
        capped = check_caps(raised)
        if capped is not None:
            raise self._refusal(capped, journals[capped.scope])

    def _notice(self, caps: Sequence[SpendingCap]) -> None:
        """Report each cap that is nearly spent, once in this attempt."""
        for cap in caps:
            notice = notice_of(cap, self._claimed.target)
            key = (cap.scope, cap.name, cap.limit_usd, notice is not None and notice.reached)
            if notice is not None and key not in self._reported:
                self._reported.add(key)
                self._report(notice)

    async def unpriced_warning(self, path: str, model: str) -> str | None:
        """Return a warning, once per run, about a call without a known price, which caps do not count."""
        caps = self._caps.get(path)
        if not caps or self._warned:
            return None
        self._warned = True
        claimed = self._claimed
        if claimed.attempt > 1 and await retry_unavailable(lambda: has_unpriced_call(self._database, claimed.run_id)):
            return None
        return (
            f"The price of {model} is not known, so its calls do not count against the cap of {' and '.join(caps)}. "
            "Prices of your own servers are set in RUNLANE_PROVIDERS."
        )

    async def _caps_of_day(self, agent: Agent | None) -> list[SpendingCap]:
        limit = agent.max_cost_usd_per_day if agent is not None else None
        named = agent.id if agent is not None and limit is not None else None
        tenant = self._claimed.tenant
        spent = await retry_unavailable(lambda: read_budget(self._database, tenant, named))
        caps = [SpendingCap("tenant", spent.tenant_limit_usd, spent.tenant_usd, spent.on_cap, tenant)]
        if agent is not None and limit is not None:
            caps.append(SpendingCap("agent", limit, spent.agent_usd, agent.on_cap, agent.id))
        return caps

    def _raised(self, cap: SpendingCap, journal: Journal) -> SpendingCap:
        """Return the cap, raised by the amounts that people have allowed on top of the spending at that time."""
        if cap.limit_usd is None:
            return cap
        limit = cap.limit_usd
        for answer in _answers(journal, cap.scope, cap.name):
            amount = answer.get("amount_usd")
            if answer.get("decision") == "allow":
                more = cap.limit_usd if amount is None else max(0.0, float(amount))
                limit = max(limit, answer.get("spent_usd", 0.0)) + more
        return replace(cap, limit_usd=limit)

    def _refusal(self, capped: CapReached, journal: Journal) -> StepFailed | Suspend:
        answers = _answers(journal, capped.scope, capped.name)
        stopped = any(answer.get("decision") != "allow" for answer in answers)
        if capped.on_cap == "fail" or stopped:
            return StepFailed("cost_limit", capped.message)
        platform = capped.scope == "tenant"
        return Suspend(
            StepWait(
                kind=WaitKind.HUMAN,
                name="budget",
                prompt=f"{capped.message} May it spend more?{' A platform admin must answer.' if platform else ''}",
                # A cap is raised only by those who may set it: the tenant sets caps in definitions, a platform admin
                # the tenant's daily cap.
                answerable_by="platform" if platform else "tenant",
                fields=tuple(HumanField.model_validate(field) for field in _MORE),
                context={"scope": capped.scope, "limit_usd": capped.limit_usd, "spent_usd": capped.spent_usd},
                key=journal.name(_key(capped.scope, capped.name, len(answers))),
                shared=capped.scope != "step",
                aside={"spent_usd": capped.spent_usd},
            )
        )

    def _unsettled(self, path: str, journal: Journal) -> float:
        return (journal.cost_usd or 0.0) - self._settled.get(path, (0.0, 0))[0]


def _key(scope: str, name: str, number: int) -> str:
    return f"cap/{scope}/{name}/{number}"


def _answers(journal: Journal, scope: str, name: str) -> list[dict[str, Any]]:
    """Return the answers about a cap so far."""
    answers: list[dict[str, Any]] = []
    while (answer := journal.find(_key(scope, name, len(answers)))) is not None:
        answers.append(answer)
    return answers
