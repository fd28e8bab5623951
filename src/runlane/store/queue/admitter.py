"""The admitter: admit waiting runs after each commit of this process that freed slots of concurrency limits.

The database seam calls `notify` after such a commit, whichever component made it. If the process ends before the runs
are admitted, the maintenance service of any process finds them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

import structlog

from runlane.domain.events import Notice
from runlane.errors import RunNotFound, Unavailable, WrongState
from runlane.failpoints import failpoint
from runlane.store.queue.admission import KEYS_AT_ONCE, Admission, admit
from runlane.store.queue.run_changes import RunChange, cancel_run
from runlane.store.sql.database import Database, Session, ignore_freed

log = structlog.get_logger(__name__)

_PAUSE_SECONDS = 0.1
# The actor of cancellations by a limit with the strategy cancel_running.
ACTOR = "concurrency_limit"


class Admitter:
    """After each commit, `ring` gets the lanes in which runs became ready, and `publish` the notices for readers."""

    def __init__(
        self,
        database: Database,
        ring: Callable[[Iterable[str]], None],
        publish: Callable[[Sequence[Notice]], None] = lambda notices: None,
        signal_cancel: Callable[[str], None] = lambda run_id: None,
    ) -> None:
        self._database = database
        self._ring = ring
        self._publish = publish
        self._signal_cancel = signal_cancel
        self._freed: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        """Admit runs from now on. A process without limits has no task for them."""
        self._stopping = False
        self._database.on_freed = self.notify

    async def stop(self) -> None:
        """Admit the runs for which slots were freed before, then stop."""
        self._stopping = True
        self._database.on_freed = ignore_freed
        if self._task is not None:
            await self._task

    def notify(self, keys: Collection[str]) -> None:
        """Admit the waiting runs of these limits soon."""
        self._freed |= set(keys)
        if self._task is None:
            self._task = asyncio.create_task(self._admit_freed(), name="runlane-admitter")

    async def admit(self, keys: Collection[str]) -> None:
        """Admit the waiting runs of these limits now."""
        left = set(keys)
        while left:
            chosen = sorted(left)[:KEYS_AT_ONCE]
            outcome = await self._database.transact(_in_transaction(chosen))
            left -= set(chosen)
            left |= outcome.again
            self._report(outcome)
            for run_id in outcome.evicted:
                await self._cancel(run_id)

    async def _admit_freed(self) -> None:
        try:
            while self._freed:
                # One pass for all that the transactions of this process have freed meanwhile.
                keys, self._freed = self._freed, set()
                try:
                    await self.admit(keys)
                except Unavailable:
                    if self._stopping:
                        return
                    self._freed |= keys
                    await asyncio.sleep(_PAUSE_SECONDS)
                except Exception:
                    # The maintenance service repeats the pass.
                    log.exception("admission_failed", limits=len(keys))
        finally:
            self._task = None

    def _report(self, outcome: Admission) -> None:
        if outcome.admitted:
            failpoint("admit.committed")
            self._ring({run.lane for run in outcome.admitted})
            self._publish([Notice(run.run_id, run.last_seq) for run in outcome.admitted])

    async def _cancel(self, run_id: str) -> None:
        try:
            change: RunChange = await cancel_run(self._database, run_id, actor=ACTOR)
        except (RunNotFound, WrongState):
            return  # it has ended meanwhile
        self._signal_cancel(run_id)
        self._ring(change.ready_lanes)
        self._publish(change.notices)


def _in_transaction(keys: Sequence[str]) -> Callable[[Session], Awaitable[Admission]]:
    async def work(session: Session) -> Admission:
        outcome = await admit(session, keys)
        if outcome.admitted:
            failpoint("admit.before_commit")
        return outcome

    return work
