"""Posting to a chat: a turn is a run, and its row has the message and its position in the conversation.

The row is stored in the transaction that accepts the run, under the lock of the session's ordering key. Neither exists
without the other, and turns are numbered in the order in which they run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Integer, Text, bindparam, insert, select, update

from runlane.domain.quota import CHAT_SESSIONS
from runlane.domain.run import Accepted
from runlane.domain.text import dump_json, load_json
from runlane.errors import Conflict, UnknownSession
from runlane.failpoints import failpoint
from runlane.store.access.quotas import check_one_more
from runlane.store.queue.accept import NewRun, accept
from runlane.store.queue.limit_gate import accept_locks
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_us
from runlane.store.sql.schema import chat_sessions, chat_turns
from runlane.store.sql.statement import Row, Statement

# The field of a run's plan that names the chat turn of the run.
PLAN_KEY: Final = "chat"


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """An accepted turn."""

    session_id: str
    turn: int
    accepted: Accepted


_session = bindparam("session_id", type_=Text())
_LOCK_SESSION = Statement(
    "lock_session",
    select(chat_sessions).where(chat_sessions.c.id == _session).with_for_update(),
    purpose="Lock a chat session while a turn is added.",
)
_BEGIN = Statement(
    "begin_session",
    insert(chat_sessions).values(
        id=_session,
        tenant=bindparam("tenant", type_=Text()),
        agent=bindparam("agent", type_=Text()),
        ordering_key=bindparam("ordering_key", type_=Text()),
        last_turn=lit(1),
        created_at=now_us(),
        last_at=now_us(),
    ),
    purpose="Create a chat session with its first turn.",
)
_GO_ON = Statement(
    "advance_session",
    update(chat_sessions)
    .where(chat_sessions.c.id == _session)
    .values(last_turn=bindparam("turn", type_=Integer()), last_at=now_us()),
    purpose="Note the number and time of a new turn of a chat session.",
)
_ADD = Statement(
    "add_turn",
    insert(chat_turns).values(
        session_id=_session,
        turn=bindparam("turn", type_=Integer()),
        run_id=bindparam("run_id", type_=Text()),
        message=bindparam("message", type_=Text()),
        at=now_us(),
    ),
    purpose="Add a turn to a chat session.",
)
_OF_RUN = Statement(
    "turn_of_run",
    select(chat_turns.c.session_id, chat_turns.c.turn).where(chat_turns.c.run_id == bindparam("run_id", type_=Text())),
    purpose="Find the chat turn of a run.",
)


async def post_turn(
    database: Database,
    new_run: NewRun,
    *,
    session_id: str,
    agent: str,
    message: str,
    is_new: bool,
    after_turn: int | None = None,
) -> ChatTurn:
    """Store a message and accept its run. UnknownSession, or Conflict for a session with another agent.

    With `after_turn`, another last turn of the session is a Conflict, too.
    """

    async def work(session: Session) -> ChatTurn:
        await session.lock(exclusive=accept_locks([new_run]))
        turn = await post_in(
            session, new_run, session_id=session_id, agent=agent, message=message, is_new=is_new, holds_limits=True
        )
        # A repeated request has added the turn itself.
        if after_turn is not None and not turn.accepted.replayed and turn.turn != after_turn + 1:
            raise Conflict(
                f"The chat session {session_id} has a turn after turn {after_turn}, so it cannot continue there. "
                "Continue after its last turn, or begin another session."
            )
        failpoint("accept.before_commit")
        return turn

    posted = await database.transact(work)
    failpoint("accept.committed")
    return posted


async def post_in(
    session: Session,
    new_run: NewRun,
    *,
    session_id: str,
    agent: str,
    message: str,
    is_new: bool,
    holds_limits: bool = False,
) -> ChatTurn:
    """Do the same within a transaction that holds the lock of the session's ordering key."""
    turn = 1
    if not is_new:
        # Locked, so that retention does not delete the session meanwhile.
        known = await session.fetch(_LOCK_SESSION, session_id=session_id)
        if not known or known[0]["tenant"] != new_run.tenant:
            raise UnknownSession(session_id)
        if known[0]["agent"] != agent:
            raise Conflict(
                f'The chat session {session_id} is one with the agent "{known[0]["agent"]}". '
                f'Begin one with "{agent}": leave session_id out.'
            )
        if known[0]["ordering_key"] != new_run.ordering_key:
            raise Conflict(
                f"The chat session {session_id} belongs to a thread, which orders its turns. Start a run in the "
                "thread: POST /threads/{thread_id}/runs"
            )
        turn = known[0]["last_turn"] + 1
    plan = load_json(new_run.plan or "{}") | {PLAN_KEY: {"session_id": session_id, "turn": turn}}
    (verdict,) = await accept(session, [new_run._replace(plan=dump_json(plan))], holds_limits=holds_limits)
    if not isinstance(verdict, Accepted):
        raise verdict
    if verdict.replayed:
        return await _posted_before(session, verdict)
    await add_turn(session, new_run, session_id=session_id, agent=agent, message=message, turn=turn, is_new=is_new)
    return ChatTurn(session_id, turn, verdict)


async def lock_session(session: Session, session_id: str) -> Row | None:
    """Return a session, locked so that retention does not delete it meanwhile; None if it does not exist."""
    rows = await session.fetch(_LOCK_SESSION, session_id=session_id)
    return rows[0] if rows else None


async def add_turn(
    session: Session, new_run: NewRun, *, session_id: str, agent: str, message: str, turn: int, is_new: bool
) -> None:
    """Add the turn of an accepted run to its session, or begin the session with it."""
    if is_new:
        await check_one_more(session, new_run.tenant, CHAT_SESSIONS, None)
        await session.fetch(
            _BEGIN,
            session_id=session_id,
            tenant=new_run.tenant,
            agent=agent,
            ordering_key=new_run.ordering_key,
        )
    else:
        await session.fetch(_GO_ON, session_id=session_id, turn=turn)
    await session.fetch(_ADD, session_id=session_id, turn=turn, run_id=new_run.id, message=message)


async def _posted_before(session: Session, verdict: Accepted) -> ChatTurn:
    rows = await session.fetch(_OF_RUN, run_id=verdict.run_id)
    if not rows:
        raise Conflict("The Idempotency-Key belongs to a run that is not a chat turn. Use a new key.")
    return ChatTurn(rows[0]["session_id"], rows[0]["turn"], verdict)
