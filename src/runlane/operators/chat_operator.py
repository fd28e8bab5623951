"""ChatOperator: the methods that read, cancel and delete conversations in the database. `Client` has the same ones."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from runlane.domain.run import Status
from runlane.domain.views import ChatMessage, ChatState
from runlane.errors import WrongState
from runlane.store.sql.database import Database

# Modules of the store are imported where they are used, because most processes with an App have no conversations.


class ChatOperator:
    """Reads and changes the conversations of every tenant in the database that `database` returns."""

    async def database(self) -> Database:
        """Return the open database."""
        raise NotImplementedError

    async def cancel(self, run_id: str, *, actor: str = "local") -> Status:
        """Cancel a run."""
        raise NotImplementedError

    async def chat_state(self, session_id: str) -> ChatState:
        """Return the status of a conversation with its newest messages."""
        from runlane.store.chat.turns import find_session, with_newest_messages

        database = await self.database()
        return await with_newest_messages(database, await find_session(database, session_id))

    async def chat_messages(self, session_id: str, *, page: int = 100) -> AsyncGenerator[ChatMessage]:
        """Yield all messages of a conversation. Pages are read as needed."""
        from runlane.store.chat.turns import find_session, read_turns

        database = await self.database()
        await find_session(database, session_id)
        after = 0
        while turns := await read_turns(database, session_id, after, page):
            for turn in turns:
                for message in turn.messages():
                    yield message
            after = turns[-1].turn

    async def chats(
        self, *, agent: str | None = None, tenant: str | None = None, page: int = 100
    ) -> AsyncGenerator[ChatState]:
        """Yield conversations without their messages, newest first. Pages are read as needed."""
        from runlane.store.chat.turns import list_sessions

        database = await self.database()
        before: str | None = None
        while found := await list_sessions(database, tenant=tenant, agent=agent, before=before, limit=page):
            for session in found:
                yield session
            before = found[-1].session_id

    async def cancel_chat(self, session_id: str, *, only_current: bool = False, actor: str = "local") -> list[str]:
        """Cancel the turns that have not ended, or only the running or next turn. Return the ids of their runs."""
        from runlane.store.chat.turns import open_turns

        turns = await open_turns(await self.database(), session_id)
        # The last turn is cancelled first, so that no later turn starts in between.
        chosen = [run_id for _, run_id in (turns[:1] if only_current else reversed(turns))]
        cancelled: list[str] = []
        for run_id in chosen:
            # A turn that has ended meanwhile is left out.
            with contextlib.suppress(WrongState):
                await self.cancel(run_id, actor=actor)
                cancelled.append(run_id)
        return sorted(cancelled)

    async def delete_chat(self, session_id: str) -> None:
        """Delete a conversation with its runs and messages. Raise WrongState while a turn is open."""
        from runlane.store.chat.deletion import delete_session

        await delete_session(await self.database(), session_id)
