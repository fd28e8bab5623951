"""The rest of `runlane memory`: search, corrections, waiting for commits, and the operation of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.memory import (
    Committed,
    EntryId,
    FromFile,
    Key,
    MemoryId,
    Tags,
    app,
    call,
    tags_of,
    text_of,
)
from runlane.cli.options import ApiKey, Json, Tenant, Url
from runlane.cli.output import format_time, print_json, print_result, print_rows, shorten
from runlane.cli.terminal import write_cells, write_line
from runlane.domain.memory import MAX_COMMIT_WAIT_SECONDS, MAX_ENTRY_CHARACTERS, CommitState, NewEntry
from runlane.domain.memory_prompts import default_prompts
from runlane.domain.wire import to_dict

if TYPE_CHECKING:
    from runlane.cli.memory import MemoryVerbs

_NOT_COMMITTED = 4


@app.command(name="search")
def search(
    memory_id: MemoryId,
    query: Annotated[str, typer.Argument(help="Words to find.")],
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of entries.")] = 10,
    committed: Committed = False,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Find entries by words, and with an embedding model by meaning, best first."""
    consistency = "committed" if committed else "local"
    hits = call(
        url, api_key, tenant, lambda memory: memory.search(memory_id, query, limit=limit, consistency=consistency)
    )
    if json:
        print_json([to_dict(hit) for hit in hits])
        return
    for hit in hits:
        write_cells([f"{hit.score:.3g}", hit.entry.id, ",".join(hit.found_by), shorten(hit.entry.text, 100)])
    write_line(f"Total: {len(hits)}")


@app.command(name="get-entry")
def get_entry(
    memory_id: MemoryId,
    entry: EntryId,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Show an entry."""
    found = call(url, api_key, tenant, lambda memory: memory.get_entry(memory_id, entry))
    print_result(to_dict(found), found.text, json=json)


@app.command(name="correct-entry")
def correct_entry(
    memory_id: MemoryId,
    entry: EntryId,
    text: Annotated[str | None, typer.Argument(help="The correct text.")] = None,
    reason: Annotated[str, typer.Option(help="The reason for the correction.")] = "corrected",
    file: FromFile = None,
    key: Key = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Add an entry that corrects another one."""
    new = NewEntry(text_of(text, file, "the text", MAX_ENTRY_CHARACTERS))
    added = call(
        url,
        api_key,
        tenant,
        lambda memory: memory.correct_entry(memory_id, entry, new, reason, idempotency_key=key),
    )
    print_result(to_dict(added), f"Entry stored: {added.id}, corrects {entry}", json=json)


@app.command(name="tag-entry")
def tag_entry(
    memory_id: MemoryId,
    entry: EntryId,
    tag: Tags = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Replace the tags of an entry; without --tag, remove all."""
    tagged = call(url, api_key, tenant, lambda memory: memory.set_tags(memory_id, entry, tags_of(tag)))
    print_result(to_dict(tagged), f"{tagged.id}: {dict(tagged.tags)}", json=json)


@app.command(name="delete-entry")
def delete_entry(
    memory_id: MemoryId,
    entry: EntryId,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Delete the content of an entry."""
    call(url, api_key, tenant, lambda memory: memory.delete_entry(memory_id, entry))
    print_result({"deleted": entry}, f"Entry deleted: {entry}", json=json)


@app.command(name="manifest")
def manifest(
    memory_id: MemoryId, tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """List the fragments of a memory."""
    print_rows(
        call(url, api_key, tenant, lambda memory: memory.manifest(memory_id)),
        ["fragment", "bytes", "sha256", "updated"],
        lambda info: [info.name, info.size, info.sha256, format_time(info.updated_at_us)],
        empty="No fragments.",
        json=json,
        to_dict=to_dict,
    )


@app.command(name="delete-fragment")
def delete_fragment(
    memory_id: MemoryId,
    name: Annotated[str, typer.Argument(help="The fragment, other than `context`.", metavar="NAME")],
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Delete a fragment of a memory."""
    call(url, api_key, tenant, lambda memory: memory.delete_fragment(memory_id, name))
    print_result({"deleted": name}, f"Fragment deleted: {name}", json=json)


@app.command(name="await-consistency", hidden=True)
@app.command(name="await-commit")
def await_commit(
    memory_id: MemoryId,
    timeout: Annotated[float, typer.Option(min=0, max=MAX_COMMIT_WAIT_SECONDS, help="Seconds to wait at most.")] = 10.0,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Wait until all earlier changes are in the database; exit code 4 if the wait times out."""
    result = call(url, api_key, tenant, lambda memory: memory.await_commit(memory_id, timeout))
    line = f"{result.state.value}: {result.committed_seq} of {result.seq} operations are in the database."
    if result.rejected is not None:
        line += f" Operation {result.rejected.seq} was rejected: {result.rejected.error}"
    print_result(to_dict(result), line, json=json)
    if result.state is not CommitState.COMMITTED:
        raise typer.Exit(_NOT_COMMITTED)


@app.command(name="get-prompts")
def get_prompts(
    memory_type: Annotated[str, typer.Argument(help="The type of memory.", metavar="TYPE")] = "notes",
) -> None:
    """Show the prompts that an agent uses to maintain a memory, as JSON."""
    print_json(default_prompts(memory_type))


@app.command(name="get-tools-schema")
def get_tools_schema() -> None:
    """Show the memory tools of the MCP server with their input schemas, as JSON."""
    from runlane.api.mcp.memory_tools import MEMORY_TOOLS

    print_json(
        [
            {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
            for tool in MEMORY_TOOLS
        ]
    )


@app.command(name="status")
def status(url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Show the storage mode of the process, its replication backlog and its parked memories."""
    found = call(url, api_key, None, lambda memory: memory.status())
    if json:
        print_json(to_dict(found))
        return
    write_line(f"Mode: {found.mode}. File: {found.path or '-'}. Operations that wait: {found.pending}.")
    for parked in found.parked:
        op = parked.op
        write_line(f"Parked: {parked.memory_id}, {parked.waiting} wait, {op.kind.value} {op.seq}: {op.error}")
    for report in found.set_aside:
        write_line(f"Damaged file set aside: {report}")


@app.command(name="retry")
def retry(
    memory_id: MemoryId, tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Retry the operations of a parked memory; superseded operations are appended with new numbers."""
    call(url, api_key, tenant, lambda memory: memory.retry_parked(memory_id))
    print_result({"retried": memory_id}, f"{memory_id}: its operations are replicated again.", json=json)


@app.command(name="discard")
def discard(
    memory_id: MemoryId, tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Discard the rejected operation of a parked memory, or all pending ones if the memory was superseded."""
    dropped = call(url, api_key, tenant, lambda memory: memory.discard_parked(memory_id))
    print_result(to_dict(dropped), f"{memory_id}: dropped operation {dropped.seq} ({dropped.kind.value}).", json=json)


@app.command(name="export")
def export(
    memory_id: Annotated[str | None, typer.Argument(help="Id of the memory. Default: all of the tenant.")] = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Print a memory, or all memories of a tenant, as JSON."""

    async def work(memory: MemoryVerbs) -> Any:
        if memory_id is not None:
            return to_dict(await memory.export_memory(memory_id))
        return [to_dict(page) async for page in memory.export_tenant()]

    print_json(call(url, api_key, tenant, work))


@app.command(name="delete-all")
def delete_all(
    confirm: Annotated[str, typer.Option(help="The tenant whose vaults, memories and users are all deleted.")],
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Delete every vault, memory and user of a tenant."""
    call(url, api_key, tenant or confirm, lambda memory: memory.delete_tenant(confirm))
    print_result({"deleted": confirm}, f"{confirm}: all memory deleted.", json=json)
