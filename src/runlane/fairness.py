"""Share sandbox processes and outbound connections between tenants, so that one tenant cannot exhaust them.

`FairQueue` decides which tenant is next, without a clock and without an event loop. `FairGate` lets coroutines wait for
its decisions. One tenant holds at most its share. Among the waiting tenants, the one that holds least is next, and
among equals the one that was served longest ago.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

Ticket = TypeVar("Ticket", bound=Hashable)


class FairQueue(Generic[Ticket]):
    """How much of a capacity each tenant holds, and which tenants wait for more.

    A request larger than the share is granted when its tenant holds nothing, and a request larger than the capacity
    when no tenant holds anything: it would otherwise never be granted.
    """

    def __init__(self, capacity: int, share: int) -> None:
        self.capacity = capacity
        self.share = share
        self.used = 0
        self._held: dict[str, int] = {}
        # The tenants in the order of service: the tenant that was served last is at the end.
        self._waiting: OrderedDict[str, OrderedDict[Ticket, int]] = OrderedDict()

    def held_by(self, tenant: str) -> int:
        """Return the amount that a tenant holds."""
        return self._held.get(tenant, 0)

    def try_take(self, tenant: str, amount: int) -> bool:
        """Take an amount if it is free and no tenant waits."""
        if self._waiting or not self._is_within_share(tenant, amount) or not self._is_free(amount):
            return False
        self.charge(tenant, amount)
        return True

    def add(self, tenant: str, amount: int, ticket: Ticket) -> None:
        """Queue a ticket for an amount."""
        self._waiting.setdefault(tenant, OrderedDict())[ticket] = amount

    def withdraw(self, tenant: str, ticket: Ticket) -> bool:
        """Remove a waiting ticket; return False if it no longer waits."""
        tickets = self._waiting.get(tenant)
        if tickets is None or tickets.pop(ticket, None) is None:
            return False
        if not tickets:
            del self._waiting[tenant]
        return True

    def charge(self, tenant: str, amount: int) -> None:
        """Count an amount as held, even if that is more than the share."""
        self._held[tenant] = self._held.get(tenant, 0) + amount
        self.used += amount

    def release(self, tenant: str, amount: int) -> None:
        """Count an amount as free."""
        left = self._held.get(tenant, 0) - amount
        if left > 0:
            self._held[tenant] = left
        else:
            self._held.pop(tenant, None)
        self.used -= amount

    def grant(self) -> list[Ticket]:
        """Grant the tickets that can be granted, in order; their amounts count as held."""
        granted: list[Ticket] = []
        while (tenant := self._next()) is not None:
            tickets = self._waiting[tenant]
            ticket, amount = tickets.popitem(last=False)
            if tickets:
                self._waiting.move_to_end(tenant)
            else:
                del self._waiting[tenant]
            self.charge(tenant, amount)
            granted.append(ticket)
        return granted

    def _next(self) -> str | None:
        allowed = [tenant for tenant in self._waiting if self._is_within_share(tenant, self._first_amount(tenant))]
        if not allowed:
            return None
        tenant = min(allowed, key=self.held_by)
        # Smaller requests of other tenants do not overtake it, or a large one would never be served.
        return tenant if self._is_free(self._first_amount(tenant)) else None

    def _first_amount(self, tenant: str) -> int:
        return next(iter(self._waiting[tenant].values()))

    def _is_within_share(self, tenant: str, amount: int) -> bool:
        held = self.held_by(tenant)
        return held == 0 or held + amount <= self.share

    def _is_free(self, amount: int) -> bool:
        return self.used <= 0 or self.used + amount <= self.capacity


class FairGate:
    """A fair queue that coroutines wait in. Use one gate with one event loop."""

    def __init__(self, capacity: int, share: int) -> None:
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(capacity, share)

    @property
    def share(self) -> int:
        """The amount that one tenant may hold."""
        return self._queue.share

    def held_by(self, tenant: str) -> int:
        """Return the amount that a tenant holds."""
        return self._queue.held_by(tenant)

    @asynccontextmanager
    async def enter(self, tenant: str, amount: int = 1) -> AsyncGenerator[None]:
        """Hold an amount for the duration of the block."""
        await self.take(tenant, amount)
        try:
            yield
        finally:
            self.release(tenant, amount)

    def try_take(self, tenant: str, amount: int = 1) -> bool:
        """Take an amount if it is available immediately. The caller releases it."""
        return self._queue.try_take(tenant, amount)

    async def take(self, tenant: str, amount: int = 1) -> None:
        """Wait for an amount. The caller releases it."""
        queue = self._queue
        if queue.try_take(tenant, amount):
            return
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.add(tenant, amount, ticket)
        self._grant()
        try:
            await ticket
        except asyncio.CancelledError:
            if not queue.withdraw(tenant, ticket):
                # The ticket was granted between the cancellation and this statement.
                queue.release(tenant, amount)
            self._grant()
            raise

    def charge(self, tenant: str, amount: int) -> None:
        """Count an amount as held without waiting for it. The caller releases it."""
        self._queue.charge(tenant, amount)

    def release(self, tenant: str, amount: int = 1) -> None:
        """Release an amount."""
        self._queue.release(tenant, amount)
        self._grant()

    def _grant(self) -> None:
        for ticket in self._queue.grant():
            if not ticket.done():
                ticket.set_result(None)
