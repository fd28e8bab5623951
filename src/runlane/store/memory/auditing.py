"""Record operations of people and programs on whole memories in the audit log.

The record is stored before the operation begins, so an operation without a record cannot happen. A memory file has no
audit log: the record is in the database of runs in every mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runlane.store.access.audit import append_audit
from runlane.store.sql.database import Database, Session


async def audit_memory(
    database: Database, actor: str, tenant: str, action: str, subject: str, details: Mapping[str, Any] | None = None
) -> None:
    """Record an operation that was requested."""

    async def work(session: Session) -> None:
        await append_audit(session, actor=actor, tenant=tenant, action=action, subject=subject, new=details)

    await database.transact(work)
