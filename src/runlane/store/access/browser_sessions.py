"""Browser sessions: create, find, list and end.

A session is found by the hash of its token in one statement, which also checks its age, its key and the tenant of the
key. So a revoked key ends its sessions in every process from the moment the revocation commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Text, and_, bindparam, cast, delete, insert, or_, select, update

from runlane.domain.access import Principal, same_hash
from runlane.domain.browser_session import (
    IDLE_SECONDS,
    LIFE_SECONDS,
    MAX_ADDRESS,
    MAX_AGENT,
    BrowserSession,
    new_token,
    token_hash,
)
from runlane.domain.ids import new_id
from runlane.domain.text import clean_text
from runlane.errors import NotFound
from runlane.store.access.audit import append_audit
from runlane.store.access.keys import TOUCH_SECONDS, USABLE_KEYS, principal_of
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member, now_us, optional
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import api_keys, browser_sessions
from runlane.store.sql.statement import Row, Statement

MAX_LISTED = 1000
_DELETED_AT_ONCE = 500

_alive = and_(
    browser_sessions.c.created_at > now_us() - lit(LIFE_SECONDS * 1_000_000),
    browser_sessions.c.last_seen_at > now_us() - lit(IDLE_SECONDS * 1_000_000),
)
_stale = browser_sessions.c.last_seen_at < now_us() - lit(TOUCH_SECONDS * 1_000_000)
_columns = [column for column in browser_sessions.c if column.name != "hash"]

_FIND = Statement(
    "find_browser_session",
    USABLE_KEYS.add_columns(
        browser_sessions.c.hash, browser_sessions.c.id.label("session_id"), _stale.label("session_stale")
    )
    .join(browser_sessions, browser_sessions.c.key_id == api_keys.c.id)
    .where(browser_sessions.c.hash == bindparam("hash"), _alive),
    purpose="Find the caller of a request by the hash of its session's token.",
)
_ALIVE = Statement(
    "find_live_sessions",
    select(browser_sessions.c.id).where(member(browser_sessions.c.id, "session_ids"), _alive),
    purpose="Read which sessions with open streams have not ended.",
)
_TOUCH = Statement(
    "touch_browser_session",
    update(browser_sessions)
    .where(browser_sessions.c.id == bindparam("session_id"), _stale)
    .values(last_seen_at=now_us()),
    purpose="Note when a session was last used, at most once per interval.",
)
_CREATE = Statement(
    "create_browser_session",
    insert(browser_sessions).values(
        id=bindparam("session_id"),
        hash=bindparam("hash"),
        key_id=bindparam("key_id"),
        tenant=bindparam("tenant"),
        created_at=now_us(),
        last_seen_at=now_us(),
        address=bindparam("address"),
        agent=bindparam("agent"),
    ),
    purpose="Add a browser session.",
)
# The key of the caller ends its own sessions; a key that manages keys ends those of its tenant.
_END = Statement(
    "end_browser_session",
    delete(browser_sessions)
    .where(
        browser_sessions.c.id == bindparam("session_id"),
        optional("tenant", browser_sessions.c.tenant),
        optional("only_key", browser_sessions.c.key_id),
    )
    .returning(*_columns),
    purpose="End a browser session.",
)
_before = bindparam("before", type_=Text())
_LIST = Statement(
    "list_browser_sessions",
    select(*_columns, api_keys.c.name.label("key_name"))
    .select_from(browser_sessions.outerjoin(api_keys, api_keys.c.id == browser_sessions.c.key_id))
    .where(
        _alive,
        api_keys.c.revoked_at.is_(None),
        optional("tenant", browser_sessions.c.tenant),
        optional("only_key", browser_sessions.c.key_id),
        or_(cast(_before, Text).is_(None), browser_sessions.c.id < _before),
    )
    .order_by(browser_sessions.c.id.desc())
    .limit(lit(MAX_LISTED)),
    purpose="Read the sessions that have not ended, newest first.",
)
_DELETE_OLD = Statement(
    "delete_ended_browser_sessions",
    delete(browser_sessions)
    .where(
        browser_sessions.c.id.in_(
            select(browser_sessions.c.id)
            .where(browser_sessions.c.last_seen_at < now_us() - lit(LIFE_SECONDS * 1_000_000))
            .order_by(browser_sessions.c.id)
            .limit(lit(_DELETED_AT_ONCE))
        )
    )
    .returning(browser_sessions.c.id),
    purpose="Delete sessions that ended long ago.",
)


@dataclass(frozen=True, slots=True)
class FoundSession:
    """The principal of a session; `stale` when the time of its last use should be updated."""

    id: str
    principal: Principal
    stale: bool


async def find_session(database: Database, token: str) -> FoundSession | None:
    """Return the session of a token; None if it has ended, its key is not valid, or its tenant is disabled."""
    wanted = token_hash(token)
    if wanted is None:
        return None
    for row in await database.query(_FIND, hash=wanted):
        # Compared again, because an index of another collation may find another row.
        principal = principal_of(row) if same_hash(row["hash"], wanted) else None
        if principal is None:
            return None
        session_id = row["session_id"]
        return FoundSession(session_id, replace(principal, session_id=session_id), bool(row["session_stale"]))
    return None


async def live_sessions(database: Database, session_ids: Sequence[str]) -> set[str]:
    """Return those sessions that have not ended, for streams, which outlive their request."""

    async def work(session: Session) -> Sequence[Row]:
        return await session.fetch(_ALIVE, session_ids=session.texts(session_ids))

    return {row["id"] for row in await database.transact(work)}


async def touch_session(database: Database, session_id: str) -> None:
    """Note that a session was used, unless that was noted within the last minute."""

    async def work(session: Session) -> None:
        await session.fetch(_TOUCH, session_id=session_id)

    await database.transact(work)


async def create_session(database: Database, principal: Principal, address: str, agent: str) -> str:
    """Store a session of this key and return its token, which cannot be read again."""
    token = new_token()
    session_id = new_id("bses")
    shown = {"key_id": principal.key_id, "address": clean_text(address, MAX_ADDRESS)}

    async def work(session: Session) -> None:
        await session.fetch(
            _CREATE,
            session_id=session_id,
            hash=token_hash(token),
            key_id=principal.key_id,
            tenant=principal.tenant,
            address=shown["address"],
            agent=clean_text(agent, MAX_AGENT),
        )
        await append_audit(
            session,
            actor=principal.actor,
            tenant=principal.tenant,
            action="session.create",
            subject=session_id,
            new=shown,
        )

    await database.transact(work)
    return token


async def list_sessions(
    database: Database, *, tenant: str | None, only_key: str | None = None, before: str | None = None
) -> list[BrowserSession]:
    """Return the newest sessions that have not ended, of a tenant and of one key if given."""
    rows = await database.query(_LIST, tenant=tenant, only_key=only_key, before=before)
    return [from_row(BrowserSession, row) for row in rows]


async def end_session(
    database: Database, session_id: str, *, actor: str, tenant: str | None, only_key: str | None = None
) -> None:
    """End a session. Raise NotFound if the tenant, or the key if given, has no such session."""

    async def work(session: Session) -> None:
        for row in await session.fetch(_END, session_id=session_id, tenant=tenant, only_key=only_key):
            await _audit_end(session, row, actor)
            return
        raise NotFound(f'No browser session "{session_id}" exists. Ids begin with bses_.')

    await database.transact(work)


async def _audit_end(session: Session, row: Row, actor: str) -> None:
    await append_audit(
        session,
        actor=actor,
        tenant=row["tenant"],
        action="session.end",
        subject=row["id"],
        old={"key_id": row["key_id"], "address": row["address"]},
    )


async def delete_ended_sessions(session: Session) -> int:
    """Delete some of the sessions that ended long ago; return how many."""
    return len(await session.fetch(_DELETE_OLD))
