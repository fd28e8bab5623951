"""The earlier messages of a chat whose agent compacts conversations: the last summary, and every turn after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from runlane.agents.compaction import restored_summary
from runlane.domain.conversation import RequestConversation
from runlane.llm.models import Message
from runlane.orchestration.agent_run import MAX_COMPACTED_CHARACTERS, MAX_COMPACTED_TURNS, conversation_messages
from runlane.store.chat.summaries import read_request_tokens, read_summary
from runlane.store.chat.turns import read_before
from runlane.store.sql.database import Database


class ChatHistory(NamedTuple):
    """The messages before a run. `request_tokens` is the provider's token count for the request of the last turn."""

    messages: Sequence[Message]
    request_tokens: int = 0


async def compacted_history(
    database: Database, session_id: str, number: int, given: RequestConversation
) -> ChatHistory:
    """Return the history before a turn of a chat."""
    stored = await read_summary(database, session_id, number)
    summary = None if stored is None else restored_summary(stored)
    covered = 0 if summary is None or summary.turn is None else summary.turn
    count = min(MAX_COMPACTED_TURNS, max(0, number - 1 - covered))
    turns = await read_before(database, session_id, number, count) if count else []
    earlier = [message for message in given.messages if message.turn is None or message.turn > covered]
    messages = conversation_messages(turns, earlier, MAX_COMPACTED_CHARACTERS)
    tokens = await read_request_tokens(database, turns[-1].run_id) if turns else 0
    return ChatHistory(messages if summary is None else [summary, *messages], tokens)
