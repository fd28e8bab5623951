"""The outcomes of the latest deliveries of an endpoint, counted when the endpoint is read."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ColumnElement, func, select

from runlane.domain.webhook import DeliveryStatus, RecentDeliveries
from runlane.store.sql.expressions import lit
from runlane.store.sql.schema import webhook_deliveries, webhook_endpoints
from runlane.store.sql.statement import Row

# The number of deliveries whose outcomes are counted.
RECENT: Final = 100

_latest = (
    select(webhook_deliveries.c.status)
    .where(webhook_deliveries.c.endpoint_id == webhook_endpoints.c.id, ~webhook_deliveries.c.neutral)
    .order_by(webhook_deliveries.c.id.desc())
    .limit(lit(RECENT))
    .correlate(webhook_endpoints)
    .subquery("latest")
)


def _count(status: DeliveryStatus) -> ColumnElement[int]:
    count = select(func.count()).select_from(_latest).where(_latest.c.status == lit(status))
    return count.correlate(webhook_endpoints).scalar_subquery()


# Endpoints with these counts.
WITH_RECENT: Final = select(
    webhook_endpoints,
    _count(DeliveryStatus.DELIVERED).label("recent_delivered"),
    _count(DeliveryStatus.FAILED).label("recent_failed"),
)


def recent_of(row: Row) -> RecentDeliveries | None:
    """Return the outcomes; None if the statement has not counted them."""
    counts: dict[str, Any] = dict(row)
    if "recent_failed" not in counts:
        return None
    return RecentDeliveries(counts["recent_delivered"], counts["recent_failed"])
