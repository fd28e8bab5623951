"""Search by id and name over records of several kinds, each through an index or a list that is small by nature.

Runs and conversations are found by their id or its beginning; definitions, schedules and lanes by a part of their name.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sqlalchemy import ColumnElement, Integer, Text, bindparam, func, or_, select

from runlane.domain.ids import is_run_id_prefix
from runlane.domain.search_hit import SearchHit
from runlane.store.queue.search import RunFilter, escaped, search_runs
from runlane.store.queue.workers import list_workers
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import optional
from runlane.store.sql.schema import chat_sessions, definitions, lanes, schedules
from runlane.store.sql.statement import Statement

MAX_HITS: Final = 20
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_pattern = bindparam("pattern", type_=Text())
_limit = bindparam("limit", type_=Integer())


def _like(column: ColumnElement[Any]) -> ColumnElement[bool]:
    return func.lower(column).like(_pattern, escape="\\")


_DEFINITIONS = Statement(
    "search_definitions",
    select(definitions.c.kind, definitions.c.id, definitions.c.name)
    .where(
        definitions.c.tenant == bindparam("tenant"),
        definitions.c.removed_at.is_(None),
        or_(_like(definitions.c.id), _like(definitions.c.name)),
    )
    .order_by(definitions.c.id)
    .limit(_limit),
    purpose="Find definitions of a tenant by a part of their id or name.",
)
_SCHEDULES = Statement(
    "search_schedules",
    select(schedules.c.id)
    .where(schedules.c.tenant == bindparam("tenant"), _like(schedules.c.id))
    .order_by(schedules.c.id)
    .limit(_limit),
    purpose="Find schedules of a tenant by a part of their id.",
)
_LANES = Statement(
    "search_lanes",
    select(lanes.c.name).where(_like(lanes.c.name)).order_by(lanes.c.name).limit(_limit),
    purpose="Find lanes by a part of their name.",
)
_SESSION = Statement(
    "search_session",
    select(chat_sessions.c.id, chat_sessions.c.agent).where(
        chat_sessions.c.id == bindparam("session_id"), optional("tenant", chat_sessions.c.tenant)
    ),
    purpose="Find a conversation by its id.",
)


async def search_names(
    database: Database, words: str, *, tenant: str | None, home: str, operator: bool
) -> list[SearchHit]:
    """Return up to MAX_HITS records. Definitions are those of `home`; lanes and workers are for operators."""
    hits: list[SearchHit] = []
    if is_run_id_prefix(words) and words != "run_":
        found = await search_runs(database, RunFilter(tenant=tenant, id_prefix=words), limit=MAX_HITS)
        hits += [SearchHit("run", run.id, f"{run.target} ({run.status.value})") for run in found.runs]
    if _ID.fullmatch(words):
        rows = await database.query(_SESSION, session_id=words, tenant=tenant)
        hits += [SearchHit("session", row["id"], f"conversation with {row['agent']}") for row in rows]
    pattern = f"%{escaped(words.lower())}%"
    if operator:
        workers = await list_workers(database, gone_too=True)
        hits += [
            SearchHit("worker", worker.id, f"{worker.host or 'worker'} ({worker.status})")
            for worker in workers
            if worker.id.startswith(words) or words.lower() in (worker.host or "").lower()
        ][:MAX_HITS]
        rows = await database.query(_LANES, pattern=pattern, limit=MAX_HITS)
        hits += [SearchHit("lane", row["name"], row["name"]) for row in rows]
    rows = await database.query(_DEFINITIONS, tenant=home, pattern=pattern, limit=MAX_HITS)
    hits += [SearchHit(row["kind"], row["id"], row["name"] or row["id"]) for row in rows if row["kind"] != "schedule"]
    rows = await database.query(_SCHEDULES, tenant=home, pattern=pattern, limit=MAX_HITS)
    hits += [SearchHit("schedule", row["id"], row["id"]) for row in rows]
    # A record with exactly this id comes first.
    hits.sort(key=lambda hit: hit.id != words)
    return hits[:MAX_HITS]
