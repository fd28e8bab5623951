"""`runlane memory`: vaults, memories, their entries and fragments, and the operation of memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from runlane.cli.backend import audit_actor, on_server_or_app
from runlane.cli.json_input import read_bytes, read_object
from runlane.cli.options import ApiKey, Json, Tenant, Url, moment_of
from runlane.cli.output import format_count, format_time, print_json, print_result, print_rows, shorten
from runlane.cli.terminal import write_block, write_cells, write_line
from runlane.domain.memory import (
    CONTEXT_FRAGMENT,
    DEFAULT_MEMORY_TYPE,
    MAX_ENTRY_CHARACTERS,
    MAX_FRAGMENT_CHARACTERS,
    NewEntry,
)
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.time_zones import DEFAULT_ZONE
from runlane.domain.wire import to_dict
from runlane.errors import InvalidRequest

if TYPE_CHECKING:
    from runlane.app import App
    from runlane.client import Client
    from runlane.client.memory import MemoryCalls
    from runlane.memory.tenant_memory import TenantMemory

    MemoryVerbs = MemoryCalls | TenantMemory

T = TypeVar("T")

app = typer.Typer()

MemoryId = Annotated[str, typer.Argument(help="Id of the memory.", metavar="MEMORY")]
VaultId = Annotated[str, typer.Argument(help="Id of the vault.", metavar="VAULT")]
EntryId = Annotated[str, typer.Argument(help="Id of the entry.", metavar="ENTRY")]
Title = Annotated[str, typer.Argument(help="1 to 50 letters, digits and hyphens.", metavar="TITLE")]
Description = Annotated[str, typer.Option(help="The purpose of the memory.")]
Key = Annotated[str | None, typer.Option("--idempotency-key", help="A repeated call with the same key has no effect.")]
FromFile = Annotated[Path | None, typer.Option("--file", help="Read the text from this file; - reads stdin.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="NAME=VALUE; may be given several times.")]
Committed = Annotated[bool, typer.Option("--committed", help="Read from the database instead of the node's file.")]


def call(
    url: str | None,
    api_key: str | None,
    tenant: str | None,
    work: Callable[[MemoryVerbs], Awaitable[T]],
    *,
    creates: bool = False,
) -> T:
    """Call one function with the memory of a server, or of the database or file of the settings.

    With `creates`, a database that does not exist is created.
    """

    async def on_server(client: Client) -> T:
        return await work(client.memory_of(tenant))

    async def on_app(own: App) -> T:
        from runlane.memory.tenant_memory import TenantMemory
        from runlane.store.memory.auditing import audit_memory

        database, owner = await own.database(), tenant or DEFAULT_TENANT
        audit = partial(audit_memory, database, audit_actor(), owner)
        return await work(TenantMemory(await own.memory(), owner, audit))

    return on_server_or_app(url, api_key, on_server, on_app, creates=creates)


@app.command(name="create-user")
def create_user(
    user: Annotated[str, typer.Argument(help="1 to 20 of a-z, 0-9 and '_'.", metavar="USER")],
    email: Annotated[str, typer.Option(help="The email address.")],
    display_name: Annotated[str, typer.Option(help="The display name.")] = "",
    time_zone: Annotated[str, typer.Option(help="A zone such as Europe/Paris.")] = DEFAULT_ZONE,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Create a user who can own vaults."""
    made = call(
        url,
        api_key,
        tenant,
        lambda memory: memory.create_user(user, email, display_name=display_name, time_zone=time_zone),
        creates=True,
    )
    print_result(to_dict(made), f"User created: {made.id} ({made.email})", json=json)


@app.command(name="get-user")
def get_user(
    user: Annotated[str, typer.Argument(help="Id of the user.", metavar="USER")],
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Show a user."""
    found = call(url, api_key, tenant, lambda memory: memory.get_user(user))
    print_result(to_dict(found), f"{found.id} ({found.email}) {found.display_name}, {found.status}", json=json)


@app.command(name="create-vault")
def create_vault(
    title: Title,
    description: Description = "",
    user: Annotated[str, typer.Option(help="The user that the vault belongs to.")] = "",
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Create a vault, which groups memories."""
    made = call(
        url,
        api_key,
        tenant,
        lambda memory: memory.create_vault(title, description=description, user_id=user),
        creates=True,
    )
    print_result(to_dict(made), f"Vault created: {made.id} - {made.title}", json=json)


@app.command(name="list-vaults")
def list_vaults(tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the vaults."""

    async def work(memory: MemoryVerbs) -> list[Any]:
        return [vault async for vault in memory.list_vaults()]

    print_rows(
        call(url, api_key, tenant, work),
        ["vault", "title", "user", "created", "description"],
        lambda vault: [
            vault.id,
            vault.title,
            vault.user_id or None,
            format_time(vault.created_at_us),
            vault.description,
        ],
        empty="No vaults.",
        json=json,
        to_dict=to_dict,
    )


@app.command(name="get-vault")
def get_vault(
    vault: VaultId, tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Show a vault."""
    found = call(url, api_key, tenant, lambda memory: memory.get_vault(vault))
    print_result(to_dict(found), f"{found.id} - {found.title}: {found.description or '-'}", json=json)


@app.command(name="delete-vault")
def delete_vault(
    vault: VaultId, tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Delete a vault that has no memories."""
    call(url, api_key, tenant, lambda memory: memory.delete_vault(vault))
    print_result({"deleted": vault}, f"Vault deleted: {vault}", json=json)


@app.command(name="create-memory")
def create_memory(
    title: Title,
    vault: Annotated[str | None, typer.Option(help="Id of the vault. Default: the vault `default`.")] = None,
    memory_type: Annotated[str, typer.Option("--type", help="The type of the memory.")] = DEFAULT_MEMORY_TYPE,
    description: Description = "",
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Create a memory with a context document."""
    made = call(
        url,
        api_key,
        tenant,
        lambda memory: memory.create_memory(title, vault_id=vault, memory_type=memory_type, description=description),
        creates=True,
    )
    print_result(to_dict(made), f"Memory created: {made.id} - {made.title}", json=json)


@app.command(name="list-memories")
def list_memories(
    vault: Annotated[str | None, typer.Option(help="Only memories of this vault.")] = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List the memories."""

    async def work(memory: MemoryVerbs) -> list[Any]:
        return [item async for item in memory.list_memories(vault_id=vault)]

    print_rows(
        call(url, api_key, tenant, work),
        ["memory", "title", "type", "vault", "operations", "created"],
        lambda item: [
            item.id,
            item.title,
            item.memory_type,
            item.vault_id,
            item.last_seq,
            format_time(item.created_at_us),
        ],
        empty="No memories.",
        json=json,
        to_dict=to_dict,
    )


@app.command(name="get-memory")
def get_memory(
    memory_id: MemoryId, tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Show a memory."""
    found = call(url, api_key, tenant, lambda memory: memory.get_memory(memory_id))
    print_result(to_dict(found), f"{found.id} - {found.title}: {found.description or '-'}", json=json)


@app.command(name="move-memory")
def move_memory(
    memory_id: MemoryId,
    vault: VaultId,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Move a memory to another vault."""
    moved = call(url, api_key, tenant, lambda memory: memory.move_memory(memory_id, vault))
    print_result(to_dict(moved), f"Memory moved: {moved.id} to {moved.vault_id}", json=json)


@app.command(name="delete-memory")
def delete_memory(
    memory_id: MemoryId, tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Delete a memory with everything in it."""
    call(url, api_key, tenant, lambda memory: memory.delete_memory(memory_id))
    print_result({"deleted": memory_id}, f"Memory deleted: {memory_id}", json=json)


def text_of(text: str | None, file: Path | None, what: str, limit: int) -> str:
    """Return the text of an argument or a file."""
    if (text is None) == (file is None):
        raise InvalidRequest(f"Give {what} as an argument, or with --file.")
    if text is not None:
        return text
    content = read_bytes(None if str(file) == "-" else file, limit * 4)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{file} is not text in UTF-8.") from None


def tags_of(pairs: list[str] | None) -> dict[str, str]:
    """Return the tags of NAME=VALUE options."""
    tags: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InvalidRequest(f"--tag={pair} must have the form NAME=VALUE.")
        tags[name] = value
    return tags


@app.command(name="create-entry")
def create_entry(
    memory_id: MemoryId,
    text: Annotated[str | None, typer.Argument(help="The text of the entry.")] = None,
    file: FromFile = None,
    summary: Annotated[str, typer.Option(help="A short summary of the entry.")] = "",
    tag: Tags = None,
    metadata: Annotated[str | None, typer.Option(help="Data of the entry: a JSON object, @FILE or - (stdin).")] = None,
    expires: Annotated[str | None, typer.Option(help="When the entry is deleted, as 2026-01-31T12:00:00Z.")] = None,
    key: Key = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Add an entry. It is stored when the command prints its id."""
    entry = NewEntry(
        text_of(text, file, "the text", MAX_ENTRY_CHARACTERS),
        summary,
        read_object(metadata, "--metadata", "the data of the entry"),
        tags_of(tag),
        None if expires is None else moment_of(expires, "--expires"),
    )
    added = call(url, api_key, tenant, lambda memory: memory.add_entry(memory_id, entry, idempotency_key=key))
    print_result(to_dict(added), f"Entry stored: {added.id}", json=json)


@app.command(name="list-entries")
def list_entries(
    memory_id: MemoryId,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Maximum number of entries.")] = 25,
    before: Annotated[int | None, typer.Option(help="Only entries before this number.")] = None,
    after: Annotated[int | None, typer.Option(help="Entries after this number, oldest first.")] = None,
    committed: Committed = False,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List entries, newest first."""
    page = call(
        url,
        api_key,
        tenant,
        lambda memory: memory.list_entries(
            memory_id, limit=limit, before=before, after=after, consistency="committed" if committed else "local"
        ),
    )
    if json:
        print_json(to_dict(page))
        return
    for entry in page.entries:
        write_cells([str(entry.seq), entry.id, format_time(entry.created_at_us), shorten(entry.text, 100)])
    write_line(f"Total: {format_count(len(page.entries), 'entry').replace('entrys', 'entries')}")


@app.command(name="put-context")
def put_context(
    memory_id: MemoryId,
    text: Annotated[str | None, typer.Argument(help="The whole document.")] = None,
    file: FromFile = None,
    name: Annotated[str, typer.Option(help="The fragment to write.")] = CONTEXT_FRAGMENT,
    key: Key = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Write the context document, or another fragment."""
    content = text_of(text, file, "the document", MAX_FRAGMENT_CHARACTERS)
    written = call(
        url, api_key, tenant, lambda memory: memory.put_fragment(memory_id, name, content, idempotency_key=key)
    )
    print_result(to_dict(written.info), "OK", json=json)


@app.command(name="get-context")
def get_context(
    memory_id: MemoryId,
    name: Annotated[str, typer.Option(help="The fragment to show.")] = CONTEXT_FRAGMENT,
    committed: Committed = False,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Print the context document, or another fragment."""
    consistency = "committed" if committed else "local"
    found = call(url, api_key, tenant, lambda memory: memory.get_fragment(memory_id, name, consistency=consistency))
    if json:
        print_json(to_dict(found))
    else:
        write_block(found.content)
