"""Summaries of chats: written by the compaction of a turn, and used by the turns after it.

A summary is a row of the journal of the turn's run, so it is as durable as the answer that it was paid for. It is
deleted with its run; the turns themselves are kept, so a later turn can summarize them again.
"""

from __future__ import annotations

from typing import Any, Final, cast

from sqlalchemy import Integer, Text, bindparam, select

from runlane.domain.text import load_json
from runlane.store.orchestration.calls import CallKind
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import lit
from runlane.store.sql.schema import chat_turns, run_calls
from runlane.store.sql.statement import Statement

# Summaries of agents that a turn delegates to are rows, too; they cover no turn.
_READ: Final = 20
# The key of the first answer in the journal.
_FIRST: Final = "0/model/0"

_LAST = Statement(
    "last_summaries",
    select(run_calls.c.payload)
    .select_from(chat_turns.join(run_calls, run_calls.c.run_id == chat_turns.c.run_id))
    .where(
        chat_turns.c.session_id == bindparam("session_id", type_=Text()),
        chat_turns.c.turn < bindparam("before", type_=Integer()),
        run_calls.c.kind == lit(CallKind.SUMMARY),
    )
    .order_by(chat_turns.c.turn.desc(), run_calls.c.at.desc(), run_calls.c.key.desc())
    .limit(_READ),
    purpose="Read the last summaries of a chat session before a turn, newest first.",
)


_FIRST_REQUEST = Statement(
    "first_request_tokens",
    select(run_calls.c.tokens_in).where(
        run_calls.c.run_id == bindparam("run_id", type_=Text()),
        run_calls.c.kind == lit(CallKind.MODEL),
        run_calls.c.key == bindparam("key", type_=Text()),
    ),
    purpose="Read the tokens that the provider counted for the first request of a run.",
)


async def read_request_tokens(database: Database, run_id: str) -> int:
    """Return the size of the first request of a run of an agent, as its provider counted it; 0 if it is unknown."""
    return max(
        (int(row["tokens_in"]) for row in await database.query(_FIRST_REQUEST, run_id=run_id, key=_FIRST)), default=0
    )


async def read_summary(database: Database, session_id: str, before: int) -> dict[str, Any] | None:
    """Return the newest summary of the turns before a turn: its text and the last turn that it covers."""
    for row in await database.query(_LAST, session_id=session_id, before=before):
        stored = cast("dict[str, Any]", load_json(row["payload"]))
        if stored.get("turn") is not None:
            return stored
    return None
