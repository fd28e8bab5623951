"""Write a batch of requests in one transaction: read the facts, plan, log the operations, apply them.

The memories of a batch are locked in the order of their ids, so batches of several processes do not deadlock and the
operations of one memory have consecutive numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import BigInteger, ColumnElement, FromClause, Text, bindparam, literal_column, select, update
from sqlalchemy.sql.base import Executable

from runlane.domain.memory import MemoryEntry, MemoryOpKind, MemoryOpState
from runlane.errors import Conflict, MemoryOwnedElsewhere, NotFound, RunlaneError
from runlane.store.memory.handover import living_owner_url, request_counts, reservation
from runlane.store.memory.operations import EntryRow, add_rows, apply_ops, entry_payload, entry_row, log_ops, log_rows
from runlane.store.memory.planning import MemoryHead, PlanFacts, head_of, plan
from runlane.store.memory.requests import (
    KEY_PREFIX,
    AddEntries,
    CorrectEntry,
    DeleteEntry,
    DeleteFragment,
    MemoryAnswer,
    MemoryRequest,
    PutFragment,
    SetEntryTags,
)
from runlane.store.memory.rows import ENTRY_COLUMNS, FRAGMENT_COLUMNS, UNKEYED, entry_from, fragment_from
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, member, upsert
from runlane.store.sql.schema.memory import memories, memory_entries, memory_fragments, memory_ops
from runlane.store.sql.statement import Row, Statement

_m, _o = memories.c, memory_ops.c
_heads = (
    select(_m.id, _m.tenant, _m.last_seq, _m.applied_seq, _m.parked)
    .where(member(_m.id, "ids"))
    .order_by(_m.id)
    .with_for_update(of=memories)
)
_HEADS = Statement("memory_heads", _heads, purpose="Lock memories and read the numbers of their last operations.")
_OWNED_HEADS = Statement(
    "memory_heads_with_owners",
    _heads.add_columns(
        _m.owner,
        living_owner_url().label("owner_url"),
        _m.requested_by,
        request_counts().label("request_counts"),
    ),
    purpose="Lock memories and read their last operations, their owners and which processes have requested them.",
)
_TARGETS = Statement(
    "memory_target_entries",
    select(*ENTRY_COLUMNS, memory_entries.c.deleted_at).where(member(memory_entries.c.id, "ids")),
    purpose="Read the entries that requests change.",
)
_NAMES = Statement(
    "memory_fragment_names",
    select(memory_fragments.c.memory_id, memory_fragments.c.name).where(member(memory_fragments.c.memory_id, "ids")),
    purpose="Read the names of the fragments of memories.",
)


def _known_ops(*conditions: ColumnElement[bool]) -> Statement:
    def build(batch: FromClause) -> Executable:
        return select(_o.memory_id, _o.op_id, _o.seq, _o.fingerprint, _o.kind, _o.subject).where(
            _o.memory_id == batch.c.memory_id, _o.op_id == batch.c.op_id, *conditions
        )

    return Statement(
        "memory_known_ops",
        build,
        {"memory_id": Text(), "op_id": Text()},
        purpose="Find operations of earlier requests with the same idempotency keys.",
    )


# The index of a file has only the operations with an idempotency key; SQLite needs the condition to use it. In the
# database, a request without a key looks for its own operation after a commit in doubt.
_KNOWN: Final = {"sqlite": _known_ops(_o.fingerprint != UNKEYED), "postgresql": _known_ops()}
_RANGE = Statement(
    "memory_entries_of_ops",
    select(*ENTRY_COLUMNS)
    .where(
        memory_entries.c.memory_id == bindparam("memory_id", type_=Text()),
        memory_entries.c.seq.between(bindparam("first", type_=BigInteger()), bindparam("last", type_=BigInteger())),
        memory_entries.c.deleted_at.is_(None),
    )
    .order_by(memory_entries.c.seq),
    purpose="Read the entries that an earlier request added.",
)
_FRAGMENT = Statement(
    "memory_fragment_of_op",
    select(*FRAGMENT_COLUMNS, memory_fragments.c.content).where(
        memory_fragments.c.memory_id == bindparam("memory_id", type_=Text()),
        memory_fragments.c.name == bindparam("name", type_=Text()),
    ),
    purpose="Read the fragment that an earlier request wrote.",
)


def _advance_heads(batch: FromClause) -> Executable:
    b = batch.c
    return (
        update(memories).where(_m.id == b.id).values(last_seq=b.last_seq, applied_seq=b.applied_seq, used_at=b.used_at)
    )


_ADVANCE = Statement(
    "memory_advance_heads",
    _advance_heads,
    {"id": Text(), "last_seq": BigInteger(), "applied_seq": BigInteger(), "used_at": BigInteger()},
    purpose="Store the number of the last operation of memories.",
)


_KEPT: Final = {
    "memory_id": Text(),
    "seq": BigInteger(),
    "op_id": Text(),
    "payload": Text(),
    "state": Text(),
    "created_at": BigInteger(),
}


def _keep_added(batch: FromClause) -> Executable:
    b = batch.c
    added = (UNKEYED, lit(MemoryOpKind.ADD.value), b.op_id, lit(0))
    statement = upsert(memory_ops).from_select(
        [*_KEPT, "fingerprint", "kind", "subject", "attempts"],
        select(*(b[name] for name in _KEPT), *added).where(literal_column("1") == 1),
    )
    return statement.on_conflict_do_update(
        index_elements=["memory_id", "seq"],
        set_={"payload": statement.excluded.payload},
        where=_o.payload.is_(None),
    )


_KEEP_ADDED = Statement(
    "memory_keep_added",
    _keep_added,
    _KEPT,
    purpose="Store in the log what was added, before the row of an entry changes that is not replicated.",
)
_UNOWN = Statement(
    "memory_end_ownership",
    update(memories).where(member(_m.id, "ids")).values(owner=None, epoch=_m.epoch + 1),
    purpose="Take memories from nodes whose lease has expired.",
)
_END_REQUESTS = Statement(
    "memory_end_requests",
    update(memories).where(member(_m.id, "ids")).values(requested_by=None),
    purpose="End the requests of the process that has written to memories.",
)


@dataclass(frozen=True, slots=True)
class WriteRules:
    """How operations are logged. With `replicated`, they wait for replication; otherwise they are applied at once.

    With `process`, which names the writing process, a memory that a node owns or that is reserved for another process
    is refused, and a memory of a node whose lease has expired is taken. Without `log_all`, only operations with an
    idempotency key are logged: a file that is not replicated needs no others.
    """

    replicated: bool
    process: str | None = None
    log_all: bool = True


async def write_requests(
    session: Session, requests: Sequence[MemoryRequest], rules: WriteRules
) -> list[MemoryAnswer | RunlaneError]:
    """Write requests in their order and return the answer or the refusal of each."""
    heads = _HEADS if rules.process is None else _OWNED_HEADS
    rows = await session.fetch(heads, ids=session.texts(sorted({request.memory_id for request in requests})))
    known = await _known(session, requests)
    facts = await _facts(session, requests, rows, rules)
    owners = {} if rules.process is None else _other_owners(rows, rules.process)
    answers: list[MemoryAnswer | RunlaneError] = []
    for request in requests:
        key = (request.memory_id, request.op_id)
        try:
            # The tenant is checked before the owner and the idempotency key, which must not be disclosed to another
            # tenant.
            head = head_of(request, facts)
            if request.memory_id in owners:
                raise owners[request.memory_id]
            earlier = known.get(key)
            if earlier is None:
                answer = plan(request, facts, head)
                if request.keyed:
                    known[key] = _Known(request.fingerprint, answer)
            else:
                answer = await _repeat(session, request, earlier, head)
            answers.append(answer)
        except RunlaneError as error:
            answers.append(error)
    await _store(session, facts, rules)
    if rules.process is not None:
        await _end_ownership(session, rows, facts)
        await _end_requests(session, [row for row in rows if row["id"] not in owners], rules.process)
    return answers


async def _store(session: Session, facts: PlanFacts, rules: WriteRules) -> None:
    if not facts.touched:
        return
    changed = [facts.heads[memory_id] for memory_id in sorted(facts.touched)]
    waiting = {True: MemoryOpState.BLOCKED, False: MemoryOpState.PENDING}
    states = {head.id: waiting[head.parked] if rules.replicated else MemoryOpState.APPLIED for head in changed}
    await _keep(session, facts.kept, states)
    if facts.rows:
        await _store_rows(session, facts, rules)
    await apply_ops(session, facts.ops)
    await log_ops(session, facts.ops if rules.log_all else facts.keyed_ops, states)
    if rules.replicated:
        await _keep(session, facts.kept_rows, states)
    now = facts.now_us
    heads = [(head.id, head.last_seq, head.applied_seq if rules.replicated else head.last_seq, now) for head in changed]
    await session.fetch(_ADVANCE, heads)


async def _keep(session: Session, rows: Sequence[EntryRow], states: Mapping[str, MemoryOpState]) -> None:
    """Log entries that were added without an idempotency key and that the batch may change."""
    members = [
        (row[1], row[2], row[0], entry_payload(row), states[row[1]].value, row[7]) for row in rows if row[1] in states
    ]
    await session.fetch(_KEEP_ADDED, members)


async def _store_rows(session: Session, facts: PlanFacts, rules: WriteRules) -> None:
    """Add the entries of requests without a key. In the file of a node, their rows are the operations.

    They may be added before the other operations of the batch: no operation changes an entry before it is added.
    """
    await add_rows(session, facts.rows)
    if rules.log_all and not rules.replicated:
        await log_rows(session, facts.rows)


@dataclass(frozen=True, slots=True)
class _Known:
    """A request with the same idempotency key: of this batch, with its answer, or a stored one, with its row."""

    fingerprint: str
    answer: MemoryAnswer = None
    row: Row | None = None


async def _known(session: Session, requests: Sequence[MemoryRequest]) -> dict[tuple[str, str], _Known]:
    keys = list({(request.memory_id, request.op_id) for request in requests if request.keyed})
    rows = await session.fetch(_KNOWN[session.dialect], keys)
    return {(row["memory_id"], row["op_id"]): _Known(row["fingerprint"], row=row) for row in rows}


async def _facts(
    session: Session, requests: Sequence[MemoryRequest], rows: Sequence[Row], rules: WriteRules
) -> PlanFacts:
    heads = {
        row["id"]: MemoryHead(row["id"], row["tenant"], row["last_seq"], row["applied_seq"], bool(row["parked"]))
        for row in rows
    }
    targets = {
        request.entry_id for request in requests if isinstance(request, CorrectEntry | DeleteEntry | SetEntryTags)
    }
    entries: dict[str, MemoryEntry | None] = {}
    kept: list[EntryRow] = []
    if targets:
        for row in await session.fetch(_TARGETS, ids=session.texts(sorted(targets))):
            head = heads.get(row["memory_id"])
            if head is not None:
                found = entry_from(row, head.applied_seq)
                entries[row["id"]] = found if row["deleted_at"] is None else None
                if rules.replicated and row["seq"] > head.applied_seq:
                    kept.append(entry_row(head.id, row["seq"], row))
    documents = {request.memory_id for request in requests if isinstance(request, PutFragment | DeleteFragment)}
    fragments: dict[str, set[str]] = {}
    if documents:
        for row in await session.fetch(_NAMES, ids=session.texts(sorted(documents))):
            fragments.setdefault(row["memory_id"], set()).add(row["name"])
    return PlanFacts(heads, entries, fragments, not rules.replicated, kept, targets)


async def _repeat(session: Session, request: MemoryRequest, earlier: _Known, head: MemoryHead) -> MemoryAnswer:
    """Return the answer to an earlier request with the same idempotency key."""
    if earlier.fingerprint != request.fingerprint:
        key = request.op_id.removeprefix(KEY_PREFIX)
        raise Conflict(f'The idempotency key "{key}" was used before with another request. Use a new key.')
    if earlier.row is None:
        return earlier.answer
    seq = earlier.row["seq"]
    if isinstance(request, PutFragment):
        found = await session.fetch(_FRAGMENT, memory_id=head.id, name=request.name)
        if not found:
            raise NotFound(f'The fragment "{request.name}" was written by this request and has been deleted since.')
        return fragment_from(found[0], head.applied_seq)
    if isinstance(request, SetEntryTags):
        entry = await session.fetch(_TARGETS, ids=session.texts([request.entry_id]))
        return tuple(entry_from(row, head.applied_seq) for row in entry if row["deleted_at"] is None)
    if isinstance(request, AddEntries | CorrectEntry):
        count = len(request.entries) if isinstance(request, AddEntries) else 1
        rows = await session.fetch(_RANGE, memory_id=head.id, first=seq, last=seq + count - 1)
        if not rows:
            raise NotFound("The entries that this request added have been deleted since.")
        return tuple(entry_from(row, head.applied_seq) for row in rows)
    return None


def _other_owners(rows: Sequence[Row], process: str) -> dict[str, MemoryOwnedElsewhere]:
    """Return why memories cannot be written: a live node owns them, or another process has requested them."""
    found: dict[str, MemoryOwnedElsewhere] = {}
    for row in rows:
        if row["owner"] is not None and row["owner_url"] is not None:
            found[row["id"]] = MemoryOwnedElsewhere(row["id"], row["owner"], row["owner_url"])
        elif (reserved := reservation(row["id"], row, process)) is not None:
            found[row["id"]] = reserved
    return found


async def _end_ownership(session: Session, rows: Sequence[Row], facts: PlanFacts) -> None:
    """Take the changed memories of nodes whose lease has expired, so that these nodes cannot write to them again."""
    taken = sorted(row["id"] for row in rows if row["owner"] is not None and row["id"] in facts.touched)
    if taken:
        await session.fetch(_UNOWN, ids=session.texts(taken))


async def _end_requests(session: Session, rows: Sequence[Row], process: str) -> None:
    """End the requests of this process, even for memories in which its changes had no effect."""
    ended = sorted(row["id"] for row in rows if row["requested_by"] == process)
    if ended:
        await session.fetch(_END_REQUESTS, ids=session.texts(ended))
