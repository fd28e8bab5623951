"""The warning that a tenant has used most of a quota, given in the transaction that uses it."""

from __future__ import annotations

import structlog

from runlane.domain.quota import is_warning

log = structlog.get_logger(__name__)


def warn_of_quota(tenant: str, name: str, limit: int, before: int, after: int) -> None:
    """Log that a tenant has used four fifths of a quota: once a day, or once each time that it does."""
    if is_warning(limit, before, after):
        log.warning("quota_warning", tenant=tenant, quota=name, limit=limit, used=after)
