"""Threads and assistants of hosted graphs over HTTP, at the paths of the agent server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runlane.client.http import Http, part
from runlane.client.wire import parse
from runlane.domain.assistant import Assistant, AssistantVersion
from runlane.domain.thread import Thread


class ThreadCalls:
    """The threads of the key's tenant."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def list(
        self,
        *,
        status: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
    ) -> Sequence[Thread]:
        """Return a page of threads, last changed first. `metadata` must be contained in the metadata of a thread."""
        body = _given({"status": status, "metadata": metadata, "limit": limit, "offset": offset})
        return [parse(Thread, item) for item in await self._http.change("POST", "/threads/search", body)]

    async def get(self, thread_id: str) -> Thread:
        """Return a thread with its values and open interrupts."""
        return parse(Thread, await self._http.read(_thread(thread_id), {"include": "ttl"}))

    async def state(self, thread_id: str, checkpoint_id: str | None = None) -> dict[str, Any]:
        """Return the newest state of a thread, or its state at a checkpoint."""
        place = "" if checkpoint_id is None else f"/{part(checkpoint_id)}"
        return await self._http.read(f"{_thread(thread_id)}/state{place}")

    async def history(self, thread_id: str, *, limit: int = 10, before: str | None = None) -> Sequence[dict[str, Any]]:
        """Return the states of a thread, newest first. `before` is the id of a checkpoint."""
        return await self._http.read(f"{_thread(thread_id)}/history", _given({"limit": limit, "before": before}))

    async def delete(self, thread_id: str) -> None:
        """Delete a thread with all of its state. Its open runs are cancelled and store nothing afterwards."""
        await self._http.change("DELETE", _thread(thread_id))


class AssistantCalls:
    """The assistants of the key's tenant, including the default assistant of each hosted graph."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def list(
        self,
        *,
        graph_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
    ) -> Sequence[Assistant]:
        """Return a page of assistants, newest first."""
        body = _given({"graph_id": graph_id, "metadata": metadata, "limit": limit, "offset": offset})
        return [parse(Assistant, item) for item in await self._http.change("POST", "/assistants/search", body)]

    async def get(self, assistant_id: str) -> Assistant:
        """Return an assistant by its id, or the default assistant of a graph by the graph's id."""
        return parse(Assistant, await self._http.read(_assistant(assistant_id)))

    async def versions(self, assistant_id: str, *, limit: int = 10, offset: int = 0) -> Sequence[AssistantVersion]:
        """Return the stored versions of an assistant, newest first."""
        body = {"limit": limit, "offset": offset}
        found = await self._http.change("POST", f"{_assistant(assistant_id)}/versions", body)
        return [parse(AssistantVersion, item) for item in found]

    async def delete(self, assistant_id: str) -> None:
        """Delete an assistant with its versions.

        Its threads are kept. Raise Conflict for the default assistant of a graph.
        """
        await self._http.change("DELETE", _assistant(assistant_id))


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _thread(thread_id: str) -> str:
    return f"/threads/{part(thread_id)}"


def _assistant(assistant_id: str) -> str:
    return f"/assistants/{part(assistant_id)}"
