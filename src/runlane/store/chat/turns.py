"""Read chat sessions and their turns. The state of a turn is that of its run, and its answer is the run's result.

Both are stored by the commit that ends the run. Only when retention deletes a run, they are copied to the turn: a
session outlives its runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    cast,
    delete,
    func,
    or_,
    select,
    update,
)

from runlane.domain.run import Status
from runlane.domain.views import ChatMessage, ChatState
from runlane.errors import UnknownSession
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member, optional
from runlane.store.sql.page_bytes import within_bytes
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import chat_sessions, chat_turns, run_results, runs
from runlane.store.sql.statement import Row, Statement

# The turns whose messages are part of the state of a conversation.
SHOWN_TURNS: Final = 25


@dataclass(frozen=True, slots=True)
class Turn:
    """A message and its result. `kept` is False if retention has deleted the run."""

    session_id: str
    turn: int
    run_id: str
    message: str
    status: Status
    answer: Any
    error: dict[str, Any] | None
    at_us: int
    ended_at_us: int | None
    kept: bool

    def messages(self) -> Iterator[ChatMessage]:
        """Yield the message of the turn, and its answer once it has completed."""
        yield ChatMessage(self.turn, "user", self.message, self.status, self.run_id, self.at_us, self.error)
        if self.status is Status.COMPLETED:
            at_us = self.ended_at_us or self.at_us
            yield ChatMessage(self.turn, "assistant", self.answer, self.status, self.run_id, at_us)


_session = bindparam("session_id", type_=Text())

# At most one run holds the session's key: the turn that is running, or the next one.
_holder = runs.alias("holder")
_last_run = runs.alias("last_run")
_sessions = (
    select(
        chat_sessions,
        func.coalesce(_holder.c.status, _last_run.c.status, chat_turns.c.status, lit(Status.FAILED)).label("status"),
        func.coalesce(_last_run.c.ended_at, chat_turns.c.ended_at).label("ended_at"),
        _holder.c.worker_id,
    )
    .select_from(chat_sessions)
    .outerjoin(_holder, and_(_holder.c.ordering_key == chat_sessions.c.ordering_key, _holder.c.holds_key))
    .outerjoin(
        chat_turns,
        and_(chat_turns.c.session_id == chat_sessions.c.id, chat_turns.c.turn == chat_sessions.c.last_turn),
    )
    .outerjoin(_last_run, _last_run.c.id == chat_turns.c.run_id)
)
_FIND = Statement(
    "find_session", _sessions.where(chat_sessions.c.id == _session), purpose="Read a chat session and its current turn."
)
_tenant, _before = (bindparam(name, type_=Text()) for name in ("tenant", "before"))
_LIST = Statement(
    "list_sessions",
    _sessions.where(
        optional("tenant", chat_sessions.c.tenant),
        optional("agent", chat_sessions.c.agent),
        or_(cast(_before, Text).is_(None), chat_sessions.c.id < _before),
    )
    .order_by(chat_sessions.c.id.desc())
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read a page of a tenant's chat sessions, newest first.",
)

_turns = (
    select(
        chat_turns.c.session_id,
        chat_turns.c.turn,
        chat_turns.c.run_id,
        chat_turns.c.message,
        chat_turns.c.at,
        func.coalesce(runs.c.status, chat_turns.c.status, lit(Status.FAILED)).label("status"),
        func.coalesce(run_results.c.result, chat_turns.c.answer).label("answer"),
        func.coalesce(run_results.c.error, chat_turns.c.error).label("error"),
        func.coalesce(runs.c.ended_at, chat_turns.c.ended_at).label("ended_at"),
        runs.c.id.label("kept"),
    )
    .select_from(chat_turns)
    .outerjoin(runs, runs.c.id == chat_turns.c.run_id)
    .outerjoin(run_results, run_results.c.run_id == chat_turns.c.run_id)
)
_limit = bindparam("limit", type_=Integer())


def _page_of_turns(where: ColumnElement[bool], *, newest_first: bool) -> Select[*tuple[Any, ...]]:
    return within_bytes(
        _turns,
        chat_turns.c.session_id == _session,
        where,
        keys=[chat_turns.c.session_id, chat_turns.c.turn],
        order=[(chat_turns.c.turn, newest_first)],
        large=[chat_turns.c.message, chat_turns.c.answer, run_results.c.result, run_results.c.error],
        limit=_limit,
    )


_AFTER = Statement(
    "turns_after",
    _page_of_turns(chat_turns.c.turn > bindparam("after", type_=Integer()), newest_first=False),
    purpose="Read a page of turns of a chat session, oldest first.",
)
_BEFORE = Statement(
    "turns_before",
    _page_of_turns(chat_turns.c.turn < bindparam("before", type_=BigInteger()), newest_first=True),
    purpose="Read a page of turns of a chat session, newest first.",
)
_OPEN = Statement(
    "open_turns",
    select(chat_turns.c.turn, chat_turns.c.run_id)
    .select_from(chat_turns.join(runs, runs.c.id == chat_turns.c.run_id))
    .where(chat_turns.c.session_id == _session, runs.c.status.not_in([lit(s) for s in Status if s.terminal]))
    .order_by(chat_turns.c.turn),
    purpose="Read the turns of a chat session whose runs have not ended.",
)


def _of_run(column: Any) -> Any:
    return select(column).where(column.table.c["id" if column.table is runs else "run_id"] == chat_turns.c.run_id)


COPY_TURN_RESULTS = Statement(
    "copy_turn_results",
    update(chat_turns)
    .where(member(chat_turns.c.run_id, "ids"))
    .values(
        status=_of_run(runs.c.status).scalar_subquery(),
        answer=_of_run(run_results.c.result).scalar_subquery(),
        error=_of_run(run_results.c.error).scalar_subquery(),
        ended_at=_of_run(runs.c.ended_at).scalar_subquery(),
    ),
    purpose="Copy the results of runs to their chat turns before retention deletes the runs.",
)
_DROP_SESSIONS = Statement(
    "delete_sessions_of_tenant",
    delete(chat_sessions).where(chat_sessions.c.tenant == _tenant),
    purpose="Delete the chat sessions of a deleted tenant.",
)
_DROP_TURNS = Statement(
    "delete_turns_of_tenant",
    delete(chat_turns).where(
        chat_turns.c.session_id.in_(select(chat_sessions.c.id).where(chat_sessions.c.tenant == _tenant))
    ),
    purpose="Delete the chat turns of a deleted tenant.",
)


async def find_session(database: Database, session_id: str) -> ChatState:
    """Return a session."""
    rows = await database.query(_FIND, session_id=session_id)
    if not rows:
        raise UnknownSession(session_id)
    return _session_value(rows[0])


async def list_sessions(
    database: Database,
    *,
    tenant: str | None = None,
    agent: str | None = None,
    before: str | None = None,
    limit: int = 50,
) -> list[ChatState]:
    """Return sessions, newest first; `before` is the last id of the previous page."""
    rows = await database.query(_LIST, tenant=tenant, agent=agent, before=before, limit=limit)
    return [_session_value(row) for row in rows]


async def read_turns(database: Database, session_id: str, after: int = 0, limit: int = 100) -> list[Turn]:
    """Return the turns after a number, in order."""
    return [_turn(row) for row in await database.query(_AFTER, session_id=session_id, after=after, limit=limit)]


async def read_before(database: Database, session_id: str, number: int, count: int) -> list[Turn]:
    """Return the last turns before a number, in order."""
    rows = await database.query(_BEFORE, session_id=session_id, before=number, limit=count)
    return [_turn(row) for row in reversed(rows)]


async def with_newest_messages(database: Database, session: ChatState) -> ChatState:
    """Return the session with the messages of its last turns."""
    newest = await read_before(database, session.session_id, session.turns + 1, SHOWN_TURNS)
    return replace(session, messages=tuple(message for turn in newest for message in turn.messages()))


async def open_turns(database: Database, session_id: str) -> list[tuple[int, str]]:
    """Return the turns that have not ended, in order, with their runs."""
    return [(row["turn"], row["run_id"]) for row in await database.query(_OPEN, session_id=session_id)]


async def drop_sessions(session: Session, tenant: str) -> None:
    """Delete every chat session of a deleted tenant."""
    await session.fetch(_DROP_TURNS, tenant=tenant)
    await session.fetch(_DROP_SESSIONS, tenant=tenant)


def _session_value(row: Row) -> ChatState:
    return from_row(
        ChatState,
        row,
        session_id=row["id"],
        agent_id=row["agent"],
        status=Status(row["status"]),
        turns=row["last_turn"],
        last_message_at_us=max(row["last_at"], row["ended_at"] or 0),
    )


def _turn(row: Row) -> Turn:
    kept, status = row["kept"] is not None, Status(row["status"])
    return from_row(Turn, row, json=("answer", "error"), status=status, kept=kept)
