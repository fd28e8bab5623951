"""The client's calls about limits of model providers, and about what models took."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from runlane.client.http import PREFIX, Http, part
from runlane.client.wire import parse
from runlane.domain.rate_limit import CredentialLimits, CredentialUsage
from runlane.domain.usage import UsageReport

# What is left out, where None means something else.
_KEEP: Any = object()


class Accounting:
    """Limits and usage; a part of Client."""

    _http: Http

    async def limits(self) -> Sequence[CredentialUsage]:
        """Every credential with its limits, what is used of them now, and until when it slows down."""
        return await self._http.read_list(CredentialUsage, f"{PREFIX}/limits", "limits")

    async def set_limits(
        self,
        credential: str,
        *,
        in_flight: int | None = _KEEP,
        requests_per_minute: int | None = _KEEP,
        tokens_per_minute: int | None = _KEEP,
    ) -> CredentialLimits:
        """Change a credential's limits: None removes one, and what is left out stays. What holds then."""
        given = {
            "in_flight": in_flight,
            "requests_per_minute": requests_per_minute,
            "tokens_per_minute": tokens_per_minute,
        }
        body = {name: value for name, value in given.items() if value is not _KEEP}
        return parse(CredentialLimits, await self._http.change("PUT", f"{PREFIX}/limits/{part(credential)}", body))

    async def reset_limits(self, credential: str) -> CredentialLimits:
        """Back to the credential's defaults, which is what this returns."""
        return parse(CredentialLimits, await self._http.change("DELETE", f"{PREFIX}/limits/{part(credential)}"))

    async def usage(
        self,
        *,
        tenant: str | None = None,
        first: date | None = None,
        last: date | None = None,
        group: str = "day",
    ) -> UsageReport:
        """What models took per `day`, `agent` or `model`, and in total; from the first day to the last one (UTC)."""
        days = {"from": None if first is None else first.isoformat(), "to": None if last is None else last.isoformat()}
        query = {"tenant": tenant, **days, "group": group}
        return parse(UsageReport, await self._http.read(f"{PREFIX}/usage", query))
