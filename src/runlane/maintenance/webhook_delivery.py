"""Webhook delivery: send the messages of the outbox. Every process may run it; it uses no run slot.

One transaction stores the results of the tries that ended and claims the next deliveries, so a busy process needs one
per batch. A delivery of a process that died is due again when its lease ends: a receiver may get a message twice, with
the same id, and gets it at least once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import structlog

from runlane.access.secrets import SecretVault
from runlane.bus import Bus
from runlane.domain.hints import Topic
from runlane.domain.webhook import DeliveryStatus
from runlane.domain.webhook_places import Places
from runlane.errors import Unavailable
from runlane.failpoints import failpoint
from runlane.maintenance.service import PeriodicService
from runlane.observability import metrics
from runlane.settings import Settings
from runlane.store.sql.database import Database, Session
from runlane.store.webhooks.claims import ClaimedDeliveries, ClaimedDelivery, claim_deliveries
from runlane.store.webhooks.results import TryResult, record_tries, release
from runlane.webhooks.sender import WebhookSender

log = structlog.get_logger(__name__)

# The interval without work, during which the maintenance survey wakes the service.
_IDLE_SECONDS = 60.0
# How soon a pass whose results could not be stored is repeated, and the least time between passes for a rate.
_SOON_SECONDS = 0.1
_STOP_SECONDS = 5.0
# How long results of tries are gathered for one transaction while other tries may end as soon.
_GATHER_SECONDS = 0.005
_GATHERED = 20
# A try that takes longer is not waited for.
_QUICK_SECONDS = 0.05


def lease_seconds(timeout_seconds: float) -> float:
    """Return how long a delivery is claimed: longer than an attempt can take."""
    return 1.5 * timeout_seconds + 2.0


class WebhookService(PeriodicService):
    """Claims due deliveries and sends them concurrently."""

    def __init__(self, settings: Settings, database: Database, bus: Bus) -> None:
        super().__init__("webhooks", self._pause_seconds, self._run_once)
        self._database = database
        self._bus = bus
        vault = SecretVault(database, settings)
        self._sender = WebhookSender(settings, vault.keyring, vault.values)
        self._places = settings.webhook_concurrency
        self._lease_us = int(lease_seconds(settings.webhook_timeout_seconds) * 1_000_000)
        self._sending: dict[asyncio.Task[None], ClaimedDelivery] = {}
        # When the tries in progress began.
        self._begun: dict[str, float] = {}
        self._finished: list[tuple[ClaimedDelivery, TryResult]] = []
        self._gathering: asyncio.TimerHandle | None = None
        # The next pass for deliveries that wait.
        self._again: asyncio.TimerHandle | None = None

    async def stop(self) -> None:
        """Finish the tries in progress, for a moment, and give back the others."""
        await super().stop()
        for timer in (self._gathering, self._again):
            if timer is not None:
                timer.cancel()
        if self._sending:
            await asyncio.wait(self._sending, timeout=_STOP_SECONDS)
        unsent = dict(self._sending)
        for task in unsent:
            task.cancel()
        await asyncio.gather(*unsent, return_exceptions=True)
        finished, self._finished = self._finished, []
        if finished or unsent:
            # If the database is unavailable, the leases expire and other processes continue.
            with contextlib.suppress(Unavailable):
                await self._database.transact(lambda session: _hand_over(session, finished, list(unsent.values())))
        await self._sender.close()

    def _pause_seconds(self) -> float:
        return _SOON_SECONDS if self._finished else _IDLE_SECONDS

    async def _run_once(self) -> bool:
        finished, self._finished = self._finished, []
        try:
            claimed = await self._database.transact(lambda session: self._record_and_claim(session, finished))
        except BaseException:
            self._finished = [*finished, *self._finished]
            raise
        _count(finished)
        if finished:
            failpoint("webhook.recorded")
        for tenant in {delivery.tenant for delivery, _ in finished}:
            self._bus.hint(Topic.DELIVERIES, tenant)
        claimed_at = time.monotonic()
        if claimed.deliveries:
            failpoint("webhook.claimed")
        for delivery in claimed.deliveries:
            task = asyncio.create_task(self._send(delivery, claimed_at), name=f"runlane-webhook-{delivery.id}")
            self._sending[task] = delivery
            task.add_done_callback(self._sending.pop)
        if claimed.again_seconds is not None:
            self._claim_again(max(_SOON_SECONDS, claimed.again_seconds))
        return claimed.more

    def _claim_again(self, after_seconds: float) -> None:
        """Make a pass after this time, unless one is planned before it: every pass may plan one."""
        loop = asyncio.get_running_loop()
        at = loop.time() + after_seconds
        if self._again is not None:
            if self._again.when() <= at:
                return
            self._again.cancel()
        self._again = loop.call_at(at, self._wake_again)

    def _wake_again(self) -> None:
        self._again = None
        self.wake()

    async def _record_and_claim(
        self, session: Session, finished: list[tuple[ClaimedDelivery, TryResult]]
    ) -> ClaimedDeliveries:
        await record_tries(session, finished)
        held = [(delivery.tenant, delivery.endpoint_id) for delivery in self._sending.values()]
        return await claim_deliveries(session, Places.of_process(self._places, held), self._lease_us)

    async def _send(self, delivery: ClaimedDelivery, claimed_at: float) -> None:
        self._begun[delivery.id] = time.monotonic()
        try:
            result = await self._sender.send(delivery, claimed_at)
        except Exception:
            # The lease of the delivery expires, and the delivery is tried again.
            log.exception("webhook_failed", delivery=delivery.id)
            return
        finally:
            del self._begun[delivery.id]
        failpoint("webhook.sent")
        self._finished.append((delivery, result))
        self._record_soon()

    def _record_soon(self) -> None:
        since = time.monotonic() - _QUICK_SECONDS
        if len(self._finished) >= _GATHERED or not any(begun >= since for begun in self._begun.values()):
            self.wake()
        elif self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._record_now)

    def _record_now(self) -> None:
        self._gathering = None
        self.wake()


async def _hand_over(
    session: Session, finished: list[tuple[ClaimedDelivery, TryResult]], unsent: list[ClaimedDelivery]
) -> None:
    await record_tries(session, finished)
    await release(session, unsent)


def _count(finished: list[tuple[ClaimedDelivery, TryResult]]) -> None:
    for _, result in finished:
        match result.status:
            case DeliveryStatus.DELIVERED:
                outcome = "delivered"
            case DeliveryStatus.FAILED:
                outcome = "given_up"
            case _:
                outcome = "retried"
        metrics.WEBHOOK_ATTEMPTS.add(outcome)
