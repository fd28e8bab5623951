"""The audit log: the author of each change, with the old and the new value.

An entry is written by the transaction that makes the change, so each change has exactly one entry. Keys
appear by their id and prefix, never by their secret or its hash. Only retention deletes entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Float, Integer, Text, bindparam, cast, delete, insert, or_, select

from runlane.domain.access import AuditEntry
from runlane.domain.ids import new_id
from runlane.domain.text import clean_text, dump_json
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_us, optional
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import audit
from runlane.store.sql.statement import Statement

MAX_ACTOR = 200
DELETED_AT_ONCE = 500

_APPEND = Statement(
    "append_audit",
    insert(audit).values(
        id=bindparam("id"),
        at=now_us(),
        actor=bindparam("actor"),
        tenant=bindparam("tenant"),
        action=bindparam("action"),
        subject=bindparam("subject"),
        old=bindparam("old", type_=Text()),
        new=bindparam("new", type_=Text()),
    ),
    purpose="Add an audit entry.",
)


_before = bindparam("before", type_=Text())
_LIST = Statement(
    "list_audit",
    select(audit)
    .where(
        or_(cast(_before, Text).is_(None), audit.c.id < _before),
        optional("tenant", audit.c.tenant),
        optional("action", audit.c.action),
        optional("subject", audit.c.subject),
    )
    .order_by(audit.c.id.desc())
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read a page of the audit log, newest first.",
)

# Ids sort by time, so the oldest entries are the first ones of the primary key, and no index on the time is needed.
_DELETE_OLD = Statement(
    "delete_old_audit",
    delete(audit)
    .where(
        audit.c.id.in_(select(audit.c.id).order_by(audit.c.id).limit(lit(DELETED_AT_ONCE))),
        audit.c.at < now_us() - cast(bindparam("keep_seconds", type_=Float()) * 1_000_000, BigInteger),
    )
    .returning(audit.c.id),
    purpose="Delete audit entries past their retention.",
)


async def append_audit(
    session: Session,
    *,
    actor: str,
    tenant: str,
    action: str,
    subject: str,
    old: Mapping[str, Any] | None = None,
    new: Mapping[str, Any] | None = None,
) -> None:
    """Add an entry, in the transaction that makes the change."""
    await session.fetch(
        _APPEND,
        id=new_id("aud"),
        actor=clean_text(actor, MAX_ACTOR),
        tenant=tenant,
        action=action,
        subject=subject,
        old=None if old is None else dump_json(old),
        new=None if new is None else dump_json(new),
    )


async def list_audit(
    database: Database,
    *,
    tenant: str | None = None,
    action: str | None = None,
    subject: str | None = None,
    before: str | None = None,
    limit: int = 50,
) -> Sequence[AuditEntry]:
    """Return the newest matching entries; `before` is the last id of the previous page."""
    rows = await database.query(_LIST, tenant=tenant, action=action, subject=subject, before=before, limit=limit)
    return [from_row(AuditEntry, row, json=("old", "new")) for row in rows]


async def delete_old_audit(session: Session, keep_seconds: float) -> int:
    """Delete some of the entries older than that; return how many."""
    return len(await session.fetch(_DELETE_OLD, keep_seconds=keep_seconds))
