"""Threads and assistants of hosted graphs in the database. `Client` has the same verbs over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from runlane.domain.assistant import Assistant, AssistantVersion
from runlane.domain.graph import ThreadStatus
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.thread import Thread
from runlane.errors import NotFound
from runlane.resources import Resources

# Modules of the store are imported where they are used, because most processes with an App have no threads.


class ThreadOperator:
    """The threads of a tenant."""

    def __init__(self, connect: Callable[[], Awaitable[Resources]]) -> None:
        self._connect = connect

    async def list(
        self,
        *,
        status: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        tenant: str = DEFAULT_TENANT,
    ) -> Sequence[Thread]:
        """Return a page of threads, those that changed last first. The metadata of each contains `metadata`.

        It has fewer than `limit` threads if they are large; continue with `offset`.
        """
        from runlane.store.threads.thread_search import ThreadFilter, search_threads

        wanted = ThreadFilter(status=None if status is None else ThreadStatus(status), metadata=metadata)
        database = (await self._connect()).database
        return (await search_threads(database, tenant, wanted, limit=limit, offset=offset)).threads

    async def get(self, thread_id: str, *, tenant: str = DEFAULT_TENANT) -> Thread:
        """Return a thread with its values and open interrupts."""
        from runlane.store.threads.threads import find_thread

        return await find_thread((await self._connect()).database, tenant, thread_id)

    async def state(
        self, thread_id: str, checkpoint_id: str | None = None, *, tenant: str = DEFAULT_TENANT
    ) -> dict[str, Any]:
        """Return the newest state of a thread, or that at a checkpoint, as `GET /threads/{id}/state` does."""
        from runlane.store.threads.states import EMPTY_STATE, read_state

        thread = await self.get(thread_id, tenant=tenant)
        found = await read_state((await self._connect()).database, thread.key, "", checkpoint_id)
        if found is None and checkpoint_id is not None:
            raise NotFound(f'The thread "{thread_id}" has no checkpoint "{checkpoint_id}".')
        return found or dict(EMPTY_STATE)

    async def history(
        self, thread_id: str, *, limit: int = 10, before: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> Sequence[dict[str, Any]]:
        """Return the states of a thread, newest first; `before` is the id of a checkpoint."""
        from runlane.store.threads.states import read_history

        thread = await self.get(thread_id, tenant=tenant)
        return await read_history((await self._connect()).database, thread.key, "", limit=limit, before=before)

    async def delete(self, thread_id: str, *, tenant: str = DEFAULT_TENANT, actor: str = "local") -> None:
        """Delete a thread with all of its state. Its open runs are cancelled; they store nothing after that."""
        from runlane.store.threads.cancelling import delete_thread

        connection = await self._connect()
        for change in await delete_thread(connection.database, tenant, thread_id, actor=actor):
            connection.bus.signal_cancel(change.run_id)
            connection.publish_change(change)


class AssistantOperator:
    """The assistants of a tenant, including the default one of each hosted graph."""

    def __init__(self, connect: Callable[[], Awaitable[Resources]]) -> None:
        self._connect = connect

    async def list(
        self,
        *,
        graph_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        tenant: str = DEFAULT_TENANT,
    ) -> Sequence[Assistant]:
        """Return a page of assistants, newest first."""
        from runlane.store.threads.assistant_search import AssistantFilter, search_assistants

        wanted = AssistantFilter(graph_id=graph_id, metadata=metadata)
        database = (await self._connect()).database
        return (await search_assistants(database, tenant, wanted, limit=limit, offset=offset))[0]

    async def get(self, assistant_id: str, *, tenant: str = DEFAULT_TENANT) -> Assistant:
        """Return an assistant by its id, or the default one of a graph by the graph's id."""
        from runlane.store.threads.assistants import find_assistant

        return await find_assistant((await self._connect()).database, tenant, assistant_id)

    async def versions(
        self, assistant_id: str, *, limit: int = 10, offset: int = 0, tenant: str = DEFAULT_TENANT
    ) -> Sequence[AssistantVersion]:
        """Return the stored versions of an assistant, newest first."""
        from runlane.store.threads.assistants import list_versions

        database = (await self._connect()).database
        found, _ = await list_versions(database, tenant, assistant_id, metadata=None, limit=limit, offset=offset)
        return found

    async def delete(self, assistant_id: str, *, tenant: str = DEFAULT_TENANT) -> None:
        """Delete an assistant with its versions; its threads stay. Conflict for the default one of a graph."""
        from runlane.store.threads.assistants import delete_assistant_in

        database = (await self._connect()).database
        await database.transact(lambda session: delete_assistant_in(session, tenant, assistant_id))


class GraphOperator:
    """The threads and assistants of hosted graphs; a part of App."""

    async def connect(self) -> Resources:
        """Return what this process has open."""
        raise NotImplementedError

    @property
    def threads(self) -> ThreadOperator:
        """The threads of hosted graphs."""
        return ThreadOperator(self.connect)

    @property
    def assistants(self) -> AssistantOperator:
        """The assistants of hosted graphs."""
        return AssistantOperator(self.connect)
