"""Rate limits of model providers, quotas, and the usage of models. Limits can be changed while runs execute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Annotated

from fastapi import Depends, Path, Query, Request

from runlane.access.policy import require_everywhere, tenant_to_list, tenant_to_use
from runlane.api.auth import KeysManage, RunsRead, WorkersManage, WorkersView
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.schemas.fields import Name
from runlane.api.schemas.limits import LIMITS, QUOTAS, PutLimits, PutQuota
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import Services, parts_of
from runlane.domain.access import PLATFORM_ADMIN, Permission, Principal
from runlane.domain.quota import QuotaUse
from runlane.domain.rate_limit import CredentialLimits, LimitChange
from runlane.domain.usage import ExpensiveRuns, Group, UsageReport, sum_used
from runlane.errors import InvalidRequest, NotFound
from runlane.rate_limits.usage import read_occupancy
from runlane.store.access.quotas import read_quotas, server_quotas, set_quota
from runlane.store.queue.expensive_runs import read_expensive_runs
from runlane.store.rate_limits.limits import reset_limits, set_limits
from runlane.store.usage import read_usage

router = RawRouter(tags=["limits and usage"])
changes = RawRouter(tags=["limits and usage"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

Credential = Annotated[
    str, Path(description="The credential, such as openai or openai@acme.", examples=["openai"], max_length=200)
]
FirstDay = Annotated[date | None, Query(alias="from", description="The first day (UTC); 30 days ago if empty.")]
LastDay = Annotated[date | None, Query(alias="to", description="The last day (UTC); today if empty.")]
_DEFAULT_DAYS = 30
_MAX_DAYS = 3660


@router.get("/limits", response_model=LIMITS.schema, responses=answers())
async def get_limits(request: Request, principal: WorkersView) -> JsonBody:
    """List credentials with their limits and current use: all for platform admins, else the tenant's."""
    parts = parts_of(request)
    found = await read_occupancy(parts.database)
    if principal.everywhere:
        return LIMITS.all(found)
    # A provider's message may contain the name of the account, so only platform admins see it.
    return LIMITS.all(
        [replace(item, backing_off_reason=None) for item in found if _concerns(principal, item.credential)]
    )


@changes.put("/limits/{credential}", response_model=CredentialLimits, responses=answers(404, 409))
async def put_limits(request: Request, principal: WorkersManage, credential: Credential, body: PutLimits) -> ValueBody:
    """Change a credential's limits. Every worker applies them within about a second."""
    _check_credential(principal, credential)
    removed = frozenset(name for name in body.model_fields_set if getattr(body, name) is None)
    change = LimitChange(**body.model_dump(), unlimited=removed)
    _, limits = await set_limits(parts_of(request).database, credential, change, actor=principal.actor)
    return ValueBody(limits)


@changes.delete("/limits/{credential}", response_model=CredentialLimits, responses=answers(404, 409))
async def delete_limits(request: Request, principal: WorkersManage, credential: Credential) -> ValueBody:
    """Reset a credential to its default limits and return them."""
    _check_credential(principal, credential)
    _, limits = await reset_limits(parts_of(request).database, credential, actor=principal.actor)
    return ValueBody(limits)


@router.get("/quotas", response_model=QUOTAS.schema, responses=answers(404))
async def get_quotas(
    request: Request,
    principal: RunsRead,
    tenant: Annotated[
        Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")
    ] = None,
) -> JsonBody:
    """List the quotas of the tenant with their limits and use."""
    return QUOTAS.all(await _quotas(parts_of(request), tenant_to_use(principal, tenant)))


@changes.put("/quotas/{name}", response_model=QUOTAS.schema, responses=answers(404, 409))
async def put_quota(
    request: Request,
    principal: KeysManage,
    name: Annotated[str, Path(description="The quota.", examples=["runs_per_day"], max_length=200)],
    body: PutQuota,
) -> JsonBody:
    """Set a quota of a tenant. It applies to every request that is sent after the response."""
    require_everywhere(principal, Permission.KEYS_MANAGE)
    parts, owner = parts_of(request), tenant_to_use(principal, body.tenant)
    await set_quota(parts.database, owner, name, body.limit, actor=principal.actor)
    return QUOTAS.all(await _quotas(parts, owner))


async def _quotas(parts: Services, tenant: str) -> Sequence[QuotaUse]:
    uses = await read_quotas(parts.database, tenant, server_quotas(parts.app.settings))
    return await parts.connection.memory_opener.with_use(tenant, uses)


@router.get("/usage", response_model=UsageReport, responses=answers(404))
async def get_usage(
    request: Request,
    principal: RunsRead,
    tenant: Annotated[Name | None, Query()] = None,
    first: FirstDay = None,
    last: LastDay = None,
    group: Annotated[Group, Query(description="The dimension of the sums.")] = "day",
) -> ValueBody:
    """Return the usage of models per day, agent, model or tenant."""
    only = tenant_to_list(principal, tenant)
    since, to = _days(first, last)
    used = await read_usage(parts_of(request).database, only, since, to, group)
    return ValueBody(UsageReport(only, since.isoformat(), to.isoformat(), group, tuple(used), sum_used(used)))


@router.get("/usage/runs", response_model=ExpensiveRuns, responses=answers(404))
async def get_expensive_runs(
    request: Request,
    principal: RunsRead,
    tenant: Annotated[Name | None, Query()] = None,
    first: FirstDay = None,
    last: LastDay = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> ValueBody:
    """Return the ended runs with the highest model cost, most expensive first."""
    only = tenant_to_list(principal, tenant)
    since, to = _days(first, last)
    return ValueBody(await read_expensive_runs(parts_of(request).database, only, since, to, limit))


def _days(first: date | None, last: date | None) -> tuple[date, date]:
    """Return the first and the last day of a report."""
    to = last or datetime.now(UTC).date()
    since = first or to - timedelta(days=_DEFAULT_DAYS)
    if since > to or (to - since).days > _MAX_DAYS:
        raise InvalidRequest(f"from={since} to={to} must be days in this order, at most {_MAX_DAYS} apart.")
    return since, to


def _concerns(principal: Principal, credential: str) -> bool:
    """Return whether the principal is a platform admin, or the credential the tenant's own, such as openai@acme."""
    return principal.everywhere or credential.endswith(f"@{principal.tenant}")


def _check_credential(principal: Principal, credential: str) -> None:
    if not _concerns(principal, credential):
        raise NotFound(
            f'No credential "{credential}" of the tenant "{principal.tenant}" exists. Name one of its own, such as '
            f"openai@{principal.tenant}, or use a key with the role {PLATFORM_ADMIN}."
        )
