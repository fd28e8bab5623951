"""Budgets: whether one more model call may be made. Pure; the caller passes the numbers.

A call is refused once a cap is reached, not when it might exceed it, because the cost of an answer is not known in
advance. So a cap is exceeded by at most the calls that were in flight when it was reached.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from runlane.domain.quota import WARNING_SHARE
from runlane.domain.tenant import OnCap

Scope = Literal["step", "run", "agent", "tenant"]
_ORDER: tuple[Scope, ...] = ("step", "run", "agent", "tenant")
# A tolerance, so that the rounding errors of many small amounts do not allow another call.
_ROUNDING_USD: Final = 1e-9


@dataclass(frozen=True, slots=True)
class SpendingCap:
    """One cap and the cost under it so far. `name` is the agent or tenant; `limit_usd` is None without a cap."""

    scope: Scope
    limit_usd: float | None
    spent_usd: float
    on_cap: OnCap = "fail"
    name: str = ""

    @property
    def title(self) -> str:
        """Describe whose cap it is."""
        return f"this {self.scope}" if self.scope in ("step", "run") else f'the {self.scope} "{self.name}"'


@dataclass(frozen=True, slots=True)
class CapReached:
    """A cap that is reached, and the consequence: the step fails, or a person is asked to raise it."""

    scope: Scope
    limit_usd: float
    spent_usd: float
    on_cap: OnCap
    name: str = ""

    @property
    def message(self) -> str:
        """Describe which cap is reached and what to do."""
        numbers = f"{_dollars(self.spent_usd)} of at most {_dollars(self.limit_usd)}"
        match self.scope:
            case "step":
                return f"This step has cost {numbers}. Raise its cap, or make the task smaller."
            case "run":
                return f"This run has cost {numbers}. Raise max_total_cost_usd of its orchestration."
            case "agent":
                return (
                    f'The agent "{self.name}" has cost {numbers} today (UTC). Raise its max_cost_usd_per_day, or wait '
                    "for tomorrow."
                )
            case "tenant":
                return (
                    f'The tenant "{self.name}" has spent {numbers} today (UTC). Raise it: runlane tenants set '
                    f"{self.name} --max-cost-per-day DOLLARS, or wait for tomorrow."
                )


@dataclass(frozen=True, slots=True)
class BudgetNotice:
    """A notice that most of a cap is spent, or all of it. `target` is the target of the run that noticed it."""

    cap: SpendingCap
    reached: bool
    target: str


def notice_of(cap: SpendingCap, target: str) -> BudgetNotice | None:
    """Return the notice about a cap; None while less than four fifths of it are spent."""
    if cap.limit_usd is None or cap.spent_usd < cap.limit_usd * WARNING_SHARE - _ROUNDING_USD:
        return None
    return BudgetNotice(cap, cap.spent_usd >= cap.limit_usd - _ROUNDING_USD, target)


def check_caps(caps: Iterable[SpendingCap]) -> CapReached | None:
    """Return the cap that forbids another model call, or None. A cap that fails the step precedes a cap that asks."""
    reached = [
        CapReached(cap.scope, cap.limit_usd, cap.spent_usd, cap.on_cap, cap.name)
        for cap in caps
        if cap.limit_usd is not None and cap.spent_usd >= cap.limit_usd - _ROUNDING_USD
    ]
    if not reached:
        return None
    return min(reached, key=lambda cap: (cap.on_cap == "ask", _ORDER.index(cap.scope)))


def _dollars(amount: float) -> str:
    return f"${amount:.2f}" if amount >= 1 or amount == 0 else f"${amount:.4g}"
