"""Changes of a run by an operator, in every state: done, or refused with the state named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest

from runlane import RunNotFound, WrongState
from runlane.domain.dead_letter import LetterState
from runlane.domain.run import Run, Status
from runlane.store.failures.letters import LetterFilter, list_letters, read_letter
from runlane.store.queue.events import read_events
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.queue.revival import retry_run
from runlane.store.queue.run_changes import RunChange, approve_run, cancel_run, release_run, set_priority
from runlane.store.queue.runs import read_attempts
from runlane.store.queue.search import RunFilter, search_runs
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.database import Database, Session
from runlane.store.sql.statement import Dialect, Row, Statement
from tests.harness import Store, dead, failed_once, new_run

T = TypeVar("T")


async def run_in(store: Store, status: Status) -> str:
    """A run in this state, brought there by what the system does."""
    match status:
        case Status.AWAITING_APPROVAL:
            return await store.add(hold=True)
        case Status.SCHEDULED:
            return await store.add(delay_us=600_000_000)
        case Status.BLOCKED:
            await store.add(ordering_key="k", target="other")
            return await store.add(ordering_key="k")
        case Status.QUEUED:
            return await store.add()
        case Status.PAUSED:
            run_id = await store.add()
            await store.finish(await store.claim_one(), Finish(AttemptOutcome.HANDED_BACK, Status.PAUSED))
            return run_id
        case Status.CANCELLED:
            run_id = await store.add()
            await cancel_run(store.database, run_id)
            return run_id
        case Status.RUNNING:
            run_id = await store.add()
            await store.claim_one()
            return run_id
        case Status.COMPLETED | Status.FAILED:
            run_id = await store.add()
            await store.finish(await store.claim_one(), dead() if status is Status.FAILED else None)
            return run_id


VERBS: dict[str, Callable[[Database, str], Awaitable[RunChange]]] = {
    "approve": approve_run,
    "retry": retry_run,
    "release": release_run,
    "priority": lambda database, run_id: set_priority(database, run_id, 7),
}
ALLOWED: dict[tuple[str, Status], Status] = {
    ("approve", Status.AWAITING_APPROVAL): Status.QUEUED,
    ("retry", Status.FAILED): Status.QUEUED,
    **{("priority", status): status for status in Status if status.waiting},
}


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("verb", VERBS)
async def test_every_change_in_every_state(store: Store, verb: str, status: Status) -> None:
    run_id = await run_in(store, status)
    assert await store.status(run_id) is status
    expected = ALLOWED.get((verb, status))
    if expected is not None:
        change = await VERBS[verb](store.database, run_id)
        assert change.status is expected
        assert await store.status(run_id) is expected
        assert change.ready_lanes == (("default",) if expected is Status.QUEUED else ())
    else:
        before = await store.contents()
        with pytest.raises(WrongState) as caught:
            await VERBS[verb](store.database, run_id)
        assert f"Run {run_id} is {status.value}. Only " in str(caught.value)
        assert await store.contents() == before
    await store.check_stream(run_id)


@pytest.mark.parametrize("status", Status)
async def test_cancel_in_every_state(store: Store, status: Status) -> None:
    run_id = await run_in(store, status)
    if status in (Status.COMPLETED, Status.FAILED):
        before = await store.contents()
        with pytest.raises(WrongState, match=f"Run {run_id} is {status.value}. Only a run that has not ended"):
            await cancel_run(store.database, run_id)
        assert await store.contents() == before
        return
    change = await cancel_run(store.database, run_id)
    run = await store.get(run_id)
    if status.terminal:
        assert change.status is run.status is status
    elif status is Status.RUNNING:
        assert change.status is run.status is Status.RUNNING
        assert run.cancel_requested_at_us is not None
        assert change.worker_id == run.worker_id
        assert (await store.event_types(run_id))[-1] == "cancel_requested"
    else:
        assert change.status is run.status is Status.CANCELLED
        assert run.ended_at_us is not None
    await store.check_stream(run_id)
    before = await store.contents()
    again = await cancel_run(store.database, run_id)
    assert again.status is run.status
    assert await store.contents() == before, "a repetition is harmless"
    if status is not Status.RUNNING:
        assert run_id not in {claimed.run_id for claimed in await store.claim(await store.worker())}


@pytest.mark.parametrize("verb", [*VERBS, "cancel"])
async def test_a_run_that_is_not_kept_is_not_found(store: Store, verb: str) -> None:
    change = VERBS.get(verb, cancel_run)
    with pytest.raises(RunNotFound, match='The run "run_unknown" does not exist'):
        await change(store.database, "run_unknown")
    with pytest.raises(RunNotFound):
        await store.get("run_unknown")


async def test_an_approved_run_waits_for_its_time(store: Store) -> None:
    run_id = await store.add(hold=True, delay_us=600_000_000)
    assert (await approve_run(store.database, run_id)).status is Status.SCHEDULED
    assert (await store.event_types(run_id))[-1] == "approved"


async def test_a_retried_run_has_its_attempts_again_and_keeps_its_history(store: Store) -> None:
    run_id = await store.add(max_attempts=1)
    await store.finish(await store.claim_one(), dead())
    assert await read_letter(store.database, run_id) is not None
    await retry_run(store.database, run_id)
    run = await store.get(run_id)
    assert (run.status, run.failures, run.losses, run.attempt) == (Status.QUEUED, 0, 0, 1)
    assert run.ended_at_us is run.error is None
    letter = await read_letter(store.database, run_id)
    assert letter is not None
    assert letter.state is LetterState.RETRYING
    claimed = await store.claim_one()
    assert claimed.attempt == 2
    await store.finish(claimed, dead("again"))
    letter = await read_letter(store.database, run_id)
    assert letter is not None
    assert [attempt.attempt for attempt in letter.attempts] == [1, 2]
    assert (letter.state, letter.times_died, letter.message) == (LetterState.OPEN, 2, "again")
    await store.check_stream(run_id)


async def test_an_old_cancel_does_not_affect_a_retried_run(store: Store) -> None:
    """It was cancelled too late, failed by itself, and is retried."""
    run_id = await store.add()
    claimed = await store.claim_one()
    await cancel_run(store.database, run_id)
    await store.finish(claimed, dead())
    await retry_run(store.database, run_id)
    assert (await store.get(run_id)).cancel_requested_at_us is None
    await store.finish(await store.claim_one(), failed_once())
    assert await store.status(run_id) is Status.SCHEDULED


class Interleaved:
    """A database that lets something else happen right after a named statement."""

    def __init__(self, database: Database, after: str, then: Callable[[], Awaitable[Any]]) -> None:
        self._database = database
        self.after = after
        self.then: Callable[[], Awaitable[Any]] | None = then
        self.dialect: Dialect = database.dialect
        self.steady_since = database.steady_since
        self.on_freed = database.on_freed
        self.duplicates = database.duplicates

    async def transact(self, work: Callable[[Session], Awaitable[T]]) -> T:
        return await self._database.transact(lambda session: work(_Interleaved(session, self)))

    async def was_committed(self, mark: str) -> bool:
        return await self._database.was_committed(mark)

    async def execute_single(
        self, compound: CompoundWrite, members: Sequence[Sequence[Any]], /, **params: Any
    ) -> Sequence[Row]:
        return await self._database.execute_single(compound, members, **params)

    async def query(self, statement: Statement, /, **params: Any) -> Sequence[Row]:
        return await self._database.query(statement, **params)

    async def close(self) -> None:
        await self._database.close()

    def forget(self) -> None:
        self._database.forget()


class _Interleaved:
    def __init__(self, session: Session, owner: Interleaved) -> None:
        self._session = session
        self._owner = owner
        self.dialect: Dialect = session.dialect
        self.lock = session.lock
        self.try_lock = session.try_lock
        self.texts = session.texts
        self.write = session.write
        self.freed = session.freed

    async def fetch(
        self, statement: Statement, members: Sequence[Sequence[Any]] | None = None, /, **params: Any
    ) -> Sequence[Row]:
        rows = await self._session.fetch(statement, members, **params)
        if statement.name == self._owner.after and self._owner.then is not None:
            then, self._owner.then = self._owner.then, None
            await then()
        return rows


async def test_a_cancel_is_not_lost_while_the_run_is_put_back(store: Store) -> None:
    """The run leaves `running` between the two statements of a cancel; it must still be cancelled."""
    if store.database.dialect == "sqlite":
        return  # transactions there are alone by construction, so there is no moment in between
    run_id = await store.add()
    claimed = await store.claim_one()
    putting_back: list[asyncio.Task[Any]] = []

    async def put_back() -> None:
        putting_back.append(asyncio.create_task(store.finish(claimed, failed_once())))
        await asyncio.wait(putting_back, timeout=0.5)

    await cancel_run(Interleaved(store.database, "cancel_waiting", put_back), run_id)
    await asyncio.gather(*putting_back)
    assert await store.status(run_id) is Status.CANCELLED
    await store.check_stream(run_id)


async def test_priority_moves_a_waiting_run(store: Store) -> None:
    await store.add()
    late = await store.add()
    await set_priority(store.database, late, 100)
    assert (await store.claim_one()).run_id == late
    assert (await store.get(late)).priority == 100


async def test_a_dead_letter_keeps_input_attempts_and_tracebacks(store: Store) -> None:
    run_id = await store.add(input='{"path":"a.png"}', lane="default")
    worker = await store.worker()
    await store.finish(await store.claim_one(worker), failed_once(delay_us=1))
    await store.sql("update runs set status = 'queued'")
    await store.finish(await store.claim_one(worker), dead("broken"))
    letter = await read_letter(store.database, run_id)
    assert letter is not None
    assert letter.input == {"path": "a.png"}
    assert (letter.target, letter.lane) == ("job", "default")
    assert letter.error == {"type": "Error", "message": "broken", "traceback": "tb"}
    errors = [attempt.error or {} for attempt in letter.attempts]
    assert [error["message"] for error in errors] == ["again", "broken"]
    assert all(error["traceback"] == "tb" for error in errors)
    assert [attempt.worker_id for attempt in letter.attempts] == [worker, worker]
    assert await read_letter(store.database, "run_unknown") is None


async def test_dead_letters_are_listed_newest_first(store: Store) -> None:
    ids: list[str] = []
    worker = await store.worker()
    for _ in range(3):
        ids.append(await store.add())
        await store.finish(await store.claim_one(worker), dead())
    page = await list_letters(store.database, LetterFilter())
    assert [letter.run_id for letter in page.dead_letters] == ids[::-1]
    assert (page.open, page.next_cursor) == (3, None)
    first = await list_letters(store.database, LetterFilter(tenant="default"), limit=2)
    rest = await list_letters(store.database, LetterFilter(tenant="default"), limit=2, cursor=first.next_cursor)
    assert [letter.run_id for letter in (*first.dead_letters, *rest.dead_letters)] == ids[::-1]


async def found(store: Store, **filters: Any) -> list[Run]:
    return (await search_runs(store.database, RunFilter(**filters))).runs


async def test_runs_are_listed_by_page_and_filter(store: Store) -> None:
    requests = [new_run(target=f"t{number % 2}", ordering_key="k" if number < 3 else None) for number in range(9)]
    await store.add_all(*requests)
    newest_first = [request.id for request in reversed(requests)]
    pages: list[str] = []
    before: str | None = None
    while (page := await search_runs(store.database, RunFilter(), below=before, limit=4)).runs:
        pages += [run.id for run in page.runs]
        before = page.cursor
        if before is None:
            break
    assert pages == newest_first
    assert {run.target for run in await found(store, target="t1")} == {"t1"}
    assert len(await found(store, ordering_key="k")) == 3
    assert len(await found(store, statuses=(Status.BLOCKED,))) == 2
    assert len(await found(store, statuses=(Status.BLOCKED,), target="t0", lane="default")) == 1
    assert await found(store, lane="nowhere") == []
    assert all(run.input is None for run in await found(store))


async def test_events_are_read_after_a_number(store: Store) -> None:
    run_id = await store.add()
    await store.finish(await store.claim_one())
    assert [event.seq for event in await read_events(store.database, run_id, after=1)] == [2, 3]
    assert [event.seq for event in await read_events(store.database, run_id, limit=1)] == [1]
    assert await read_events(store.database, run_id, after=3) == []
    assert await read_attempts(store.database, "run_unknown") == []
