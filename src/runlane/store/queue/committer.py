"""The committer: one transaction for all entries that a process has to store at the moment.

While one batch commits, the next is collected, so batches grow with the load and a single entry never waits. Each
member has its own fence and its own verdict. A caller gets its result after the commit, never before. A member that the
database rejects is found by halving the batch, and only that member fails. The outcome of a commit in doubt is
determined by its mark before anything is retried, so nothing is stored twice.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSet, Sequence

from runlane.domain.events import Notice
from runlane.domain.run import Accepted, Status
from runlane.domain.start_tags import CLOCK_SECONDS
from runlane.errors import LeaseLost, RunlaneError, StorageRefused, Unavailable
from runlane.failpoints import failpoint
from runlane.observability import metrics
from runlane.store.queue.accept import NewRun, Verdict, accept, accept_alone, stand_alone
from runlane.store.queue.accept_alike import accept_alike, alike_limits, are_alike
from runlane.store.queue.accept_shared import accept_shared, is_plain
from runlane.store.queue.commit_members import AcceptMember, CommitMember, CommitResult, RecordMember, merge_entries
from runlane.store.queue.dependencies import lock_in_order, parents_of
from runlane.store.queue.flow_starts import count_flow_control
from runlane.store.queue.limit_accept import accept_limited
from runlane.store.queue.limit_gate import accept_locks
from runlane.store.queue.ordering import key_locks
from runlane.store.queue.record import Recorded, RecordEntry, record
from runlane.store.sql.database import CommitInDoubt, Database, Session

# Members of one transaction: enough to share the cost of the commit, few enough to keep it short.
BATCH_SIZE = 1000
# Characters of one transaction: a statement of hundreds of megabytes would always exceed its timeout.
BATCH_CHARACTERS = 8 * 1024 * 1024
_PAUSE_SECONDS = 0.1
# How long runs with limits are accepted in a transaction after the single statement has stored nothing, because keys
# were full or other processes wrote at the same time.
_ALIKE_PAUSE_SECONDS = 0.5


class Stopping(Unavailable):
    """The committer has stopped, so waiting would not help."""


class Committer:
    """Collects members and commits them in batches.

    After each commit `ring` gets the lanes in which runs became ready, `publish` the notices for readers, and
    `report_timer` the time after which the next of the runs is due.
    """

    def __init__(
        self,
        database: Database,
        ring: Callable[[set[str]], None],
        publish: Callable[[Sequence[Notice]], None] = lambda notices: None,
        report_timer: Callable[[float], None] = lambda after_seconds: None,
    ) -> None:
        self._database = database
        self._ring = ring
        self._publish = publish
        self._report_timer = report_timer
        self._waiting: deque[CommitMember] = deque()
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        # Tenants whose runs get start tags.
        self._sharing: set[str] = set()
        # Tenants whose last run could not be stored by the short statement: they share lanes without fair shares, or
        # have limits.
        self._not_alone: set[str] = set()
        self._clocks_read_at = float("-inf")
        self._alike_at = float("-inf")
        self.commits = 0
        self.members = 0

    async def start(self) -> None:
        """Start to commit."""
        self._stopping = False
        self._task = asyncio.create_task(self._loop(), name="runlane-committer")

    async def stop(self) -> None:
        """Commit what has arrived, then stop. Later members are rejected."""
        self._stopping = True
        self._arrived.set()
        if self._task is not None:
            await self._task
            self._task = None

    async def accept(self, runs: Sequence[NewRun], timeout_seconds: float) -> list[Verdict]:
        """Store new runs; return the verdicts in order."""
        answer: asyncio.Future[list[Verdict]] = asyncio.get_running_loop().create_future()
        self._submit(AcceptMember(runs, answer, time.monotonic() + timeout_seconds))
        return await answer

    async def record(self, entry: RecordEntry, give_up_at: float) -> Recorded:
        """Store an entry of an attempt. Raise LeaseLost if the run belongs to another attempt.

        `give_up_at` is on the monotonic clock: past it the attempt may not write.
        """
        answer: asyncio.Future[Recorded] = asyncio.get_running_loop().create_future()
        self._submit(RecordMember(entry, answer, give_up_at))
        return await answer

    def _submit(self, member: CommitMember) -> None:
        if self._stopping or self._task is None or self._task.done():
            raise Stopping("This process is stopping and stores nothing more.")
        self._waiting.append(member)
        self._arrived.set()

    async def _loop(self) -> None:
        while True:
            if not self._waiting:
                if self._stopping:
                    return
                self._arrived.clear()
                await self._arrived.wait()
                # Callers that submit in this iteration of the event loop share the batch.
                await asyncio.sleep(0)
                continue
            batch = self._next_batch()
            try:
                await self._commit(batch)
            except Exception as error:  # noqa: BLE001 - logged, and raised in the waiting callers
                # Imported here: processes that only read or accept runs start faster without it.
                import structlog

                structlog.get_logger(__name__).exception("commit_failed", members=len(batch))
                for member in batch:
                    _refuse(member, error)

    def _next_batch(self) -> list[CommitMember]:
        batch: list[CommitMember] = []
        size = characters = 0
        while self._waiting:
            member = self._waiting[0]
            if not member.answer.done():
                size += member.size
                characters += member.characters
                if batch and (size > BATCH_SIZE or characters > BATCH_CHARACTERS):
                    break
                batch.append(member)
            self._waiting.popleft()
        return batch

    async def _commit(self, batch: list[CommitMember]) -> None:
        """Commit a batch, halving it around a member that the database rejects."""
        if not batch:
            return
        try:
            result = await self._commit_with_retries(batch)
        except Unavailable as error:
            for member in batch:
                _refuse(member, error)
        except Exception as error:  # noqa: BLE001 - the verdict on one member, found below
            if len(batch) == 1:
                _refuse(batch[0], error)
                return
            middle = len(batch) // 2
            await self._commit(batch[:middle])
            await self._commit(batch[middle:])
        else:
            self._deliver(batch, result)

    async def _commit_with_retries(self, batch: list[CommitMember]) -> CommitResult:
        """Commit, and wait for an unavailable database until the latest deadline of the members."""
        patience = max(member.give_up_at for member in batch)
        result = CommitResult()

        async def work(session: Session) -> CommitResult:
            nonlocal result
            result = await _store(session, batch, self._sharing)
            return result

        def keep(uncommitted: CommitResult) -> None:
            nonlocal result
            result = uncommitted

        mark: str | None = None
        while True:
            try:
                if mark is not None:
                    if await self._database.was_committed(mark):
                        return result
                    mark = None
                    batch[:] = [member for member in batch if not member.answer.done()]
                    if not batch:
                        return CommitResult()
                accepts = [member for member in batch if isinstance(member, AcceptMember)]
                if len(accepts) == len(batch):
                    at_once = await self._accept_at_once(accepts, keep)
                    if at_once is not None:
                        return at_once
                return await self._database.transact(work)
            except CommitInDoubt as doubt:
                # Without a mark nothing was written, so nothing can be stored twice.
                mark = doubt.mark
            except Unavailable as error:
                if time.monotonic() + _PAUSE_SECONDS > patience:
                    raise
                for member in batch:
                    if member.give_up_at < time.monotonic():
                        _refuse(member, error)
                if mark is None:
                    # A member that has failed must not be stored any more. After a commit in doubt all members stay: if
                    # the transaction was committed, its result is for all of them.
                    batch[:] = [member for member in batch if not member.answer.done()]
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _accept_at_once(
        self, batch: list[AcceptMember], keep: Callable[[CommitResult], None]
    ) -> CommitResult | None:
        """Store the runs in one round trip if possible; with concurrency limits in a short transaction.

        `keep` gets the result before the commit of that transaction, which may be in doubt.
        """
        new_runs = [run for member in batch for run in member.runs]
        if not stand_alone(new_runs):
            return None
        limited = any(run.limits for run in new_runs)
        store = accept_alone
        tenants = {run.tenant for run in new_runs}
        if not tenants.isdisjoint(self._sharing) or not (limited or tenants.isdisjoint(self._not_alone)):
            if limited or self._database.dialect == "sqlite" or not is_plain(new_runs) or self._must_read_clocks():
                return None
            store = accept_shared
        elif not limited and len(new_runs) > 1 and self._database.dialect == "postgresql" and are_alike(new_runs):
            store = accept_alike
        failpoint("accept.before_commit")
        if limited:
            stored = await self._accept_alike_limited(new_runs)
            if stored is None:
                stored = await accept_limited(self._database, new_runs, lambda early: keep(_result_of(batch, early)))
        else:
            stored = await store(self._database, new_runs)
            self._note_refused(tenants, alone=store is not accept_shared, refused=stored is None)
        return None if stored is None else _result_of(batch, stored)

    async def _accept_alike_limited(self, new_runs: Sequence[NewRun]) -> Mapping[str, Accepted] | None:
        """Store runs with one concurrency key each without a transaction, unless a recent try has stored nothing."""
        if self._database.dialect != "postgresql" or time.monotonic() < self._alike_at or not are_alike(new_runs):
            return None
        limits = alike_limits(new_runs)
        if limits is None:
            return None
        stored = await accept_alike(self._database, new_runs, limits)
        if stored is None:
            self._alike_at = time.monotonic() + _ALIKE_PAUSE_SECONDS
        return stored

    def _note_refused(self, tenants: set[str], *, alone: bool, refused: bool) -> None:
        """Note the tenants whose runs `accept_alone` cannot store, so that the next try uses another statement."""
        if refused and alone and self._database.dialect != "sqlite":
            self._not_alone |= tenants
        elif refused:
            self._not_alone -= tenants

    def _must_read_clocks(self) -> bool:
        """Return True once a minute, when an accept has to read the clocks of shared lanes in a transaction."""
        now = time.monotonic()
        if now - self._clocks_read_at < CLOCK_SECONDS:
            return False
        self._clocks_read_at = now
        return True

    def _deliver(self, batch: list[CommitMember], result: CommitResult) -> None:
        self.commits += 1
        self.members += len(batch)
        metrics.COMMITS.add()
        metrics.BATCH_SIZE.observe(sum(member.size for member in batch))
        ready = {item.lane for item in result.released if item.status is Status.QUEUED}
        finished = False
        waits_us = list[int]()
        accepts = iter(result.accepted)
        for member in batch:
            if isinstance(member, AcceptMember):
                verdicts = next(accepts)
                ready.update(
                    verdict.lane
                    for verdict in verdicts
                    if not isinstance(verdict, Exception) and verdict.status is Status.QUEUED
                )
                metrics.ACCEPTS.add(len(verdicts))
                waits_us += _count_verdicts(verdicts)
                if not member.answer.done():
                    member.answer.set_result(verdicts)
                failpoint("accept.committed")
            else:
                finished = finished or member.entry.finish is not None
                verdict = result.recorded.get((member.entry.run_id, member.entry.attempt))
                if any(entry is member.entry for entry in result.late):
                    verdict = None
                if verdict is not None and verdict.status is Status.QUEUED and member.entry.finish is not None:
                    ready.add(member.entry.lane)
                if member.answer.done():
                    continue
                if verdict is None:
                    metrics.FENCED_WRITES.add()
                    member.answer.set_exception(_Lost(member.entry))
                else:
                    member.answer.set_result(verdict)
        if result.recorded:
            failpoint("finish.committed" if finished else "record.committed")
        if ready:
            self._ring(ready)
        notices = [verdict.notice for verdict in result.recorded.values() if verdict.notice.lines]
        notices += [Notice(item.run_id, item.last_seq) for item in result.released]
        if notices:
            self._publish(notices)
        delays_us = [delay_us for member in batch for delay_us in member.delays_us]
        delays_us += waits_us
        if delays_us:
            self._report_timer(min(delays_us) / 1_000_000)


def _result_of(batch: Iterable[AcceptMember], stored: Mapping[str, Accepted]) -> CommitResult:
    return CommitResult(accepted=[[stored[run.id] for run in member.runs] for member in batch])


def in_batches(new_runs: Iterable[NewRun]) -> Iterator[list[NewRun]]:
    """Yield the runs in order, in batches for one transaction each."""
    batch: list[NewRun] = []
    characters = 0
    for run in new_runs:
        characters += len(run.input)
        if batch and (len(batch) == BATCH_SIZE or characters > BATCH_CHARACTERS):
            yield batch
            batch, characters = [], len(run.input)
        batch.append(run)
    if batch:
        yield batch


def _count_verdicts(verdicts: Sequence[Verdict]) -> list[int]:
    """Count new runs and the outcomes of flow control; return the times after which delayed runs are due."""
    waits_us: list[int] = []
    new_runs = 0
    for verdict in verdicts:
        count_flow_control(verdict)
        if isinstance(verdict, Accepted):
            new_runs += not verdict.replayed
            if verdict.due_in_us is not None:
                waits_us.append(verdict.due_in_us)
    metrics.RUNS_ACCEPTED.add(new_runs)
    return waits_us


class _Lost(LeaseLost):
    """The fence rejected an entry."""

    def __init__(self, entry: RecordEntry) -> None:
        super().__init__(f"Run {entry.run_id} is no longer attempt {entry.attempt}'s; its writes are rejected.")


async def _store(session: Session, batch: Sequence[CommitMember], sharing: MutableSet[str]) -> CommitResult:
    result = CommitResult()
    accepts = [member for member in batch if isinstance(member, AcceptMember)]
    entries, result.late = merge_entries([member.entry for member in batch if isinstance(member, RecordMember)])
    new_runs = [run for member in accepts for run in member.runs]
    await session.lock(
        exclusive=[
            *accept_locks(new_runs),
            *key_locks(entry.ordering_key for entry in entries if entry.finish is not None),
        ]
    )
    if parents := parents_of(new_runs):
        # Parents are locked together with the runs of the entries, so that all transactions lock runs in one order.
        await lock_in_order(session, {*parents, *(entry.run_id for entry in entries)})
    if new_runs:
        sizes = [member.size for member in accepts]
        verdicts = iter(await accept(session, new_runs, sizes, sharing, holds_limits=True))
        result.accepted = [[next(verdicts) for _ in member.runs] for member in accepts]
        failpoint("accept.before_commit")
    elif accepts:
        result.accepted = [[] for _ in accepts]
    if entries:
        # Accepts come first: a run accepted behind a key that is freed now must be seen by the release.
        result.recorded, result.released = await record(session, entries)
        finishes = any(entry.finish is not None for entry in entries)
        failpoint("finish.before_commit" if finishes else "record.before_commit")
    return result


def _refuse(member: CommitMember, error: Exception) -> None:
    if member.answer.done():
        return
    if isinstance(error, RunlaneError):
        member.answer.set_exception(error)
    else:
        refused = StorageRefused(f"The database rejected the content: {type(error).__name__}: {error}")
        refused.__cause__ = error
        member.answer.set_exception(refused)
