"""Limits of model providers, and the usage of models."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from runlane.api.schemas.fields import Name, RequestModel
from runlane.api.schemas.listing import Listing
from runlane.domain.quota import MAX_QUOTA, QuotaUse
from runlane.domain.rate_limit import MAX_IN_FLIGHT, MAX_PER_MINUTE, CredentialUsage


class PutLimits(RequestModel):
    """The limits of a credential to change. Omitted limits are kept; null removes a limit."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"in_flight": 4, "requests_per_minute": 300}]})

    in_flight: int | None = Field(default=None, ge=0, le=MAX_IN_FLIGHT, description="0 pauses.")
    requests_per_minute: int | None = Field(default=None, ge=1, le=MAX_PER_MINUTE)
    tokens_per_minute: int | None = Field(default=None, ge=1, le=MAX_PER_MINUTE)


class PutQuota(RequestModel):
    """The limit of a quota; null removes it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"limit": 10000, "tenant": "acme"}]})

    limit: int | None = Field(ge=0, le=MAX_QUOTA)
    tenant: Name | None = Field(default=None, description="The tenant. Default: the tenant of the key.")


LIMITS = Listing("limits", CredentialUsage)
QUOTAS = Listing("quotas", QuotaUse)
