"""The warning that a tenant has used most of a quota, given in the transaction that uses it."""

from __future__ import annotations

import structlog

from runlane.domain.quota import is_warning
from runlane.store.sql.database import Session
from runlane.store.webhooks.notices import report_quota

log = structlog.get_logger(__name__)


async def warn_of_quota(session: Session, tenant: str, name: str, limit: int, before: int, after: int) -> None:
    """Log and report that a tenant has used four fifths of a quota. Webhooks report it once a day."""
    if is_warning(limit, before, after):
        log.warning("quota_warning", tenant=tenant, quota=name, limit=limit, used=after)
        await report_quota(session, tenant, name, limit, after)
