"""Agents and conversations, as a part of the client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Unpack

import orjson

from runlane.client import wire
from runlane.client.chat_stream import follow_chat
from runlane.client.http import PREFIX, Http, part
from runlane.domain.events import Event
from runlane.domain.options import AgentOptions, ChatOptions, run_options
from runlane.domain.run import Accepted
from runlane.domain.task import input_json
from runlane.domain.views import ChatMessage, ChatPost, ChatState, LiveEvent


class ChatCalls:
    """Asks agents, and talks with them."""

    _http: Http

    async def ask(
        self,
        agent: str,
        message: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        **options: Unpack[AgentOptions],
    ) -> Accepted:
        """Start a run that asks an agent once; its result is the answer. As enqueue otherwise."""
        given = run_options(AgentOptions, options)
        body = {
            "message": message,
            "input": orjson.Fragment(input_json(input or {}, agent)),
            **given.to_body(),
        }
        path = f"{PREFIX}/agents/{part(agent)}/run"
        return wire.parse(Accepted, await self._http.change("POST", path, body, given.idempotency_key))

    async def chat(
        self,
        agent: str,
        message: str,
        session_id: str | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        **options: Unpack[ChatOptions],
    ) -> ChatPost:
        """Send a message to an agent; without a session a new one starts. Read the answer by chat_stream() or wait().

        Repeated after a lost answer it is still one turn. Pass your own idempotency key to be safe across calls.
        """
        given = run_options(ChatOptions, options)
        body = {
            "agent": agent,
            "message": message,
            "session_id": session_id,
            "input": orjson.Fragment(input_json(input or {}, agent)),
            **given.to_body(),
        }
        posted = await self._http.change("POST", f"{PREFIX}/chat", body, given.idempotency_key)
        return wire.parse(ChatPost, posted)

    def chat_stream(
        self, session_id: str, after: str | None = None, *, follow: bool = False
    ) -> AsyncGenerator[Event | LiveEvent]:
        """Every event of a conversation after a place such as "2.17", live, until no turn is open; with `follow` on.

        Each has `chat_turn` in its data: the turn that it belongs to. As Client.stream() otherwise.
        """
        return follow_chat(self._http, part(session_id), after, stay=follow)

    async def chat_state(self, session_id: str) -> ChatState:
        """Where a conversation stands, with its newest messages."""
        return wire.parse(ChatState, await self._http.read(f"{PREFIX}/chat/{part(session_id)}/status"))

    async def chat_messages(self, session_id: str, *, page: int = 100) -> AsyncGenerator[ChatMessage]:
        """Everything that was said in a conversation, read page by page as it is taken."""
        query: dict[str, Any] = {"after": 0, "limit": page}
        while True:
            told = await self._http.read(f"{PREFIX}/chat/{part(session_id)}/messages", query)
            for message in told["messages"]:
                yield wire.parse(ChatMessage, message)
            query["after"] = told["next_after"]
            if not told["messages"] or told["next_after"] >= told["last_turn"]:
                return

    def chats(self, *, agent: str | None = None, page: int = 100) -> AsyncGenerator[ChatState]:
        """Conversations, newest first and without their messages, read page by page as they are taken."""
        return self._http.pages(ChatState, f"{PREFIX}/chat", "sessions", {"agent": agent, "limit": page})

    async def cancel_chat(self, session_id: str, *, only_current: bool = False) -> list[str]:
        """Cancel the turns that have not ended, or only the one that is at work or next; their runs."""
        path = f"{PREFIX}/chat/{part(session_id)}/cancel{'?only_current=true' if only_current else ''}"
        return list((await self._http.change("POST", path))["run_ids"])

    async def delete_chat(self, session_id: str) -> None:
        """Delete a conversation with its runs and everything that was said. WrongState while a turn is open."""
        await self._http.change("DELETE", f"{PREFIX}/chat/{part(session_id)}")
