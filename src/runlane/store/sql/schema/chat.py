"""Chat sessions and their turns."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, Table, Text

from runlane.store.sql.schema.base import metadata

# A chat session with one agent. `ordering_key` is that of its runs; `last_at` is the time of its last message.
chat_sessions = Table(
    "chat_sessions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("ordering_key", Text, nullable=False),
    Column("last_turn", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("last_at", BigInteger, nullable=False),
)
Index("chat_sessions_tenant", chat_sessions.c.tenant, chat_sessions.c.id)
Index("chat_sessions_last", chat_sessions.c.last_at)

# The result of a turn is that of its run. When retention deletes the run, it is copied here.
chat_turns = Table(
    "chat_turns",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("turn", Integer, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("status", Text),
    Column("answer", Text),
    Column("error", Text),
    Column("ended_at", BigInteger),
)
Index("chat_turns_run", chat_turns.c.run_id, unique=True)
