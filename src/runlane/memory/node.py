"""A node: the process that owns memories, acknowledges their changes from its file, and replicates them.

A memory is acquired at the first change. Its local copy is the state of the database plus the pending operations. If
another process has written to the memory since, and this node has pending operations, they are parked: an operator
decides whether they are appended (retry) or dropped (discard). They are never placed between the other process's
operations.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from weakref import WeakValueDictionary

import structlog

from runlane.domain.memory import CommitState, MemoryCommit, MemoryNodeStatus, MemoryOp, ParkedMemory
from runlane.errors import Conflict, MemoryOwnedElsewhere, NotFound
from runlane.failpoints import failpoint
from runlane.memory.commit_waiters import CommitWaiters
from runlane.memory.lease import NodeLease
from runlane.memory.shards import Shards
from runlane.store.memory import handover, local_log, ownership
from runlane.store.memory.copying import copy_memory, evict, evict_replicated, replace_copy, update_copy
from runlane.store.memory.handover import MemoryReleased, ReservedMemory
from runlane.store.memory.local_file import LocalFile
from runlane.store.memory.operations import PlannedOp
from runlane.store.memory.ownership import KnownCopy, SupersededCopy
from runlane.store.memory.planning import missing_memory
from runlane.store.memory.reading import read_head
from runlane.store.memory.rebasing import append_again
from runlane.store.memory.requests import MemoryRequest
from runlane.store.sql.database import Database

log = structlog.get_logger(__name__)


class MemoryNode:
    """Ownership of memories by this process; also used by the replicator."""

    def __init__(
        self, file: LocalFile, reader: LocalFile, remote: Database, shards: Shards, url: str, lease_seconds: float
    ) -> None:
        self.id = file.node_id
        self.file = file
        self.reader = reader
        self.remote = remote
        self.waiters = CommitWaiters()
        self.set_aside: Sequence[str] = ()
        # Called when operations may be replicated again.
        self.on_work: Callable[[], None] = lambda: None
        # Called with memories whose operations are in the database now.
        self.on_applied: Callable[[Iterable[str]], None] = lambda _memories: None
        self._epochs: dict[str, int] = {}
        # After a lapse, each memory is acquired again before the next change.
        self.lease = NodeLease(
            lease_seconds, lambda: ownership.renew_node(remote, self.id, url, lease_seconds), self._epochs.clear
        )
        self._shards = shards
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._stale: set[str] = set()
        # Memories that are being handed over: their callers wait, and no further change is written.
        self._leaving: set[str] = set()
        self._sealed: set[str] = set()

    def owns(self, memory_id: str) -> bool:
        """Return whether this process may write to the memory now."""
        return memory_id in self._epochs and self.lease.seconds_left > 0

    async def reads_here(self, memory_id: str) -> bool:
        """Return whether reads use the local copy: of an owned memory, or of one with pending operations.

        A restarted node has acknowledged operations before it owns their memory again. After another process has
        written to the memory, the database is ahead of the copy.
        """
        if self.owns(memory_id):
            return True
        head = await local_log.local_head(self.reader, memory_id)
        if head is None or head.last_seq == head.applied_seq:
            return False
        rejected = await local_log.rejected_op(self.reader, memory_id) if head.parked else None
        return rejected is None or not (rejected.error or "").startswith((local_log.SUPERSEDED, local_log.DELETED))

    def epoch_of(self, memory_id: str) -> int | None:
        """Return the epoch under which this process owns the memory, or None."""
        return self._epochs.get(memory_id)

    def admit(self, request: MemoryRequest) -> None:
        """Raise if this process may no longer write to the memory. Called just before a change is written."""
        if request.memory_id not in self._epochs or request.memory_id in self._sealed:
            raise MemoryReleased(f'The memory "{request.memory_id}" is not owned by this node any more. Retry.')
        self.lease.check()

    def lost(self, memory_id: str) -> None:
        """Note that this process no longer owns the memory."""
        self._epochs.pop(memory_id, None)

    async def own(self, tenant: str | None, memory_id: str) -> None:
        """Acquire the memory if necessary, and bring the local copy up to date. The tenant is checked by the writer."""
        if self.owns(memory_id) and memory_id not in self._leaving:
            return
        async with self._lock(memory_id):
            await self._own(tenant, memory_id)

    async def _own(self, tenant: str | None, memory_id: str) -> None:
        if self.owns(memory_id):
            return
        if self.lease.seconds_left <= 0:
            await self.lease.renew()
        await self._acquire(tenant, memory_id)

    async def may_request(self, memory_id: str) -> bool:
        """Return whether the memory may be requested from its owner.

        The owner's operations superseded those that are pending here: only an operator can append them.
        """
        head = await local_log.local_head(self.reader, memory_id)
        return head is None or head.last_seq == head.applied_seq

    async def _acquire(self, tenant: str | None, memory_id: str) -> None:
        head = await local_log.local_head(self.reader, memory_id)
        waiting: Sequence[PlannedOp] = []
        known = None
        if head is not None:
            waiting = await local_log.waiting_ops(self.reader, memory_id)
            known = KnownCopy(head.applied_seq, {op.seq: op.op_id for op in waiting})
        try:
            acquired = await ownership.acquire(self.remote, self.id, tenant, memory_id, known)
        except SupersededCopy as error:
            await self.park(memory_id, waiting[0].seq, f"{local_log.SUPERSEDED}{error}")
            raise Conflict(
                f'The memory "{memory_id}" has {len(waiting)} operations on this node that were not replicated before '
                f"{error}. Append or drop them: runlane memory retry {memory_id}, or discard {memory_id}."
            ) from error
        except MemoryOwnedElsewhere as error:
            if waiting and not isinstance(error, ReservedMemory):
                await self.park(memory_id, waiting[0].seq, f"{local_log.SUPERSEDED}{error}")
            raise
        last_seq: int = acquired.row["last_seq"]
        waits = any(op.seq > last_seq for op in waiting)
        if acquired.continued and head is not None and (waits or not head.stale):
            await local_log.mark_applied(self.file, {memory_id: last_seq})
            await local_log.set_epoch(self.file, memory_id, acquired.epoch)
            if head.stale:
                self._stale.add(memory_id)
            self.waiters.moved(memory_id, last_seq)
        elif head is None or waiting or head.stale or not await self._update(head, acquired):
            await copy_memory(self.remote, self.file, acquired.row, acquired.epoch)
        self._epochs[memory_id] = acquired.epoch

    async def _update(self, head: local_log.LocalHead, acquired: ownership.Acquired) -> bool:
        """Copy what other processes have written since this node had the memory, if that is possible."""
        if acquired.row["last_seq"] <= head.applied_seq:
            return False
        return await update_copy(self.remote, self.file, acquired.row, acquired.epoch, head.applied_seq)

    async def park(self, memory_id: str, seq: int, problem: str) -> None:
        """Stop the replication of a memory, and report it to the callers that wait."""
        await local_log.park(self.file, memory_id, seq, problem)
        if problem.startswith(local_log.SUPERSEDED):
            self.lost(memory_id)
        log.warning("memory_parked", memory=memory_id, seq=seq, problem=problem)
        self.waiters.stopped(memory_id)

    async def forget(self, memory_id: str) -> None:
        """Drop the local copy of a deleted memory, with its pending operations."""
        self.lost(memory_id)
        await evict(self.file, memory_id)
        self.waiters.stopped(memory_id)

    async def give_back(self, memory_id: str) -> None:
        """Delete the copy of a replicated memory and let other nodes own it, unless it is in use."""
        async with self._lock(memory_id):
            if not self._shards.is_idle(memory_id):
                return
            self.lost(memory_id)
            if await evict_replicated(self.file, memory_id):
                await ownership.release(self.remote, self.id, [memory_id])

    async def hand_over(self, memory_id: str, pause_seconds: float) -> str | None:
        """Release a memory to the process that requested it, and return that process.

        Callers wait meanwhile. The changes in the shards are written, then everything is replicated. The node keeps the
        memory and returns None if that is not possible within the given time, or if the request has ended.
        """
        if not await self._is_replicated(memory_id, pause_seconds):
            return None  # callers of changes do not wait before this point
        async with self._lock(memory_id):
            self._leaving.add(memory_id)
            try:
                await self._own(None, memory_id)
                while not self._shards.is_idle(memory_id):
                    await self._shards.submit(memory_id, None)
                self._sealed.add(memory_id)
                if not await self._is_replicated(memory_id, pause_seconds):
                    return None
                return await self._release_requested(memory_id)
            finally:
                self._leaving.discard(memory_id)
                self._sealed.discard(memory_id)

    async def _release_requested(self, memory_id: str) -> str | None:
        head, epoch = await local_log.local_head(self.reader, memory_id), self.epoch_of(memory_id)
        if head is None or epoch is None or head.last_seq != head.applied_seq:
            return None
        # The ownership is dropped before the transaction: if its response is lost, the memory has to be acquired again.
        self.lost(memory_id)
        failpoint("handover.replicated")
        requested_by = await handover.release_requested(self.remote, self.id, memory_id, epoch, head.last_seq)
        failpoint("handover.released")
        return requested_by

    async def _is_replicated(self, memory_id: str, seconds: float) -> bool:
        """Wait until all changes accepted before this call are in the database.

        Return False on timeout, or if the memory is parked.
        """
        head = await local_log.local_head(self.reader, memory_id)
        if head is None:
            return True
        target = head.last_seq
        self.on_work()
        with self.waiters.waiting(memory_id, target) as changed, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    head = await local_log.local_head(self.reader, memory_id)
                    if head is None or head.parked or head.applied_seq >= target:
                        return head is None or not head.parked
                    await changed.wait()
                    changed.clear()
        return False

    def _lock(self, memory_id: str) -> asyncio.Lock:
        """Return the lock under which a memory is acquired, given back or handed over."""
        return self._locks.setdefault(memory_id, asyncio.Lock())

    async def refresh_if_stale(self, memory_id: str) -> None:
        """Read the copy of a memory again after one of its operations was discarded, if nothing is pending."""
        if memory_id not in self._stale:
            return
        head, epoch = await local_log.local_head(self.reader, memory_id), self.epoch_of(memory_id)
        if head is None or epoch is None or not head.stale or head.applied_seq != head.last_seq:
            return
        row = await ownership.read_memory(self.remote, memory_id)
        if row is not None and row["epoch"] == epoch and await replace_copy(self.remote, self.file, row, epoch):
            self._stale.discard(memory_id)

    async def await_commit(self, tenant: str, memory_id: str, timeout: float) -> MemoryCommit:
        """Wait until the operations that were accepted before this call are in the database."""
        if not self._shards.is_idle(memory_id):
            await self._shards.submit(memory_id, None)
        head = await local_log.local_head(self.reader, memory_id)
        if head is None:
            return await self._committed_elsewhere(tenant, memory_id)
        if head.tenant != tenant:
            raise missing_memory(memory_id)
        if head.last_seq == head.applied_seq and not self.owns(memory_id):
            # Handed over: the next owner may have accepted changes since.
            return await self._committed_elsewhere(tenant, memory_id)
        target = head.last_seq
        with self.waiters.waiting(memory_id, target) as changed:
            if head.applied_seq < target:
                self.on_work()  # replication may give precedence to other callers
            try:
                async with asyncio.timeout(timeout):
                    while (result := await self._progress(tenant, memory_id, target)) is None:
                        await changed.wait()
                        changed.clear()
                    return result
            except TimeoutError:
                return MemoryCommit(
                    CommitState.TIMEOUT, target, (await read_head(self.reader, tenant, memory_id)).applied_seq
                )

    async def _progress(self, tenant: str, memory_id: str, target: int) -> MemoryCommit | None:
        head = await local_log.local_head(self.reader, memory_id)
        if head is None or head.tenant != tenant:
            raise missing_memory(memory_id)
        if head.applied_seq >= target:
            return MemoryCommit(CommitState.COMMITTED, target, head.applied_seq)
        rejected = await local_log.rejected_op(self.reader, memory_id) if head.parked else None
        if rejected is not None and rejected.seq <= target:
            return MemoryCommit(CommitState.REJECTED, target, head.applied_seq, rejected)
        return None

    async def _committed_elsewhere(self, tenant: str, memory_id: str) -> MemoryCommit:
        row = await ownership.read_owner(self.remote, memory_id)
        if row is None or row["tenant"] != tenant:
            raise missing_memory(memory_id)
        if row["owner"] is not None and row["owner"] != self.id and row["owner_url"] is not None:
            raise MemoryOwnedElsewhere(memory_id, row["owner"], row["owner_url"])
        return MemoryCommit(CommitState.COMMITTED, row["last_seq"], row["last_seq"])

    async def parked(self) -> Sequence[ParkedMemory]:
        """Return the memories that wait for a decision of an operator."""
        return await local_log.parked_memories(self.reader)

    async def retry(self, tenant: str, memory_id: str) -> None:
        """Retry the operations of a parked memory; superseded operations are appended with new numbers."""
        parked = await self._parked(tenant, memory_id)
        if parked.superseded:
            waiting = await local_log.waiting_ops(self.reader, memory_id)
            acquired = await ownership.acquire(self.remote, self.id, tenant, memory_id, None)
            await append_again(self.remote, self.file, acquired, waiting)
            self._epochs[memory_id] = acquired.epoch
        else:
            await local_log.retry_parked(self.file, memory_id)
        self.on_work()

    async def discard(self, tenant: str, memory_id: str) -> MemoryOp:
        """Discard the rejected operation of a parked memory, or all pending ones if it was superseded."""
        parked = await self._parked(tenant, memory_id)
        if parked.superseded or (parked.op.error or "").startswith(local_log.DELETED):
            await self.forget(memory_id)
            return parked.op
        discarded = await local_log.discard_rejected(self.file, memory_id)
        self._stale.add(memory_id)
        self.on_work()
        return parked.op if discarded is None else discarded

    async def _parked(self, tenant: str, memory_id: str) -> ParkedMemory:
        head = await local_log.local_head(self.reader, memory_id)
        if head is None or head.tenant != tenant:
            raise missing_memory(memory_id)
        found = next((item for item in await self.parked() if item.memory_id == memory_id), None)
        if found is None:
            raise NotFound(f'The memory "{memory_id}" is not parked on this node.')
        return found

    async def status(self) -> MemoryNodeStatus:
        """Return the replication backlog."""
        waiting = await local_log.count_waiting(self.reader)
        return MemoryNodeStatus(
            "replicated",
            self.id,
            str(self.file.path),
            sum(waiting.by_memory.values()),
            waiting.oldest_us,
            await self.parked(),
            max(0.0, self.lease.seconds_left),
            self.set_aside,
        )

    async def sign_off(self) -> None:
        """Release the replicated memories; the others wait for this node."""
        waiting = await local_log.count_waiting(self.reader)
        await ownership.sign_off(self.remote, self.id, sorted(waiting.by_memory))
        self._epochs.clear()

    def owned(self) -> dict[str, int]:
        """Return the epochs of the memories that this process owns."""
        return dict(self._epochs)
