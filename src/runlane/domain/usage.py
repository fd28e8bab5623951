"""Usage of models: calls, tokens and cost by day, agent, model or tenant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field, with_config

from runlane.domain.run import Status
from runlane.domain.wire import WIRE, Timestamp

Group = Literal["day", "agent", "model", "tenant"]
GROUPS: Final[tuple[Group, ...]] = ("day", "agent", "model", "tenant")


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The usage of a group of calls: of a day, an agent, a model or a tenant, which `key` names."""

    key: Annotated[
        str,
        Field(description="The day, the agent's id (empty: without an agent), the model's name or the tenant's id."),
    ]
    calls: int
    tokens_in: int
    tokens_out: int
    cost_usd: Annotated[
        float | None,
        Field(description="The cost of calls with a known price; null if there are calls but none has a known price."),
    ]
    unpriced_calls: Annotated[int, Field(description="Calls of models without a known price.")]


@dataclass(frozen=True, slots=True)
class UsageReport:
    """The usage of models from the first day to the last one (UTC), and its total."""

    tenant: str | None
    first: str
    last: str
    group: Group
    usage: tuple[UsageRow, ...]
    total: UsageRow


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class ExpensiveRun:
    """A run that has ended, and the cost of its model calls."""

    id: Annotated[str, Field(alias="run_id")]
    tenant: str
    target: str
    status: Status
    ended_at_us: Annotated[Timestamp, Field(alias="ended_at")]
    cost_usd: Annotated[float, Field(description="The cost of calls with a known price.")]
    tokens: int


@dataclass(frozen=True, slots=True)
class ExpensiveRuns:
    """The runs that ended from the first day to the last one (UTC) and cost the most, the most expensive first."""

    tenant: str | None
    first: str
    last: str
    runs: tuple[ExpensiveRun, ...]
    complete: Annotated[
        bool,
        Field(description="False if only the most expensive hours of the period were examined."),
    ]


def sum_used(used: Sequence[UsageRow]) -> UsageRow:
    """Return the sum."""
    costs = [item.cost_usd for item in used if item.cost_usd is not None]
    return UsageRow(
        key="total",
        calls=sum(item.calls for item in used),
        tokens_in=sum(item.tokens_in for item in used),
        tokens_out=sum(item.tokens_out for item in used),
        cost_usd=sum(costs) if costs or not used else None,
        unpriced_calls=sum(item.unpriced_calls for item in used),
    )
