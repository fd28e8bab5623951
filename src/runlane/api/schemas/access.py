"""Keys, tenants, roles and the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

from runlane.api.schemas.fields import Name, RequestModel
from runlane.api.schemas.listing import Listing
from runlane.domain.access import ApiKey, AuditEntry, Role
from runlane.domain.start_tags import MAX_WEIGHT, MIN_WEIGHT
from runlane.domain.tenant import MAX_COST_USD, MAX_LIMIT, MAX_RATE, MAX_SCHEDULE_SECONDS, OnCap, Tenant
from runlane.store.access.keys import MAX_LIFE_SECONDS

Weight = Annotated[
    float, Field(ge=MIN_WEIGHT, le=MAX_WEIGHT, description="The share of a lane's starts, relative to other tenants.")
]


class NewKey(RequestModel):
    """Create a key. It has at most the permissions of the key that creates it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ci", "role": "developer"}]})

    name: Name
    role: Name
    tenant: Name | None = Field(
        default=None, description="The tenant, for platform admins. Other keys use their own tenant."
    )
    expires_in_seconds: float | None = Field(default=None, gt=0, le=MAX_LIFE_SECONDS)


@dataclass(frozen=True, slots=True)
class ShownKey(ApiKey):
    """A new key, shown only once."""

    key: Annotated[str | None, Field(description="sk-rl- and 64 hex digits; null when the request was repeated.")]


class NewTenant(RequestModel):
    """Create a tenant. An omitted limit does not apply."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"id": "acme", "name": "Acme", "max_queued": 1000}]})

    id: Name
    name: Name | None = None
    max_queued: int | None = Field(default=None, ge=0, le=MAX_LIMIT)
    max_running: int | None = Field(default=None, ge=0, le=MAX_LIMIT)
    rate_per_second: float | None = Field(default=None, ge=0.001, le=MAX_RATE)
    max_cost_usd_per_day: float | None = Field(
        default=None, gt=0, le=MAX_COST_USD, description="Cost of its model calls per day (UTC)."
    )
    on_cap: OnCap = Field(default="fail", description="At the cap, a step fails or a person is asked to raise it.")
    weight: Weight = 1.0


class PatchTenant(RequestModel):
    """The fields to change. A limit that is null is removed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"rate_per_second": 50.0}]})

    name: Name | None = None
    enabled: bool | None = None
    max_queued: int | None = Field(default=None, ge=0, le=MAX_LIMIT)
    max_running: int | None = Field(default=None, ge=0, le=MAX_LIMIT)
    rate_per_second: float | None = Field(default=None, ge=0.001, le=MAX_RATE)
    max_cost_usd_per_day: float | None = Field(default=None, gt=0, le=MAX_COST_USD)
    max_schedules: int | None = Field(default=None, ge=0, le=MAX_LIMIT, description="Null for 1000.")
    min_schedule_seconds: float | None = Field(
        default=None, ge=1, le=MAX_SCHEDULE_SECONDS, description="The shortest period of schedules; null for 10."
    )
    on_cap: OnCap | None = None
    weight: Weight | None = None


class PutRole(RequestModel):
    """The permissions of a custom role."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"permissions": ["runs:read", "audit:read"]}]})

    permissions: list[Name] = Field(min_length=1, max_length=20)


KEYS = Listing("keys", ApiKey, cursor="id")
TENANTS = Listing("tenants", Tenant)
ROLES = Listing("roles", Role)
AUDIT = Listing("entries", AuditEntry, cursor="id")
