"""The places of a process for webhooks: how many of them one endpoint and one tenant may hold at once.

A receiver that hangs holds its places until the time for its tries has elapsed. The other places stay free for others,
however many deliveries the endpoint allows at once, and however many endpoints its tenant has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Self


class Places:
    """The free places of a process, and what is left of the shares of endpoints and tenants."""

    def __init__(self, free: int, of_endpoint: int, of_tenant: int, held: Iterable[tuple[str, str]] = ()) -> None:
        """`held` has the tenant and the endpoint of each delivery that is being sent."""
        self.free = free
        self._of_endpoint = of_endpoint
        self._of_tenant = of_tenant
        self._by_tenant: Counter[str] = Counter()
        self._by_endpoint: Counter[str] = Counter()
        for tenant, endpoint in held:
            self._by_tenant[tenant] += 1
            self._by_endpoint[endpoint] += 1

    @classmethod
    def of_process(cls, total: int, held: Iterable[tuple[str, str]]) -> Self:
        """Return the places of a process: three fifths may be held by one endpoint, four fifths by one tenant."""
        known = list(held)
        return cls(total - len(known), max(1, total * 3 // 5), max(1, total * 4 // 5), known)

    def share(self, tenant: str, endpoint: str, among: int) -> int:
        """Return how many places an endpoint may take now, if the free ones are divided among so many endpoints."""
        left = (
            -(-self.free // among),
            self._of_endpoint - self._by_endpoint[endpoint],
            self._of_tenant - self._by_tenant[tenant],
        )
        return max(0, min(left))

    def take(self, tenant: str, endpoint: str, count: int) -> None:
        """Count places as held."""
        self.free -= count
        self._by_tenant[tenant] += count
        self._by_endpoint[endpoint] += count
