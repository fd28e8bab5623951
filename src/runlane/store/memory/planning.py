"""Decide what requests do to memories, without a database: numbers, ids, conflicts.

The facts are read once for a whole batch. A request sees the effect of those before it in the batch. A request that
cannot be accepted raises and leaves no trace, so the others of its batch are not affected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from runlane.domain.memory import (
    CONTEXT_FRAGMENT,
    MAX_FRAGMENTS,
    MemoryEntry,
    MemoryFragment,
    MemoryOpKind,
    NewEntry,
)
from runlane.domain.text import dump_json
from runlane.errors import Conflict, InvalidRequest, NotFound
from runlane.store.memory.operations import EntryRow, PlannedOp, entry_row
from runlane.store.memory.requests import (
    AddEntries,
    CorrectEntry,
    DeleteEntry,
    DeleteFragment,
    MemoryAnswer,
    MemoryRequest,
    PutFragment,
    SetEntryTags,
)


@dataclass(slots=True)
class MemoryHead:
    """A memory as a batch finds it. `last_seq` grows while requests are planned."""

    id: str
    tenant: str
    last_seq: int
    applied_seq: int
    parked: bool


@dataclass(slots=True)
class PlanFacts:
    """The facts that a batch of requests depends on. An entry that is deleted is None.

    Entries that requests without an idempotency key add are in `rows`; every other change is in `ops`. `touched` has
    the memories that change. `kept` has entries that the batch may change and that are not replicated; `kept_rows` has
    those of `rows` that it changes.
    """

    heads: dict[str, MemoryHead]
    entries: dict[str, MemoryEntry | None]
    fragments: dict[str, set[str]]
    applied_at_once: bool
    kept: Sequence[EntryRow] = ()
    targets: AbstractSet[str] = frozenset()
    now_us: int = 0
    touched: set[str] = field(default_factory=set[str])
    rows: list[EntryRow] = field(default_factory=list[EntryRow])
    rows_by_id: dict[str, EntryRow] = field(default_factory=dict[str, EntryRow])
    kept_rows: list[EntryRow] = field(default_factory=list[EntryRow])
    ops: list[PlannedOp] = field(default_factory=list[PlannedOp])
    keyed_ops: list[PlannedOp] = field(default_factory=list[PlannedOp])


def missing_memory(memory_id: str) -> NotFound:
    """Return the error for a memory that does not exist, or belongs to another tenant."""
    return NotFound(f'The memory "{memory_id}" does not exist. List them: runlane memory list-memories')


def missing_entry(entry_id: str, memory_id: str) -> NotFound:
    """Return the error for an entry that does not exist."""
    return NotFound(f'The entry "{entry_id}" does not exist in the memory "{memory_id}".')


def missing_fragment(name: str, memory_id: str) -> NotFound:
    """Return the error for a fragment that does not exist."""
    return NotFound(f'The fragment "{name}" does not exist in the memory "{memory_id}". See its manifest.')


def head_of(request: MemoryRequest, facts: PlanFacts) -> MemoryHead:
    """Return the memory of a request. A memory of another tenant does not exist for the caller."""
    head = facts.heads.get(request.memory_id)
    if head is None or head.tenant != request.tenant:
        raise missing_memory(request.memory_id)
    return head


def plan(request: MemoryRequest, facts: PlanFacts, head: MemoryHead) -> MemoryAnswer:
    """Add the operations of a request to `facts.ops` and return its answer; or raise and change nothing."""
    match request:
        case AddEntries():
            return _add(request, facts, head)
        case CorrectEntry():
            return _correct(request, facts, head)
        case DeleteEntry():
            return _delete(request, facts, head)
        case SetEntryTags():
            return _tag(request, facts, head)
        case PutFragment():
            return _put(request, facts, head)
        case DeleteFragment():
            return _drop(request, facts, head)
        case _:
            raise TypeError(f"{type(request).__name__} is not a request of a memory")


def _op(
    request: MemoryRequest,
    facts: PlanFacts,
    head: MemoryHead,
    kind: MemoryOpKind,
    subject: str,
    change: Mapping[str, Any],
) -> int:
    head.last_seq += 1
    entry = entry_row(head.id, head.last_seq, change) if kind is MemoryOpKind.CORRECT else None
    op = PlannedOp(
        head.id,
        head.last_seq,
        request.op_id,
        request.fingerprint,
        kind,
        subject,
        change,
        request.now_us,
        entry,
    )
    facts.ops.append(op)
    facts.touched.add(head.id)
    facts.now_us = request.now_us
    if request.keyed:
        facts.keyed_ops.append(op)
    if subject in facts.rows_by_id:
        facts.kept_rows.append(facts.rows_by_id.pop(subject))
    return head.last_seq


def _correcting(entry_id: str, entry: NewEntry, now_us: int, corrects: str) -> dict[str, Any]:
    return {
        "id": entry_id,
        "text": entry.text,
        "summary": entry.summary,
        "metadata": dump_json(entry.metadata) if entry.metadata else "{}",
        "tags": dump_json(entry.tags) if entry.tags else "{}",
        "created_at": now_us,
        "expires_at": entry.expires_at_us,
        "corrects": corrects,
    }


def _added(
    facts: PlanFacts, head: MemoryHead, entry_id: str, seq: int, entry: NewEntry, now_us: int, corrects: str | None
) -> MemoryEntry:
    added = MemoryEntry(
        entry_id,
        head.id,
        seq,
        entry.text,
        entry.summary,
        entry.metadata,
        entry.tags,
        now_us,
        entry.expires_at_us,
        corrects,
        synced=facts.applied_at_once,
    )
    facts.entries[entry_id] = added
    return added


def _add(request: AddEntries, facts: PlanFacts, head: MemoryHead) -> MemoryAnswer:
    # The hot path of memory: without an idempotency key, an entry costs a row and the value that is returned.
    memory_id, now_us, synced = head.id, request.now_us, facts.applied_at_once
    rows: list[EntryRow] = []
    added: list[MemoryEntry] = []
    seq = head.last_seq
    for entry, entry_id in zip(request.entries, request.ids, strict=True):
        seq += 1
        text, summary, given, tags = entry.text, entry.summary, entry.metadata, entry.tags
        expires_at = entry.expires_at_us
        metadata, tagged = dump_json(given) if given else "{}", dump_json(tags) if tags else "{}"
        rows.append((entry_id, memory_id, seq, text, summary, metadata, tagged, now_us, expires_at, None))
        added.append(
            MemoryEntry(
                entry_id, memory_id, seq, text, summary, given, tags, now_us, expires_at, None, None, None, None, synced
            )
        )
    head.last_seq = seq
    facts.touched.add(memory_id)
    facts.now_us = now_us
    if request.keyed:
        ops = [_keyed_add(request, index, row) for index, row in enumerate(rows)]
        facts.ops += ops
        facts.keyed_ops += ops
    else:
        facts.rows += rows
    if not facts.targets.isdisjoint(request.ids):
        facts.entries.update((value.id, value) for value in added)
        if not request.keyed:
            facts.rows_by_id.update((row[0], row) for row in rows)
    return tuple(added)


def _keyed_add(request: AddEntries, index: int, row: EntryRow) -> PlannedOp:
    # The key of the request finds its first operation; the others must not take keys of other requests.
    op_id = request.op_id if index == 0 else row[0]
    return PlannedOp(row[1], row[2], op_id, request.fingerprint, MemoryOpKind.ADD, row[0], {}, request.now_us, row)


def _target(request: MemoryRequest, facts: PlanFacts, entry_id: str) -> MemoryEntry:
    found = facts.entries.get(entry_id)
    expired = found is not None and found.expires_at_us is not None and found.expires_at_us <= request.now_us
    if found is None or expired or found.memory_id != request.memory_id:
        raise missing_entry(entry_id, request.memory_id)
    return found


def _correct(request: CorrectEntry, facts: PlanFacts, head: MemoryHead) -> MemoryAnswer:
    old = _target(request, facts, request.entry_id)
    if old.corrected_by is not None:
        raise Conflict(
            f'The entry "{old.id}" is corrected by "{old.corrected_by}" already. Correct that entry instead.'
        )
    entry_id = request.new_entry_id
    change = _correcting(entry_id, request.entry, request.now_us, old.id)
    change["correction_reason"] = request.reason
    seq = _op(request, facts, head, MemoryOpKind.CORRECT, entry_id, change)
    facts.entries[old.id] = replace(old, corrected_by=entry_id)
    return (_added(facts, head, entry_id, seq, request.entry, request.now_us, old.id),)


def _delete(request: DeleteEntry, facts: PlanFacts, head: MemoryHead) -> MemoryAnswer:
    if request.entry_id in facts.entries and facts.entries[request.entry_id] is None:
        return None  # The entry was deleted before, so there is nothing to do.
    _target(request, facts, request.entry_id)
    _op(request, facts, head, MemoryOpKind.DELETE, request.entry_id, {})
    facts.entries[request.entry_id] = None
    return None


def _tag(request: SetEntryTags, facts: PlanFacts, head: MemoryHead) -> MemoryAnswer:
    old = _target(request, facts, request.entry_id)
    _op(request, facts, head, MemoryOpKind.TAGS, old.id, {"tags": dump_json(request.tags)})
    tagged = replace(old, tags=request.tags, synced=facts.applied_at_once)
    facts.entries[old.id] = tagged
    return (tagged,)


def _put(request: PutFragment, facts: PlanFacts, head: MemoryHead) -> MemoryAnswer:
    names = facts.fragments.setdefault(head.id, set())
    if request.name not in names and len(names) >= MAX_FRAGMENTS:
        raise InvalidRequest(f"A memory has at most {MAX_FRAGMENTS} fragments. Delete one first.")
    change = {
        "content": request.content,
        "sha256": request.sha256,
        "size": request.size,
        "updated_at": request.now_us,
    }
    seq = _op(request, facts, head, MemoryOpKind.PUT_FRAGMENT, request.name, change)
    names.add(request.name)
    return MemoryFragment(
        request.name, request.content, request.sha256, request.size, request.now_us, seq, facts.applied_at_once
    )


def _drop(request: DeleteFragment, facts: PlanFacts, head: MemoryHead) -> MemoryAnswer:
    if request.name == CONTEXT_FRAGMENT:
        raise InvalidRequest(f'The fragment "{CONTEXT_FRAGMENT}" cannot be deleted. Write an empty context instead.')
    names = facts.fragments.setdefault(head.id, set())
    if request.name not in names:
        raise missing_fragment(request.name, head.id)
    _op(request, facts, head, MemoryOpKind.DELETE_FRAGMENT, request.name, {})
    names.discard(request.name)
    return None
