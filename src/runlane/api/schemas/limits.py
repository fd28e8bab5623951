"""Limits of model providers, and the usage of models."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from runlane.api.schemas.fields import RequestModel
from runlane.api.schemas.listing import Listing
from runlane.domain.rate_limit import MAX_IN_FLIGHT, MAX_PER_MINUTE, CredentialUsage


class PutLimits(RequestModel):
    """The limits of a credential to change. Omitted ones stay, null removes a limit."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"in_flight": 4, "requests_per_minute": 300}]})

    in_flight: int | None = Field(default=None, ge=0, le=MAX_IN_FLIGHT, description="0 pauses.")
    requests_per_minute: int | None = Field(default=None, ge=1, le=MAX_PER_MINUTE)
    tokens_per_minute: int | None = Field(default=None, ge=1, le=MAX_PER_MINUTE)


LIMITS = Listing("limits", CredentialUsage)
