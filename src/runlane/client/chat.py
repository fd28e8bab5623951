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
    """Calls for runs of agents and for conversations. A part of Client."""

    _http: Http

    async def ask(
        self,
        agent: str,
        message: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        **options: Unpack[AgentOptions],
    ) -> Accepted:
        """Start a run of an agent with one message. Its result is the answer. See enqueue() for the options."""
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
        """Send a message to an agent. Without a session, a new one starts. Read the answer with chat_stream() or
        wait().

        A call whose response was lost is retried and still makes one turn. To make several calls have one effect, pass
        the same idempotency key to each.
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
        """Yield the events of a conversation after an id such as "2.17", live until no turn is open.

        With `follow`, the stream stays open for later turns. `chat_turn` in the data of each event is its turn. See
        Client.stream() for live events.
        """
        return follow_chat(self._http, part(session_id), after, stay=follow)

    async def chat_events(
        self, session_id: str, after: str | None = None, *, page: int = 500
    ) -> AsyncGenerator[Event | LiveEvent]:
        """Yield the stored events of a conversation after an id such as "2.17". Pages are read as needed."""
        while True:
            answer = await self._http.read(f"{PREFIX}/chat/{part(session_id)}/events", {"after": after, "limit": page})
            for event in answer["events"]:
                yield wire.event_from(event)
            if not answer["events"]:
                return
            after = answer["next_after"]

    async def chat_state(self, session_id: str) -> ChatState:
        """Return the status of a conversation with its newest messages."""
        return wire.parse(ChatState, await self._http.read(f"{PREFIX}/chat/{part(session_id)}/status"))

    async def chat_messages(self, session_id: str, *, page: int = 100) -> AsyncGenerator[ChatMessage]:
        """Yield all messages of a conversation. Pages are read as needed."""
        query: dict[str, Any] = {"after": 0, "limit": page}
        while True:
            answer = await self._http.read(f"{PREFIX}/chat/{part(session_id)}/messages", query)
            for message in answer["messages"]:
                yield wire.parse(ChatMessage, message)
            query["after"] = answer["next_after"]
            if not answer["messages"] or answer["next_after"] >= answer["last_turn"]:
                return

    def chats(self, *, agent: str | None = None, page: int = 100) -> AsyncGenerator[ChatState]:
        """Yield conversations without their messages, newest first. Pages are read as needed."""
        return self._http.pages(ChatState, f"{PREFIX}/chat", "sessions", {"agent": agent, "limit": page})

    async def cancel_chat(self, session_id: str, *, only_current: bool = False) -> list[str]:
        """Cancel the turns that have not ended, or only the running or next turn. Return the ids of their runs."""
        path = f"{PREFIX}/chat/{part(session_id)}/cancel{'?only_current=true' if only_current else ''}"
        return list((await self._http.change("POST", path))["run_ids"])

    async def delete_chat(self, session_id: str) -> None:
        """Delete a conversation with its runs and messages. Raise WrongState while a turn is open."""
        await self._http.change("DELETE", f"{PREFIX}/chat/{part(session_id)}")
