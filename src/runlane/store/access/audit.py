"""The audit log: the author of each change, with the old and the new value.

An entry is written by the transaction that makes the change, so each change has exactly one entry. Keys
appear by their id and prefix, never by their secret or its hash. Only retention deletes entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    Float,
    FromClause,
    Integer,
    Text,
    bindparam,
    cast,
    delete,
    insert,
    or_,
    select,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.access import AuditEntry
from runlane.domain.ids import new_id
from runlane.domain.text import clean_text, dump_json
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member, now_us, optional
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import audit
from runlane.store.sql.statement import Row, Statement

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


class NewAudit(NamedTuple):
    """An entry to add."""

    actor: str
    tenant: str
    action: str
    subject: str
    old: Mapping[str, Any] | None = None
    new: Mapping[str, Any] | None = None


_COLUMNS = ("id", "actor", "tenant", "action", "subject", "old", "new")


def _append_many(batch: FromClause) -> Executable:
    return insert(audit).from_select(
        [*_COLUMNS, "at"], select(*(batch.c[name] for name in _COLUMNS), now_us()).select_from(batch)
    )


_APPEND_MANY = Statement(
    "append_audits", _append_many, dict.fromkeys(_COLUMNS, Text()), purpose="Add several audit entries."
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
        or_(bindparam("any_actor", type_=Boolean()), member(audit.c.actor, "actors")),
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


async def append_audits(session: Session, entries: Sequence[NewAudit]) -> None:
    """Add entries, in the transaction that makes the changes."""
    await session.fetch(
        _APPEND_MANY,
        [
            (
                new_id("aud"),
                clean_text(entry.actor, MAX_ACTOR),
                entry.tenant,
                entry.action,
                entry.subject,
                None if entry.old is None else dump_json(entry.old),
                None if entry.new is None else dump_json(entry.new),
            )
            for entry in entries
        ],
    )


async def list_audit(
    database: Database,
    *,
    tenant: str | None = None,
    action: str | None = None,
    subject: str | None = None,
    actors: Sequence[str] = (),
    before: str | None = None,
    limit: int = 50,
) -> Sequence[AuditEntry]:
    """Return the newest matching entries, of any actor by default; `before` is the last id of the previous page."""

    async def work(session: Session) -> Sequence[Row]:
        return await session.fetch(
            _LIST, tenant=tenant, action=action, subject=subject, before=before, limit=limit, any_actor=not actors,
            actors=session.texts(actors),
        )  # fmt: skip

    rows = await database.transact(work)
    return [from_row(AuditEntry, row, json=("old", "new")) for row in rows]


async def delete_old_audit(session: Session, keep_seconds: float) -> int:
    """Delete some of the entries older than that; return how many."""
    return len(await session.fetch(_DELETE_OLD, keep_seconds=keep_seconds))
