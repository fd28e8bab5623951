"""Send the operations of a node to the database: batches over many memories, in the order of each.

Transport errors are retried forever, with backoff. An operation that the database rejects parks only its own memory. A
repeated batch changes nothing, because the database has the number of its last operation.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from runlane.errors import Conflict, NotFound, RunlaneError, StorageFull, Unavailable
from runlane.failpoints import failpoint
from runlane.memory.node import MemoryNode
from runlane.memory.replication_pace import ReplicationPace
from runlane.observability.outage import outage
from runlane.store.memory import local_log
from runlane.store.memory.operations import PlannedOp
from runlane.store.memory.replication import MemoryVerdict, Verdict, is_rejection, replicate

log = structlog.get_logger(__name__)

BATCH_OPS: Final = 2000
_LANES: Final = 2
_FIRST_BACKOFF_SECONDS: Final = 0.1
_LONGEST_BACKOFF_SECONDS: Final = 5.0
# A lost wake-up, such as after a retry by another component, delays replication by at most this time.
_POLL_SECONDS: Final = 5.0


class Replicator:
    """Replicates the operations of one node, with start() and stop().

    `unacknowledged` returns how many changes of callers wait for their acknowledgement.
    """

    def __init__(self, node: MemoryNode, unacknowledged: Callable[[], int]) -> None:
        self._node = node
        self._pace = ReplicationPace(node.waiters, unacknowledged)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._reading = asyncio.Lock()
        # The memory after which the next batch is read, so that all memories have their turn.
        self._after = ""
        # Memories of the batches that are being sent: the order of a memory needs one batch at a time.
        self._sending: set[str] = set()

    def wake(self) -> None:
        """Note that there are new operations."""
        self._wake.set()

    def start(self) -> None:
        """Begin to replicate, with what an earlier process left in the file."""
        self._task = asyncio.create_task(self._run(), name="memory-replicator")

    async def stop(self, drain_seconds: float) -> None:
        """Replicate pending operations for at most this time, then end. The rest stays in the file."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        # The database may be unavailable, or the disk full; the operations are safe in the file.
        with contextlib.suppress(TimeoutError, Unavailable, StorageFull):
            async with asyncio.timeout(drain_seconds):
                while await self.round():
                    pass

    async def _run(self) -> None:
        while True:
            await self._pace.turn(self._wake)
            self._wake.clear()
            try:
                more = await self.round()
            except Unavailable as error:
                outage.failed("memory_replication", str(error))
                await self._back_off()
                continue
            except RunlaneError as error:
                # The file itself cannot be written, for example because the disk is full.
                log.warning("memory_replication_failed", problem=str(error))
                await self._back_off()
                continue
            except Exception:  # one defect must not end replication; it is retried with backoff and logged
                log.exception("memory_replication_failed")
                await self._back_off()
                continue
            self._failures = 0
            if not more:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_SECONDS):
                        await self._wake.wait()

    async def _back_off(self) -> None:
        self._failures += 1
        full = min(_LONGEST_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2 ** min(self._failures - 1, 10))
        await asyncio.sleep(full * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries

    async def round(self) -> bool:
        """Send pending operations; return whether there were any.

        While the database applies one batch, the next one is read and sent over another connection.
        """
        first = await self._next()
        if not first:
            return False
        lanes = [self._drain(first)]
        if len(first) >= BATCH_OPS:
            lanes += [self._drain(()) for _ in range(_LANES - 1)]
        results = await asyncio.gather(*lanes, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return True

    async def _drain(self, ops: Sequence[PlannedOp]) -> None:
        """Send a batch, then further ones while they are full."""
        while ops := ops or await self._next():
            full = len(ops) >= BATCH_OPS
            try:
                failpoint("replicate.read")
                await self._send(await self._owned(ops))
            finally:
                self._sending.difference_update({op.memory_id for op in ops})
            if not full:
                return
            ops = ()

    async def _next(self) -> Sequence[PlannedOp]:
        """Return a batch of memories of which none is being sent."""
        async with self._reading:
            ops = await local_log.pending_ops(self._node.reader, self._after, BATCH_OPS)
            if len(ops) < BATCH_OPS and self._after:
                # The list ends here, so the search continues at its beginning.
                ops = [*ops, *await local_log.pending_ops(self._node.reader, "", BATCH_OPS - len(ops))]
            found: dict[tuple[str, int], PlannedOp] = {}
            for op in ops:
                if op.memory_id not in self._sending:
                    found[op.memory_id, op.seq] = op
            self._after = ops[-1].memory_id if ops else ""
            self._sending.update(memory_id for memory_id, _ in found)
            return list(found.values())

    async def _owned(self, ops: Sequence[PlannedOp]) -> list[PlannedOp]:
        """Return the operations of memories that this node owns, acquiring those that it does not."""
        refused: set[str] = set()
        for memory_id in dict.fromkeys(op.memory_id for op in ops):
            if self._node.epoch_of(memory_id) is not None:
                continue
            try:
                await self._node.own(None, memory_id)
            except NotFound:
                first = next(op.seq for op in ops if op.memory_id == memory_id)
                await self._node.park(memory_id, first, f"{local_log.DELETED}the memory was deleted")
                refused.add(memory_id)
            except Conflict:
                refused.add(memory_id)  # parked, or owned by another node
        return [op for op in ops if op.memory_id not in refused]

    async def _send(self, ops: Sequence[PlannedOp]) -> None:
        if not ops:
            return
        try:
            verdicts = await replicate(self._node.remote, self._node.id, self._node.owned(), ops)
        except Unavailable:
            raise
        except Exception as error:
            if not is_rejection(error):
                raise Unavailable(f"The database refuses to store memories: {error}.") from error
            # The database rejects one of the operations.
            await self._isolate(ops, error)
            return
        failpoint("replicate.committed")
        await self._record(ops, verdicts)

    async def _isolate(self, ops: Sequence[PlannedOp], error: Exception) -> None:
        """Find the operation that the database rejects by halving the batch; other memories are not affected."""
        if len(ops) == 1:
            op = ops[0]
            await self._node.park(op.memory_id, op.seq, f"{type(error).__name__}: {error}")
            return
        memories = list(dict.fromkeys(op.memory_id for op in ops))
        if len(memories) > 1:
            first = set(memories[: len(memories) // 2])
            await self._send([op for op in ops if op.memory_id in first])
            await self._send([op for op in ops if op.memory_id not in first])
            return
        half = len(ops) // 2
        await self._send(ops[:half])
        head = await local_log.local_head(self._node.reader, memories[0])
        if head is not None and not head.parked:
            await self._send(ops[half:])

    async def _record(self, ops: Sequence[PlannedOp], verdicts: Mapping[str, MemoryVerdict]) -> None:
        applied = {
            memory_id: verdict.last_seq for memory_id, verdict in verdicts.items() if verdict.verdict is Verdict.APPLIED
        }
        if applied:
            await local_log.mark_applied(self._node.file, applied)
            failpoint("replicate.marked")
            self._node.on_applied(applied)
            outage.succeeded()
        for memory_id, last_seq in applied.items():
            self._node.waiters.moved(memory_id, last_seq)
            await self._node.refresh_if_stale(memory_id)
        firsts = {op.memory_id: op.seq for op in reversed(ops)}
        for memory_id, verdict in verdicts.items():
            first = firsts[memory_id]
            match verdict.verdict:
                case Verdict.SUPERSEDED:
                    # The next round acquires it again; if another process has written, its operations are parked.
                    self._node.lost(memory_id)
                case Verdict.MISSING:
                    await self._node.park(memory_id, first, f"{local_log.DELETED}the memory was deleted")
                case Verdict.GAP:
                    await self._node.park(
                        memory_id,
                        first,
                        f"The database has the operations up to {verdict.last_seq}, and {first} is next.",
                    )
                case Verdict.APPLIED:
                    pass
