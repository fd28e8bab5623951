"""Limits of model providers, and the usage of models."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from runlane.api.schemas.fields import At, RequestModel, ResponseModel
from runlane.domain.rate_limit import MAX_IN_FLIGHT, MAX_PER_MINUTE


class PutLimits(RequestModel):
    """The limits of a credential to change. Omitted ones stay, null removes a limit."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"in_flight": 4, "requests_per_minute": 300}]})

    in_flight: int | None = Field(default=None, ge=0, le=MAX_IN_FLIGHT, description="0 pauses.")
    requests_per_minute: int | None = Field(default=None, ge=1, le=MAX_PER_MINUTE)
    tokens_per_minute: int | None = Field(default=None, ge=1, le=MAX_PER_MINUTE)


class LimitsView(ResponseModel):
    """A credential's limits; null is unlimited. `default` means that they were never set."""

    credential: str
    in_flight: int | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    default: bool
    updated_at: At | None
    updated_by: str | None


class NowView(ResponseModel):
    """The current use. Calls of a credential without limits are not counted."""

    in_flight: int
    requests_this_minute: int
    tokens_this_minute: int
    waiting_processes: int


class OccupancyView(LimitsView):
    """A credential's limits, their current use, and the time until which its calls back off."""

    now: NowView | None = Field(description="Null when the counters cannot be read.")
    backing_off_until: At | None
    backing_off_reason: str | None


class LimitsList(ResponseModel):
    """Every credential that has limits or was used."""

    limits: list[OccupancyView]


class UsageView(ResponseModel):
    """Usage of models in a group: on a day, by an agent, or with a model."""

    key: str = Field(description="The day, the agent's id (empty: a step without an agent) or the model's name.")
    calls: int
    tokens_in: int
    tokens_out: int
    cost_usd: float | None = Field(description="Of the calls whose price is known; null if none of them has one.")
    unpriced_calls: int = Field(description="Calls of models without a known price.")


class UsageList(ResponseModel):
    """Usage of models by group, and in total."""

    tenant: str | None
    first: str
    last: str
    group: str
    usage: list[UsageView]
    total: UsageView
