"""The warning that a tenant has nearly used up a quota, issued in the transaction that uses it."""

from __future__ import annotations

from runlane.domain.quota import is_warning
from runlane.store.sql.database import Session
from runlane.store.webhooks.notices import report_quota


async def warn_of_quota(session: Session, tenant: str, name: str, limit: int, before: int, after: int) -> None:
    """Log and report that a tenant has used four fifths of a quota. Webhooks report it once a day."""
    if is_warning(limit, before, after):
        # Imported here: commands that only read runs start faster without it.
        import structlog

        structlog.get_logger(__name__).warning("quota_warning", tenant=tenant, quota=name, limit=limit, used=after)
        await report_quota(session, tenant, name, limit, after)
