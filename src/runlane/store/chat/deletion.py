"""Delete chat sessions: on request, and when retention has deleted all of their runs.

Retention deletes a session when all of its runs are deleted and its last message is older than the retention of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Float, Text, bindparam, cast, delete, exists, select
from sqlalchemy.types import BigInteger

from runlane.domain.graph import ORDERING_KEY as THREAD_KEY
from runlane.domain.run import Status
from runlane.domain.tenant import bare_key
from runlane.errors import Conflict, UnknownSession, WrongState
from runlane.store.queue.ordering import key_locks
from runlane.store.queue.retention import delete_runs
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member, now_once
from runlane.store.sql.schema import chat_sessions, chat_turns, dead_letters, runs
from runlane.store.sql.statement import Statement

SESSIONS_AT_ONCE: Final = 200

_one = chat_sessions.c.id == bindparam("session_id", type_=Text())
_KEY = Statement(
    "key_of_session",
    select(chat_sessions.c.ordering_key).where(_one),
    purpose="Read the ordering key of a chat session.",
)
_LOCK_SESSION = Statement(
    "lock_session_to_delete",
    select(chat_sessions.c.id).where(_one).with_for_update(),
    purpose="Lock a chat session and read its tenant.",
)
_RUNS = Statement(
    "runs_of_session",
    select(runs.c.id, runs.c.status)
    .select_from(chat_turns.join(runs, runs.c.id == chat_turns.c.run_id))
    .where(chat_turns.c.session_id == bindparam("session_id", type_=Text()))
    .with_for_update(of=runs),
    purpose="Lock the runs of a chat session.",
)
_DELETE_SESSIONS = Statement(
    "delete_sessions", delete(chat_sessions).where(member(chat_sessions.c.id, "ids")), purpose="Delete chat sessions."
)
_DELETE_TURNS = Statement(
    "delete_turns",
    delete(chat_turns).where(member(chat_turns.c.session_id, "ids")),
    purpose="Delete the turns of chat sessions.",
)
_DELETE_TURNS_OF_RUNS = Statement(
    "delete_turns_of_runs",
    delete(chat_turns).where(member(chat_turns.c.run_id, "ids")),
    purpose="Delete the turns of runs that are rolled back.",
)
_DELETE_LETTERS = Statement(
    "delete_letters_of_runs",
    delete(dead_letters).where(member(dead_letters.c.run_id, "ids")),
    purpose="Delete the dead letters of runs.",
)

_age = cast(bindparam("keep_seconds", type_=Float()) * 1_000_000, BigInteger)
_OLD = Statement(
    "old_sessions",
    select(chat_sessions.c.id)
    .where(
        chat_sessions.c.last_at < now_once() - _age,
        ~exists()
        .where(chat_turns.c.session_id == chat_sessions.c.id, runs.c.id == chat_turns.c.run_id)
        .correlate(chat_sessions),
    )
    .order_by(chat_sessions.c.last_at)
    .limit(lit(SESSIONS_AT_ONCE))
    .with_for_update(skip_locked=True),
    purpose="Find chat sessions past their retention without open runs.",
)


async def delete_session(database: Database, session_id: str) -> None:
    """Delete a conversation with everything that belongs to its runs. WrongState while a turn is open."""

    async def work(session: Session) -> None:
        rows = await session.fetch(_KEY, session_id=session_id)
        if not rows:
            raise UnknownSession(session_id)
        if bare_key(rows[0]["ordering_key"]).startswith(THREAD_KEY):
            raise Conflict(f"The chat session {session_id} belongs to a thread. Delete the thread: DELETE /threads/ID")
        # No turn can be posted or retried while this lock is held.
        await session.lock(exclusive=key_locks([rows[0]["ordering_key"]]))
        if not await session.fetch(_LOCK_SESSION, session_id=session_id):
            raise UnknownSession(session_id)
        found = await session.fetch(_RUNS, session_id=session_id)
        if any(not Status(row["status"]).terminal for row in found):
            raise WrongState(
                f"The chat session {session_id} has a turn that has not ended. Cancel it first: "
                f"POST /api/v2/chat/{session_id}/cancel"
            )
        ids = [row["id"] for row in found]
        await _drop(session, [session_id])
        await session.fetch(_DELETE_LETTERS, ids=session.texts(ids))
        await delete_runs(session, ids)

    await database.transact(work)


async def delete_old_sessions(session: Session, keep_seconds: float) -> int:
    """Delete some of the sessions that were not used for this long; return how many."""
    ids = [row["id"] for row in await session.fetch(_OLD, keep_seconds=keep_seconds)]
    await _drop(session, ids)
    return len(ids)


async def drop_turns(session: Session, run_ids: Sequence[str]) -> None:
    """Delete the turns of runs that are rolled back. Their numbers are not used again."""
    await session.fetch(_DELETE_TURNS_OF_RUNS, ids=session.texts(run_ids))


async def drop_sessions_of_threads(session: Session, ids: Sequence[str]) -> None:
    """Delete the sessions of deleted threads; their runs stay until retention."""
    await _drop(session, list(ids))


async def _drop(session: Session, ids: list[str]) -> None:
    if ids:
        bound = session.texts(ids)
        await session.fetch(_DELETE_TURNS, ids=bound)
        await session.fetch(_DELETE_SESSIONS, ids=bound)
