"""Memory over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from runlane.client.http import PREFIX, Http, part
from runlane.client.memory_archive import read_export
from runlane.client.wire import parse
from runlane.domain.memory import (
    DEFAULT_MEMORY_TYPE,
    Consistency,
    EntryPage,
    FragmentInfo,
    Memory,
    MemoryCommit,
    MemoryEntry,
    MemoryExport,
    MemoryFragment,
    MemoryHit,
    MemoryNodeStatus,
    MemoryOp,
    MemoryTenantExport,
    MemoryUser,
    NewEntry,
    Vault,
)
from runlane.domain.memory_archive import MemoryImport, entry_json, import_json
from runlane.domain.time_zones import DEFAULT_ZONE
from runlane.domain.timestamps import format_timestamp

_ROOT = f"{PREFIX}/memory"
_PAGE = 1000


class MemoryCalls:
    """The memory of the key's tenant. Platform admins may name another tenant: `client.memory_of(tenant)`."""

    def __init__(self, http: Http, tenant: str | None = None) -> None:
        self._http = http
        self._tenant = tenant

    async def create_user(
        self, user_id: str, email: str, *, display_name: str = "", time_zone: str = DEFAULT_ZONE
    ) -> MemoryUser:
        """Create a user. Vaults of different users are separate."""
        body = {"id": user_id, "email": email, "display_name": display_name, "time_zone": time_zone}
        return parse(MemoryUser, await self._change("POST", "/users", body))

    async def get_user(self, user_id: str) -> MemoryUser:
        """Return a user."""
        return parse(MemoryUser, await self._read(f"/users/{part(user_id)}"))

    async def create_vault(self, title: str, *, description: str = "", user_id: str = "") -> Vault:
        """Create a vault."""
        body = {"title": title, "description": description, "user_id": user_id or None}
        return parse(Vault, await self._change("POST", "/vaults", body))

    def list_vaults(self) -> AsyncGenerator[Vault]:
        """Yield the vaults by id."""
        return self._http.pages(Vault, f"{_ROOT}/vaults", "vaults", {"tenant": self._tenant, "limit": _PAGE})

    async def get_vault(self, vault_id: str) -> Vault:
        """Return a vault."""
        return parse(Vault, await self._read(f"/vaults/{part(vault_id)}"))

    async def delete_vault(self, vault_id: str) -> None:
        """Delete a vault that has no memories."""
        await self._change("DELETE", f"/vaults/{part(vault_id)}")

    async def create_memory(
        self,
        title: str,
        *,
        vault_id: str | None = None,
        memory_type: str = DEFAULT_MEMORY_TYPE,
        description: str = "",
    ) -> Memory:
        """Create a memory with its context. The default vault is `default`."""
        body = {"title": title, "vault_id": vault_id, "memory_type": memory_type, "description": description}
        return parse(Memory, await self._change("POST", "/memories", body))

    def list_memories(self, *, vault_id: str | None = None) -> AsyncGenerator[Memory]:
        """Yield the memories by id."""
        query = {"tenant": self._tenant, "vault_id": vault_id, "limit": _PAGE}
        return self._http.pages(Memory, f"{_ROOT}/memories", "memories", query)

    async def get_memory(self, memory_id: str) -> Memory:
        """Return a memory."""
        return parse(Memory, await self._read(_memory(memory_id)))

    async def move_memory(self, memory_id: str, vault_id: str) -> Memory:
        """Move a memory to another vault."""
        return parse(Memory, await self._change("POST", _memory(memory_id, "move"), {"vault_id": vault_id}))

    async def delete_memory(self, memory_id: str) -> None:
        """Delete a memory with all its entries and fragments."""
        await self._change("DELETE", _memory(memory_id))

    async def add_entry(self, memory_id: str, entry: NewEntry, *, idempotency_key: str | None = None) -> MemoryEntry:
        """Add an entry. It is stored when this returns, and only once even if the request was sent several times."""
        path = _memory(memory_id, "entries")
        return parse(MemoryEntry, await self._change("POST", path, entry_json(entry), idempotency_key))

    async def add_entries(
        self, memory_id: str, entries: Sequence[NewEntry], *, idempotency_key: str | None = None
    ) -> Sequence[MemoryEntry]:
        """Add at most 100 entries, all or none."""
        body = {"entries": [entry_json(entry) for entry in entries]}
        answer = await self._change("POST", _memory(memory_id, "entries/batch"), body, idempotency_key)
        return parse(EntryPage, answer).entries

    async def correct_entry(
        self, memory_id: str, entry_id: str, entry: NewEntry, reason: str, *, idempotency_key: str | None = None
    ) -> MemoryEntry:
        """Add an entry that corrects another entry."""
        path = _memory(memory_id, f"entries/{part(entry_id)}/correct")
        body = {**entry_json(entry), "reason": reason}
        return parse(MemoryEntry, await self._change("POST", path, body, idempotency_key))

    async def delete_entry(self, memory_id: str, entry_id: str, *, idempotency_key: str | None = None) -> None:
        """Delete the content of an entry. The call can be repeated."""
        await self._change("DELETE", _memory(memory_id, f"entries/{part(entry_id)}"), None, idempotency_key)

    async def set_tags(
        self, memory_id: str, entry_id: str, tags: Mapping[str, str], *, idempotency_key: str | None = None
    ) -> MemoryEntry:
        """Replace the tags of an entry."""
        path = _memory(memory_id, f"entries/{part(entry_id)}/tags")
        return parse(MemoryEntry, await self._change("PUT", path, {"tags": dict(tags)}, idempotency_key))

    async def list_entries(
        self,
        memory_id: str,
        *,
        limit: int = 25,
        before: int | None = None,
        after: int | None = None,
        consistency: Consistency = "local",
    ) -> EntryPage:
        """Return entries, newest first. With `after`, the number of an entry, return later entries, oldest first."""
        query = {"limit": limit, "before": before, "after": after, "consistency": consistency}
        return parse(EntryPage, await self._read(_memory(memory_id, "entries"), query))

    async def get_entry(self, memory_id: str, entry_id: str, *, consistency: Consistency = "local") -> MemoryEntry:
        """Return an entry."""
        path = _memory(memory_id, f"entries/{part(entry_id)}")
        return parse(MemoryEntry, await self._read(path, {"consistency": consistency}))

    async def put_fragment(
        self, memory_id: str, name: str, content: str, *, idempotency_key: str | None = None
    ) -> MemoryFragment:
        """Write a fragment, such as `context`. The last write wins."""
        path = _memory(memory_id, f"fragments/{part(name)}")
        return parse(MemoryFragment, await self._change("PUT", path, {"content": content}, idempotency_key))

    async def get_fragment(self, memory_id: str, name: str, *, consistency: Consistency = "local") -> MemoryFragment:
        """Return a fragment."""
        path = _memory(memory_id, f"fragments/{part(name)}")
        return parse(MemoryFragment, await self._read(path, {"consistency": consistency}))

    async def delete_fragment(self, memory_id: str, name: str, *, idempotency_key: str | None = None) -> None:
        """Delete a fragment other than `context`."""
        await self._change("DELETE", _memory(memory_id, f"fragments/{part(name)}"), None, idempotency_key)

    async def manifest(self, memory_id: str, *, consistency: Consistency = "local") -> Sequence[FragmentInfo]:
        """Return the fragments of a memory without their content."""
        answer = await self._read(_memory(memory_id, "fragments"), {"consistency": consistency})
        return [parse(FragmentInfo, item) for item in answer["fragments"]]

    async def search(
        self, memory_id: str, query: str, *, limit: int = 10, consistency: Consistency = "local"
    ) -> Sequence[MemoryHit]:
        """Return the entries that match a query, best first: by words and, with an embedding model, by meaning."""
        body = {"query": query, "limit": limit}
        answer = await self._change("POST", _memory(memory_id, "search"), body, consistency=consistency)
        return [parse(MemoryHit, item) for item in answer["hits"]]

    async def await_commit(self, memory_id: str, timeout: float = 10.0) -> MemoryCommit:
        """Wait until changes before this call are in the database. The result is committed, timeout or rejected."""
        path = _memory(memory_id, "await-commit")
        return parse(MemoryCommit, await self._change("POST", path, {"timeout_seconds": timeout}))

    async def status(self) -> MemoryNodeStatus:
        """Return how the server stores memory, and the operations that it has not replicated."""
        return parse(MemoryNodeStatus, await self._http.read(f"{_ROOT}/status"))

    async def retry_parked(self, memory_id: str) -> None:
        """Replicate the operations of a parked memory again."""
        await self._change("POST", _memory(memory_id, "retry"))

    async def discard_parked(self, memory_id: str) -> MemoryOp:
        """Drop the rejected operation of a parked memory, or all pending ones if it was superseded.

        Return the first of them.
        """
        return parse(MemoryOp, await self._change("POST", _memory(memory_id, "discard")))

    async def reindex(self, memory_id: str) -> str:
        """Start a run that computes all embeddings of a memory again. Return the id of the run."""
        return str((await self._change("POST", _memory(memory_id, "reindex")))["run_id"])

    async def start_export(self, memory_id: str) -> str:
        """Start a run that writes a memory of any size to its log. Return the id of the run."""
        return str((await self._change("POST", _memory(memory_id, "export")))["run_id"])

    async def read_export(self, run_id: str) -> MemoryExport:
        """Return the memory that the completed run of an export has written."""
        return await read_export(self._http, run_id)

    async def start_import(
        self, memory_id: str, given: MemoryImport, *, idempotency_key: str | None = None
    ) -> Sequence[str]:
        """Start the runs that add entries and write fragments. Return their ids. The runs execute in this order.

        With a key, a repeated call starts no run twice.
        """
        started: list[str] = []
        for number, piece in enumerate(given.parts()):
            key = None if idempotency_key is None else f"{idempotency_key}.{number}"
            answer = await self._change("POST", _memory(memory_id, "import"), import_json(piece), key)
            started.append(str(answer["run_id"]))
        return started

    async def start_purge(self, memory_id: str, *, before_us: int | None = None) -> str:
        """Start a run that deletes the content of all entries, or of entries before a time.

        Return the id of the run.
        """
        body = {"before": None if before_us is None else format_timestamp(before_us)}
        return str((await self._change("POST", _memory(memory_id, "purge"), body))["run_id"])

    async def export_memory(self, memory_id: str) -> MemoryExport:
        """Return the complete memory: its fields, entries and fragments."""
        return parse(MemoryExport, await self._read(_memory(memory_id, "export")))

    async def export_tenant(self) -> AsyncGenerator[MemoryTenantExport]:
        """Yield all memories of the tenant, one at a time. The first value contains the users and vaults."""
        cursor = None
        while True:
            page = parse(MemoryTenantExport, await self._read("/export", {"cursor": cursor}))
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return

    async def delete_tenant(self, confirm: str) -> None:
        """Delete every vault, memory and user of the tenant. `confirm` must be the id of the tenant."""
        await self._http.change("DELETE", f"{_ROOT}?{urlencode({'confirm': confirm})}")

    async def _read(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        return await self._http.read(f"{_ROOT}{path}", {**(params or {}), "tenant": self._tenant})

    async def _change(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, key: str | None = None, **query: str
    ) -> Any:
        params = query | ({} if self._tenant is None else {"tenant": self._tenant})
        suffix = f"?{urlencode(params)}" if params else ""
        return await self._http.change(method, f"{_ROOT}{path}{suffix}", body, key)


def _memory(memory_id: str, rest: str = "") -> str:
    return f"/memories/{part(memory_id)}{f'/{rest}' if rest else ''}"
