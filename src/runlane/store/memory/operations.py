"""Apply operations of memories: the same for the file of a node and for the database.

An operation carries everything that it writes, so that it has the same effect wherever it is applied. Operations of one
memory are applied in their order; those of different memories are independent, so that operations of the same kind
share a statement.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import BigInteger, FromClause, Integer, Text, delete, literal_column, select, update
from sqlalchemy.sql.base import Executable

from runlane.domain.memory import MemoryOpKind, MemoryOpState
from runlane.domain.text import dump_json, load_json
from runlane.store.memory.entry_words import insert_entries
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import upsert
from runlane.store.sql.schema.memory import memory_entries, memory_fragments, memory_ops, memory_vectors
from runlane.store.sql.statement import Statement

# A lookup costs a tenth of what the constructor of an enum does.
_KINDS: Final = {kind.value: kind for kind in MemoryOpKind}
_NAMES: Final = {kind: kind.value for kind in MemoryOpKind}


# An entry as it is inserted: the values of the columns in _ENTRY.
EntryRow = tuple[str, str, int, str, str, str, str, int, int | None, str | None]
_NOTHING: Final[Mapping[str, Any]] = {}


class PlannedOp(NamedTuple):
    """An operation with its number. `change` holds the values that it writes, by the names of their columns.

    One that adds an entry has its row instead, and a correction has both. A tuple: thousands of them are made per
    second, and a frozen dataclass takes four times as long.
    """

    memory_id: str
    seq: int
    op_id: str
    fingerprint: str
    kind: MemoryOpKind
    subject: str
    change: Mapping[str, Any]
    created_at_us: int
    entry: EntryRow | None = None

    def with_seq(self, seq: int) -> PlannedOp:
        """Return the operation with another number."""
        entry = None if self.entry is None else (*self.entry[:2], seq, *self.entry[3:])
        return self._replace(seq=seq, entry=entry)


def stored_op(
    memory_id: str,
    seq: int,
    op_id: str,
    fingerprint: str,
    kind: str,
    subject: str,
    payload: str | None,
    created_at: int,
    text: str,
    summary: str,
    metadata: str,
    tags: str,
    expires_at: int | None,
) -> PlannedOp:
    """Return an operation of the log. Without a payload, the content of an added entry is in its row."""
    found = _KINDS[kind]
    if payload is None and found is MemoryOpKind.ADD:
        row = (subject, memory_id, seq, text, summary, metadata, tags, created_at, expires_at, None)
        return PlannedOp(memory_id, seq, op_id, fingerprint, found, subject, _NOTHING, created_at, row)
    change: dict[str, Any] = load_json(payload) if payload else {}
    entry = None
    if found in _ADDING:
        entry = entry_row(memory_id, seq, change)
    return PlannedOp(memory_id, seq, op_id, fingerprint, found, subject, change, created_at, entry)


def entry_row(memory_id: str, seq: int, change: Mapping[str, Any]) -> EntryRow:
    """Return the row of an entry from the values of an operation."""
    return (
        change["id"],
        memory_id,
        seq,
        change["text"],
        change["summary"],
        change["metadata"],
        change["tags"],
        change["created_at"],
        change["expires_at"],
        change["corrects"],
    )


def entry_payload(entry: EntryRow) -> str:
    """Return the payload in the log for an added entry whose row changes before it is replicated."""
    return dump_json({name: value for name, value in zip(_ENTRY, entry, strict=True) if name not in _OF_OP})


_ADDING: Final = frozenset({MemoryOpKind.ADD, MemoryOpKind.CORRECT})
# Operations that change the row of an entry, so that the row no longer has the added content.
CHANGING: Final = frozenset({MemoryOpKind.DELETE, MemoryOpKind.TAGS})
_e = memory_entries.c
_f = memory_fragments.c
_ENTRY: Final = {
    "id": Text(),
    "memory_id": Text(),
    "seq": BigInteger(),
    "text": Text(),
    "summary": Text(),
    "metadata": Text(),
    "tags": Text(),
    "created_at": BigInteger(),
    "expires_at": BigInteger(),
    "corrects": Text(),
}
_OF_OP: Final = frozenset({"memory_id", "seq"})


def _insert_entries(batch: FromClause) -> Executable:
    b = batch.c
    return (
        upsert(memory_entries)
        .from_select(
            [*_ENTRY, "changed_seq"], select(*(b[name] for name in _ENTRY), b.seq).where(literal_column("1") == 1)
        )
        .on_conflict_do_nothing(index_elements=["id"])
    )


def _correct_entries(batch: FromClause) -> Executable:
    b = batch.c
    return (
        update(memory_entries)
        .where(_e.id == b.corrects, _e.memory_id == b.memory_id, _e.deleted_at.is_(None))
        .values(corrected_by=b.id, corrected_at=b.created_at, correction_reason=b.correction_reason, changed_seq=b.seq)
    )


def _delete_entries(batch: FromClause) -> Executable:
    b = batch.c
    return (
        update(memory_entries)
        .where(_e.id == b.id, _e.memory_id == b.memory_id, _e.deleted_at.is_(None))
        .values(
            text="",
            summary="",
            metadata="{}",
            tags="{}",
            correction_reason=None,
            deleted_at=b.deleted_at,
            changed_seq=b.seq,
        )
    )


def _set_tags(batch: FromClause) -> Executable:
    b = batch.c
    return (
        update(memory_entries)
        .where(_e.id == b.id, _e.memory_id == b.memory_id, _e.deleted_at.is_(None))
        .values(tags=b.tags, changed_seq=b.seq)
    )


_FRAGMENT: Final = {
    "memory_id": Text(),
    "name": Text(),
    "content": Text(),
    "sha256": Text(),
    "size": Integer(),
    "updated_at": BigInteger(),
    "seq": BigInteger(),
}


def _put_fragments(batch: FromClause) -> Executable:
    statement = upsert(memory_fragments).from_select(
        list(_FRAGMENT), select(*(batch.c[name] for name in _FRAGMENT)).where(literal_column("1") == 1)
    )
    changed = {name: statement.excluded[name] for name in ("content", "sha256", "size", "updated_at", "seq")}
    return statement.on_conflict_do_update(index_elements=["memory_id", "name"], set_=changed)


def _delete_fragments(batch: FromClause) -> Executable:
    named = select(batch.c.name).where(batch.c.memory_id == _f.memory_id, batch.c.name == _f.name)
    return delete(memory_fragments).where(named.exists())


_LOG: Final = {
    "memory_id": Text(),
    "seq": BigInteger(),
    "op_id": Text(),
    "fingerprint": Text(),
    "kind": Text(),
    "subject": Text(),
    "payload": Text(),
    "state": Text(),
    "created_at": BigInteger(),
}


def _insert_ops(batch: FromClause) -> Executable:
    return (
        upsert(memory_ops)
        .from_select(
            [*_LOG, "attempts"],
            select(*(batch.c[name] for name in _LOG), literal_column("0")).where(literal_column("1") == 1),
        )
        .on_conflict_do_nothing(index_elements=["memory_id", "seq"])
    )


_INSERT_ENTRIES = Statement(
    "memory_insert_entries", _insert_entries, _ENTRY, purpose="Add entries to memories.", by_rows=True
)
_CORRECT = Statement(
    "memory_correct_entries",
    _correct_entries,
    {
        "corrects": Text(),
        "memory_id": Text(),
        "id": Text(),
        "created_at": BigInteger(),
        "correction_reason": Text(),
        "seq": BigInteger(),
    },
    purpose="Mark entries as corrected by others.",
)
_DELETE = Statement(
    "memory_delete_entries",
    _delete_entries,
    {"id": Text(), "memory_id": Text(), "deleted_at": BigInteger(), "seq": BigInteger()},
    purpose="Delete the content of entries.",
)
_DROP_VECTORS = Statement(
    "memory_drop_vectors",
    lambda batch: delete(memory_vectors).where(memory_vectors.c.entry_id.in_(select(batch.c.id))),
    {"id": Text()},
    purpose="Delete the embeddings of deleted entries.",
)
_TAGS = Statement(
    "memory_set_tags",
    _set_tags,
    {"id": Text(), "memory_id": Text(), "tags": Text(), "seq": BigInteger()},
    purpose="Set the tags of entries.",
)
PUT_FRAGMENTS = Statement("memory_put_fragments", _put_fragments, _FRAGMENT, purpose="Write fragments of memories.")
_DELETE_FRAGMENTS = Statement(
    "memory_delete_fragments", _delete_fragments, {"memory_id": Text(), "name": Text()}, purpose="Delete fragments."
)
_INSERT_OPS = Statement(
    "memory_insert_ops", _insert_ops, _LOG, purpose="Add operations to the log of memories.", by_rows=True
)


async def log_ops(session: Session, ops: Sequence[PlannedOp], states: Mapping[str, MemoryOpState]) -> None:
    """Add operations to the log, each with the state of its memory.

    An applied operation no longer needs a payload. Neither does an added entry that waits, because its row has the
    content, unless one of the operations changes that row.
    """
    kept = {memory_id: (state is MemoryOpState.APPLIED, state.value) for memory_id, state in states.items()}
    changed = {op.subject for op in ops if op.kind in CHANGING}
    members: list[Sequence[Any]] = []
    for memory_id, seq, op_id, fingerprint, kind, subject, change, created_at, entry in ops:
        applied, state = kept[memory_id]
        if applied:
            payload = None
        elif kind is MemoryOpKind.ADD and entry is not None:
            payload = entry_payload(entry) if subject in changed else None
        else:
            payload = dump_json(change)
        members.append((memory_id, seq, op_id, fingerprint, _NAMES[kind], subject, payload, state, created_at))
    await session.fetch(_INSERT_OPS, members)


async def add_rows(session: Session, rows: Sequence[EntryRow]) -> None:
    """Add entries."""
    await insert_entries(session, _INSERT_ENTRIES, rows)


async def log_rows(session: Session, rows: Sequence[EntryRow]) -> None:
    """Log entries that were added and applied at once. The id of an entry is the id of the operation."""
    kind, state = MemoryOpKind.ADD.value, MemoryOpState.APPLIED.value
    members = [(row[1], row[2], row[0], "", kind, row[0], None, state, row[7]) for row in rows]
    await session.fetch(_INSERT_OPS, members)


async def apply_ops(session: Session, ops: Sequence[PlannedOp]) -> None:
    """Write what the operations change. The operations of each memory are in their order."""
    for kind, wave in _waves(ops):
        await _apply(session, kind, wave)


def _waves(ops: Sequence[PlannedOp]) -> Iterator[tuple[MemoryOpKind, list[PlannedOp]]]:
    """Yield operations of one kind at a time, as many as possible, without changing the order within a memory."""
    kinds = {op.kind for op in ops}
    if len(kinds) == 1:
        yield kinds.pop(), list(ops)
        return
    queues: dict[str, deque[PlannedOp]] = {}
    for op in ops:
        queues.setdefault(op.memory_id, deque()).append(op)
    while queues:
        kind = Counter(queue[0].kind for queue in queues.values()).most_common(1)[0][0]
        wave: list[PlannedOp] = []
        for memory_id, queue in list(queues.items()):
            while queue and queue[0].kind is kind:
                wave.append(queue.popleft())
            if not queue:
                del queues[memory_id]
        yield kind, wave


async def _apply(session: Session, kind: MemoryOpKind, ops: Sequence[PlannedOp]) -> None:
    match kind:
        case MemoryOpKind.ADD:
            await add_rows(session, [op.entry for op in ops if op.entry is not None])
        case MemoryOpKind.CORRECT:
            await add_rows(session, [op.entry for op in ops if op.entry is not None])
            await session.fetch(_CORRECT, [_correction(op) for op in ops])
        case MemoryOpKind.DELETE:
            deleted = _last_of_each(ops)
            await session.fetch(_DELETE, [(op.subject, op.memory_id, op.created_at_us, op.seq) for op in deleted])
            await session.fetch(_DROP_VECTORS, [(op.subject,) for op in deleted])
        case MemoryOpKind.TAGS:
            await session.fetch(
                _TAGS, [(op.subject, op.memory_id, op.change["tags"], op.seq) for op in _last_of_each(ops)]
            )
        case MemoryOpKind.PUT_FRAGMENT:
            await session.fetch(PUT_FRAGMENTS, [_fragment(op) for op in _last_of_each(ops)])
        case MemoryOpKind.DELETE_FRAGMENT:
            await session.fetch(_DELETE_FRAGMENTS, [(op.memory_id, op.subject) for op in ops])
        case MemoryOpKind.DISCARDED:
            return


def _correction(op: PlannedOp) -> Sequence[Any]:
    change = op.change
    return (
        change["corrects"],
        op.memory_id,
        change["id"],
        change["created_at"],
        change["correction_reason"],
        op.seq,
    )


def _fragment(op: PlannedOp) -> Sequence[Any]:
    change = op.change
    return (
        op.memory_id,
        op.subject,
        change["content"],
        change["sha256"],
        change["size"],
        change["updated_at"],
        op.seq,
    )


def _last_of_each(ops: Sequence[PlannedOp]) -> list[PlannedOp]:
    """Return the last operation for each subject: a statement must not change a row twice."""
    return list({(op.memory_id, op.subject): op for op in ops}.values())
