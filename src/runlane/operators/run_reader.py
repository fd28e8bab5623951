"""RunReader: the methods that read runs from the database. `Client` has the same ones over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final

from runlane import queries
from runlane.domain.events import Event, LiveType
from runlane.domain.lane import Lane
from runlane.domain.log_pages import LOG_PAGE, read_log_lines
from runlane.domain.run import Run, Status
from runlane.domain.timestamps import parse_timestamp
from runlane.domain.views import Attempt, LiveEvent, LogLine, Logs, StartResult, StatusCount, Step, WorkerInfo
from runlane.domain.wait import Question, QuestionKind
from runlane.errors import Unavailable
from runlane.store.orchestration.inbox import InboxFilter
from runlane.store.queue.lanes import list_lanes
from runlane.store.queue.runs import find_run
from runlane.store.queue.search import RunFilter, find_standing, search_runs
from runlane.store.queue.workers import list_workers
from runlane.store.sql.database import Database

_WAIT_POLL_SECONDS: Final = 0.05
_WAIT_AWAY_SECONDS: Final = 60.0
# How often the database is polled for new events.
_STREAM_POLL_SECONDS: Final = 0.2
_PAGE: Final = 1000


class RunReader:
    """Reads runs of every tenant from the database that `database` returns."""

    async def database(self) -> Database:
        """Return the open database."""
        raise NotImplementedError

    async def get(self, run_id: str) -> Run:
        """Return a run with its input, its result or error, its state, its children and what it waits for."""
        return await queries.get_run(await self.database(), run_id)

    async def wait(self, run_id: str, timeout: float | None = None) -> Run:
        """Return the run once it has ended. TimeoutError if that takes longer than `timeout` seconds.

        An unavailable database is retried for a minute.
        """
        database = await self.database()
        run: Run | None = None
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                pause = _WAIT_POLL_SECONDS
                answered_at = asyncio.get_running_loop().time()
                while True:
                    try:
                        run = await find_run(database, run_id)
                        if run.status.terminal:
                            return await queries.get_run(database, run_id)
                    except Unavailable:
                        if asyncio.get_running_loop().time() - answered_at > _WAIT_AWAY_SECONDS:
                            raise
                    else:
                        answered_at = asyncio.get_running_loop().time()
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, 1.0)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(_not_ended(run_id, run, timeout or 0.0)) from None

    async def list(
        self,
        *,
        status: Status | str | Sequence[Status | str] | None = None,
        target: str | None = None,
        lane: str | None = None,
        ordering_key: str | None = None,
        tenant: str | None = None,
        text: str | None = None,
        id_prefix: str | None = None,
        tag: str | Sequence[str] | None = None,
        parent: str | None = None,
        schedule_id: str | None = None,
        forked_from: str | None = None,
        worker: str | None = None,
        session: str | None = None,
        error_code: str | None = None,
        definition: str | None = None,
        roots: bool = False,
        min_duration_seconds: float | None = None,
        max_duration_seconds: float | None = None,
        min_cost_usd: float | None = None,
        max_cost_usd: float | None = None,
        cursor: str | None = None,
        page: int = 100,
    ) -> AsyncGenerator[Run]:
        """Yield runs, newest first, without input and result, read page by page.

        Runs have any of the statuses and all of the tags. An ordering key belongs to one tenant: to the default one if
        no tenant is given. `roots` leaves out runs that other runs started as tools.
        """
        wanted = RunFilter(
            statuses=tuple(Status(one) for one in ([status] if isinstance(status, str) else status or ())),
            target=target,
            lane=lane,
            tenant=tenant,
            ordering_key=ordering_key,
            text=text,
            id_prefix=id_prefix,
            tags=(tag,) if isinstance(tag, str) else tuple(tag or ()),
            parent=parent,
            schedule_id=schedule_id,
            forked_from=forked_from,
            worker_id=worker,
            session_id=session,
            error_code=error_code,
            definition=definition,
            roots_only=roots,
            min_duration_us=None if min_duration_seconds is None else round(min_duration_seconds * 1e6),
            max_duration_us=None if max_duration_seconds is None else round(max_duration_seconds * 1e6),
            min_cost_usd=min_cost_usd,
            max_cost_usd=max_cost_usd,
        )
        while True:
            found = await search_runs(await self.database(), wanted, below=cursor, limit=page)
            for run in await queries.with_usage(await self.database(), found.runs):
                yield run
            cursor = found.cursor
            if cursor is None:
                return

    async def counts(
        self, *, tenant: str | None = None, target: str | None = None, lane: str | None = None
    ) -> Sequence[StatusCount]:
        """Return the number of runs in each status, up to 1,000 of each; without a tenant, of all tenants."""
        # Imported here: its statements take megabytes, and a worker counts no runs.
        from runlane.store.queue.run_counts import count_runs

        return await count_runs(await self.database(), tenant, target=target, lane=lane)

    async def events(self, run_id: str, after: int = 0, limit: int = 1000) -> Sequence[Event]:
        """Return the run's stored events after a number."""
        return await queries.get_events(await self.database(), run_id, after, limit)

    async def stream(self, run_id: str, after: int = 0) -> AsyncGenerator[Event | LiveEvent]:
        """Yield every stored event after a number until the run has ended. The database is polled for new ones.

        Where retention has deleted events, a LiveEvent `truncated` names the first one that follows.
        """
        database = await self.database()
        while True:
            # The run is read before its events, so all events up to its last_seq are read in this round.
            run = await find_standing(database, run_id)
            for event in await queries.get_events(database, run_id, after, _PAGE):
                if event.seq != after + 1:
                    yield LiveEvent(run_id, LiveType.TRUNCATED, 0, {"first_seq": event.seq})
                after = event.seq
                yield event
            if after >= run.last_seq and run.status.terminal:
                return
            if after >= run.last_seq:
                await asyncio.sleep(_STREAM_POLL_SECONDS)

    async def logs(self, run_id: str, since: int = 0, limit: int = 100, event: str | None = None) -> Logs:
        """Return a page of the run's log from an index on: every event as text, or those of one type, such as `log`."""
        database = await self.database()
        return await queries.get_logs(database, run_id, await find_standing(database, run_id), since, limit, event)

    def log_lines(
        self, run_id: str, since: int = 0, *, event: str | None = None, follow: bool = False
    ) -> AsyncGenerator[LogLine]:
        """Yield every line of the run's log; with `follow` until the run has ended."""
        return read_log_lines(lambda index: self.logs(run_id, index, LOG_PAGE, event), since, follow=follow)

    async def attempts(self, run_id: str) -> Sequence[Attempt]:
        """Return the run's attempts, each with its worker, times, outcome and error."""
        return await queries.get_attempts(await self.database(), run_id)

    async def get_start(self, run_id: str, start_id: str) -> StartResult:
        """Return one start that a batch has collected, with its part of the result."""
        return await queries.get_start(await self.database(), run_id, start_id)

    async def steps(self, run_id: str) -> Sequence[Step]:
        """Return the recorded steps of the run, in order."""
        return await queries.get_steps(await self.database(), run_id)

    async def waits(self, run_id: str) -> Sequence[Question]:
        """Return what a run waits for, oldest first, including answers that no worker has read yet."""
        return await queries.get_waits(await self.database(), run_id)

    async def inbox(
        self,
        *,
        tenant: str | None = None,
        about: QuestionKind | str | None = None,
        target: str | None = None,
        agent: str | None = None,
        tool: str | None = None,
        asked_before: str | None = None,
        page: int = 100,
    ) -> AsyncGenerator[Question]:
        """Yield the open questions to people, oldest first, read page by page; without a tenant, of all tenants.

        `asked_before` is a time in RFC 3339.
        """
        cursor: str | None = None
        kinds = () if about is None else (QuestionKind(about),)
        before_us: int | None = parse_timestamp(asked_before)
        wanted = InboxFilter(tenant, target, asked_before_us=before_us, kinds=kinds, agent=agent, tool=tool)
        while True:
            found = await queries.get_inbox(await self.database(), wanted, cursor, page)
            for question in found.questions:
                yield question
            cursor = found.next_cursor
            if cursor is None:
                return

    async def lanes(self) -> Sequence[Lane]:
        """Return the lanes with their running and queued runs."""
        return await list_lanes(await self.database())

    async def workers(self, *, gone: bool = False) -> Sequence[WorkerInfo]:
        """Return the live workers; with `gone` also those that ended recently."""
        return await list_workers(await self.database(), gone_too=gone)


_STILL: Final[Mapping[Status, str]] = {
    Status.AWAITING_APPROVAL: "Approve it with app.approve().",
    Status.PAUSED: "See app.waits() for what it waits for.",
    Status.QUEUED: "Check that a worker serves its lane and has its task.",
    Status.BLOCKED: "An earlier run with the same ordering key has not ended.",
}


def _not_ended(run_id: str, run: Run | None, timeout: float) -> str:
    if run is None:
        return f"Run {run_id} could not be read within {timeout:g} s: the database did not answer."
    about = f'Run {run_id} ({run.target}) has not ended after {timeout:g} s: its status is "{run.status.value}"'
    hint = _STILL.get(run.status, "Wait longer, or read app.events().")
    return f"{about} in attempt {run.tries} on lane {run.lane}. {hint}"
