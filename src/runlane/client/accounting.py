"""The client's calls for limits of model providers, concurrency limits, quotas, and usage of models."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from runlane.client.http import PREFIX, Http, part
from runlane.client.wire import parse
from runlane.domain.concurrency import SharedLimit
from runlane.domain.flow_keys import FlowKeyUse
from runlane.domain.quota import QuotaUse
from runlane.domain.rate_limit import CredentialLimits, CredentialUsage
from runlane.domain.usage import ExpensiveRuns, UsageReport

# Marks an omitted argument, because None has its own meaning.
_KEEP: Any = object()


class Accounting:
    """Calls for limits and usage. A part of Client."""

    _http: Http

    async def limits(self) -> Sequence[CredentialUsage]:
        """Return every credential with its limits, their current use, and the time until which it backs off."""
        return await self._http.read_list(CredentialUsage, f"{PREFIX}/limits", "limits")

    async def set_limits(
        self,
        credential: str,
        *,
        in_flight: int | None = _KEEP,
        requests_per_minute: int | None = _KEEP,
        tokens_per_minute: int | None = _KEEP,
    ) -> CredentialLimits:
        """Change a credential's limits and return them. None removes a limit; omitted limits are kept."""
        given = {
            "in_flight": in_flight,
            "requests_per_minute": requests_per_minute,
            "tokens_per_minute": tokens_per_minute,
        }
        body = {name: value for name, value in given.items() if value is not _KEEP}
        return parse(CredentialLimits, await self._http.change("PUT", f"{PREFIX}/limits/{part(credential)}", body))

    async def reset_limits(self, credential: str) -> CredentialLimits:
        """Reset a credential to its default limits and return them."""
        return parse(CredentialLimits, await self._http.change("DELETE", f"{PREFIX}/limits/{part(credential)}"))

    async def quotas(self, *, tenant: str | None = None) -> Sequence[QuotaUse]:
        """Return every quota of a tenant with its limit and use. The default is the tenant of the key."""
        return await self._http.read_list(QuotaUse, f"{PREFIX}/quotas", "quotas", {"tenant": tenant})

    async def set_quota(self, name: str, limit: int | None, *, tenant: str | None = None) -> Sequence[QuotaUse]:
        """Set a quota of a tenant, or remove it with None. Return the tenant's quotas. For platform admins."""
        body = {"limit": limit, **({} if tenant is None else {"tenant": tenant})}
        answer = await self._http.change("PUT", f"{PREFIX}/quotas/{part(name)}", body)
        return [parse(QuotaUse, item) for item in answer["quotas"]]

    async def flow_keys(
        self,
        *,
        rule: str | None = None,
        target: str | None = None,
        only_skipped: bool = False,
        tenant: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[FlowKeyUse]:
        """Return the keys of flow control with their skipped starts. `after` is the last id of the previous page."""
        query = {"rule": rule, "target": target, "skipped": only_skipped or None, "tenant": tenant}
        query |= {"cursor": after, "limit": limit}
        return await self._http.read_list(FlowKeyUse, f"{PREFIX}/flow-control/keys", "flow_keys", query)

    async def concurrency_limits(self, *, tenant: str | None = None) -> Sequence[SharedLimit]:
        """Return the shared concurrency limits of a tenant with their use. The default is the tenant of the key."""
        path = f"{PREFIX}/concurrency-limits"
        return await self._http.read_list(SharedLimit, path, "concurrency_limits", {"tenant": tenant})

    async def concurrency_limit(self, name: str, *, tenant: str | None = None) -> SharedLimit:
        """Return a shared concurrency limit with its use."""
        path = f"{PREFIX}/concurrency-limits/{part(name)}"
        return parse(SharedLimit, await self._http.read(path, {"tenant": tenant}))

    async def set_concurrency_limit(self, name: str, max_running: int, *, tenant: str | None = None) -> SharedLimit:
        """Create or change a shared concurrency limit, and return it. The change is in effect when this returns."""
        body = {"max_running": max_running, **({} if tenant is None else {"tenant": tenant})}
        return parse(SharedLimit, await self._http.change("PUT", f"{PREFIX}/concurrency-limits/{part(name)}", body))

    async def delete_concurrency_limit(self, name: str, *, tenant: str | None = None) -> SharedLimit:
        """Delete a shared concurrency limit and return it. Raise Conflict while a run has or awaits a slot of it."""
        query = "" if tenant is None else f"?tenant={part(tenant)}"
        path = f"{PREFIX}/concurrency-limits/{part(name)}{query}"
        return parse(SharedLimit, await self._http.change("DELETE", path))

    async def usage(
        self,
        *,
        tenant: str | None = None,
        first: date | None = None,
        last: date | None = None,
        group: str = "day",
    ) -> UsageReport:
        """Return the usage of models per `day`, `agent`, `model` or `tenant`, and in total, between two days (UTC)."""
        query = {"tenant": tenant, **_days(first, last), "group": group}
        return parse(UsageReport, await self._http.read(f"{PREFIX}/usage", query))

    async def expensive_runs(
        self, *, tenant: str | None = None, first: date | None = None, last: date | None = None, limit: int = 20
    ) -> ExpensiveRuns:
        """Return the runs that ended between two days (UTC) and had the highest model cost."""
        query = {"tenant": tenant, **_days(first, last), "limit": limit}
        return parse(ExpensiveRuns, await self._http.read(f"{PREFIX}/usage/runs", query))


def _days(first: date | None, last: date | None) -> dict[str, str | None]:
    return {"from": None if first is None else first.isoformat(), "to": None if last is None else last.isoformat()}
