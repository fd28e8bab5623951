"""Check which threads and assistants an access rule allows. The databases decide, as they do for searches."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Text, bindparam, select

from runlane.domain.access_rule import AccessRule
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import json_contains_any, member
from runlane.store.sql.schema import assistants, threads
from runlane.store.sql.statement import Statement

_tenant = bindparam("tenant", type_=Text())
_rule = bindparam("rule", type_=Text())
_THREADS = Statement(
    "visible_threads",
    select(threads.c.id, json_contains_any(threads.c.metadata, _rule).label("visible")).where(
        threads.c.tenant == _tenant, member(threads.c.id, "ids")
    ),
    purpose="Read which of some threads an access rule allows.",
)
_ASSISTANTS = Statement(
    "visible_assistants",
    select(assistants.c.id, json_contains_any(assistants.c.metadata, _rule).label("visible")).where(
        assistants.c.tenant == _tenant, member(assistants.c.id, "ids")
    ),
    purpose="Read which of some assistants an access rule allows.",
)


async def thread_visibility(
    database: Database, tenant: str, thread_ids: Sequence[str], rule: AccessRule
) -> dict[str, bool]:
    """Return for each thread that exists whether the rule allows it."""
    return await _read(database, _THREADS, tenant, thread_ids, rule)


async def assistant_visibility(
    database: Database, tenant: str, assistant_ids: Sequence[str], rule: AccessRule
) -> dict[str, bool]:
    """Return for each assistant that exists whether the rule allows it."""
    return await _read(database, _ASSISTANTS, tenant, assistant_ids, rule)


async def _read(
    database: Database, statement: Statement, tenant: str, ids: Sequence[str], rule: AccessRule
) -> dict[str, bool]:
    async def work(session: Session) -> dict[str, bool]:
        rows = await session.fetch(statement, tenant=tenant, ids=session.texts(list(ids)), rule=rule.text)
        return {row["id"]: bool(row["visible"]) for row in rows}

    return await database.transact(work)
