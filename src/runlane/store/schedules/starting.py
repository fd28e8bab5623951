"""Start the runs of slots: accept them, or record why one was not accepted.

A prepared run is stored with a buffered slot, so that the transaction that ends the run before it can accept it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from runlane.domain.concurrency import ConcurrencyLimit
from runlane.domain.flow_keys import RunFlow
from runlane.domain.run import Accepted
from runlane.domain.text import clean_text, dump_json, load_json
from runlane.errors import RunlaneError, Unavailable
from runlane.store.chat.posting import post_in
from runlane.store.queue.accept import NewRun, accept
from runlane.store.sql.database import Session
from runlane.store.webhooks.run_webhooks import RunWebhook

if TYPE_CHECKING:
    from runlane.store.queue.run_changes import RunChange
    from runlane.store.threads.thread_start import ThreadStart

_MAX_DETAIL: Final = 2000


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run to accept for a slot. For a chat turn, `session_id`, `agent` and `message` are set.

    The run of a cron enters its thread as `thread` describes.
    """

    run: NewRun
    session_id: str | None = None
    agent: str = ""
    message: str = ""
    thread: ThreadStart | None = None

    def to_text(self) -> str:
        """Return it as it is stored with a buffered slot."""
        thread = None if self.thread is None else self.thread.to_dict()
        return dump_json([list(self.run), self.session_id, self.agent, self.message, thread])

    @classmethod
    def of_text(cls, text: str) -> PreparedRun:
        """Return a stored one."""
        # Slots that an earlier version buffered have no thread.
        fields, session_id, agent, message, *rest = load_json(text)
        run = NewRun(*fields)
        run = run._replace(
            webhook=None if run.webhook is None else RunWebhook(cast("dict[str, str]", run.webhook)["url"]),
            tags=tuple(run.tags),
            flow=RunFlow.of_list(run.flow),
            limits=tuple(ConcurrencyLimit(*limit) for limit in run.limits),
        )
        if not rest or rest[0] is None:
            return cls(run, session_id, agent, message)
        from runlane.store.threads.thread_start import ThreadStart

        return cls(run, thread=ThreadStart.from_dict(run, rest[0]))


@dataclass(frozen=True, slots=True)
class StartFailure:
    """The reason why a slot started no run: a code for programs, and the error for people."""

    code: str
    detail: str


def start_failure(error: RunlaneError) -> StartFailure:
    """Return the recorded form of an error."""
    return StartFailure(error.code, clean_text(str(error), _MAX_DETAIL))


async def start_runs(
    session: Session, prepared: Sequence[PreparedRun], changes: list[RunChange] | None = None
) -> list[Accepted | StartFailure]:
    """Accept runs, each separately: a refused run does not affect the others. The caller holds their locks.

    `changes` gets the changes of the runs that a new run of their thread interrupts.
    """
    plain = [item.run for item in prepared if item.session_id is None and item.thread is None]
    verdicts = iter(await accept(session, plain, [1] * len(plain)) if plain else [])
    started: list[Accepted | StartFailure] = []
    for item in prepared:
        if item.thread is not None:
            verdict = await _enter(session, item.thread, [] if changes is None else changes)
        else:
            verdict = next(verdicts) if item.session_id is None else await _post(session, item, item.session_id)
        if isinstance(verdict, RunlaneError):
            started.append(start_failure(verdict))
        elif verdict.run_id:
            started.append(verdict)
        else:
            started.append(StartFailure(verdict.outcome.value, f"Flow control has {verdict.outcome} the start."))
    return started


async def _enter(session: Session, thread: ThreadStart, changes: list[RunChange]) -> Accepted | RunlaneError:
    # Imported here: most processes have no crons, and the modules of threads need memory.
    from runlane.store.threads.starting import check_start, start_in

    try:
        # Before the run is accepted, because the transaction commits the slots of other schedules, too.
        await check_start(session, thread)
        (started,) = await start_in(session, [thread], holds_limits=False)
    except Unavailable:
        raise
    except RunlaneError as error:
        return error
    changes.extend(started.changes)
    return started.accepted


async def _post(session: Session, item: PreparedRun, session_id: str) -> Accepted | RunlaneError:
    try:
        posted = await post_in(
            session, item.run, session_id=session_id, agent=item.agent, message=item.message, is_new=False
        )
    except Unavailable:
        raise
    except RunlaneError as error:
        return error
    return posted.accepted
