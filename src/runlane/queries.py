"""The read model: runs, attempts, steps, events, waits and logs as App, API and CLI return them.

The app, the API and the command line read runs only through this module, so that a reader gets the same answer from
each of them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import orjson

from runlane.domain.events import Event, EventType, StoredEvent
from runlane.domain.ids import run_id_time_us
from runlane.domain.run import Run, RunSummary, Status
from runlane.domain.timestamps import format_timestamp
from runlane.domain.views import Attempt, InboxPage, LogLine, Logs, RunPage, RunStatus, StartResult, Step, StepPage
from runlane.domain.wait import Question, QuestionDetail, QuestionState, question_kind
from runlane.errors import InvalidRequest, NotFound, UnknownDefinition
from runlane.store.definitions import load_pinned
from runlane.store.orchestration.calls import read_totals, read_totals_of
from runlane.store.orchestration.children import read_children
from runlane.store.orchestration.inbox import InboxFilter, find_question, read_inbox
from runlane.store.orchestration.step_starts import read_step_starts
from runlane.store.orchestration.steps import MAX_READ, read_replay_records, read_steps
from runlane.store.orchestration.waiting import explain_wait
from runlane.store.orchestration.waits import Wait, read_waits
from runlane.store.queue.events import read_events, read_last, read_page
from runlane.store.queue.flow_starts import read_batch_starts
from runlane.store.queue.runs import find_run, read_attempts
from runlane.store.queue.search import RunFilter, RunStanding, find_standing, search_runs
from runlane.store.sql.database import Database

_STEP_CURSOR: Final = re.compile(r"([0-9]{1,9}):([^\0]*)", re.DOTALL)
_INBOX_CURSOR: Final = re.compile(r"([0-9]{1,18}):([A-Za-z0-9_-]{1,100}):([^\0]{1,2000})", re.DOTALL)


async def get_run(database: Database, run_id: str) -> Run:
    """Return a run with its input, result, state, waits and children. Raises RunNotFound."""
    run = await find_run(database, run_id)
    if run.status.terminal and not run.has_steps:
        return run
    waits = await read_waits(database, run_id) if run.has_steps and not run.status.terminal else []
    run = replace(run, waiting_reason=await explain_wait(database, run, waits))
    if not run.has_steps:
        return run
    (run,) = await with_usage(database, [run])
    return replace(
        run,
        state=await _state(database, run),
        waiting_for=tuple(question_of(wait) for wait in waits),
        children=tuple(await read_children(database, run_id)),
    )


async def _state(database: Database, run: Run) -> dict[str, Any] | None:
    """Return the state as it was stored with the end, or as the records restore it."""
    if run.state is not None or run.plan is None:
        return run.state
    # A process that only accepts runs does not load the step machine.
    from runlane.orchestration.agent_run import root_of
    from runlane.orchestration.pinned import PinnedDefinitions
    from runlane.orchestration.replay import restore

    try:
        pinned = await load_pinned(database, run.tenant, run.plan["pins"])
    except UnknownDefinition:
        # Without its versions the state cannot be restored. The run itself can still be read.
        return None
    root = root_of(run.target, run.input or {}, PinnedDefinitions.of(pinned))
    records = await read_replay_records(database, run.id)
    # In a thread: hundreds of records may be replayed, and the event loop serves streams meanwhile.
    machine, _ = await asyncio.to_thread(restore, root, run.input or {}, run.plan, [*pinned.values(), root], records)
    return dict(machine.state)


async def list_runs(database: Database, wanted: RunFilter, cursor: str | None = None, limit: int = 50) -> RunPage:
    """Return a page of runs, newest first. An exhausted search window ends a page early, with a cursor."""
    found = await search_runs(database, wanted, below=cursor, limit=limit)
    examined_from = run_id_time_us(found.cursor) if found.truncated and found.cursor is not None else None
    return RunPage(tuple(await with_usage(database, found.runs)), found.cursor, found.truncated, examined_from)


async def with_usage(database: Database, runs: Sequence[Run]) -> list[Run]:
    """Return these runs with the usage of their models. Tasks have none."""
    ids = [run.id for run in runs if run.has_steps]
    if not ids:
        return list(runs)
    totals = await read_totals_of(database, ids)
    return [
        replace(run, total_cost_usd=totals[run.id][0], total_tokens=totals[run.id][1]) if run.has_steps else run
        for run in runs
    ]


async def get_status(database: Database, run_id: str) -> RunStatus:
    """Return the progress of a run and the usage of its models so far."""
    run = await find_run(database, run_id)
    if not run.has_steps:
        return _status(run, None, run.status is Status.PAUSED, 0.0, 0)
    cost_usd, tokens = await read_totals(database, run_id)
    if run.status.terminal:
        return _status(run, None, False, cost_usd, tokens)
    waits = await read_waits(database, run_id)
    asking = [wait for wait in waits if wait.kind == "human" and not (wait.answered or wait.overdue)]
    return _status(run, await _current_step(database, run, asking), bool(asking), cost_usd, tokens)


def _status(run: RunSummary, step: str | None, human: bool, cost_usd: float | None, tokens: int) -> RunStatus:
    return RunStatus(
        run_id=run.id,
        orchestration_id=run.orchestration or run.target,
        status=run.status,
        current_step_id=step,
        waiting_for_human=human,
        worker_id=run.worker_id,
        total_cost_usd=cost_usd,
        total_tokens_used=tokens,
        started_at_us=run.started_at_us,
        ended_at_us=run.ended_at_us,
        attempt=run.attempt,
        tries=run.tries,
        progress=run.progress,
        progress_note=run.progress_note,
        blocked_by=run.blocked_by if isinstance(run, Run) else None,
    )


async def _current_step(database: Database, run: RunSummary, asking: Sequence[Wait]) -> str | None:
    """Return the id of the step with the oldest open question, or else of the step that began last."""
    if run.status is Status.PAUSED and asking:
        return asking[0].step_id
    begun = await read_last(database, run.id, EventType.STEP_START)
    return None if begun is None else orjson.loads(begun.data).get("orch_step_id")


async def get_start(database: Database, run_id: str, start_id: str) -> StartResult:
    """Return one start of a batch with its part of the result. Raises NotFound for a start of another run."""
    run = await find_run(database, run_id)
    if start_id not in _starts(run.input) and start_id not in await read_batch_starts(database, run_id):
        # The input may have been completed between the two reads.
        run = await find_run(database, run_id)
        if start_id not in _starts(run.input):
            raise NotFound(
                f'Run {run_id} has no start "{start_id}". Use the start_id that the response to the start has.'
            )
    part: Any = _object(run.result).get(start_id, run.result)
    return StartResult(run_id, start_id, run.status, part, run.error)


def _starts(given: Mapping[str, Any] | None) -> set[str]:
    """Return the ids of the starts in the input of a batch."""
    body = given or {}
    inner = _object(body.get("input")) if "items" not in body else body
    items = inner.get("items")
    if not isinstance(items, list):
        return set()
    return {str(_object(item).get("start_id")) for item in cast("list[Any]", items)}


async def get_attempts(database: Database, run_id: str) -> list[Attempt]:
    """Return the attempts of a run in order; the running one has no outcome."""
    run = await find_run(database, run_id)
    found = [Attempt(**attempt) for attempt in await read_attempts(database, run_id)]
    if run.status is Status.RUNNING and all(attempt.attempt != run.attempt for attempt in found):
        found.append(Attempt(run.attempt, run.worker_id, run.claimed_at_us, None, None, None))
    return found


async def get_steps(database: Database, run_id: str) -> list[Step]:
    """Return every recorded step of a run, in order."""
    await find_standing(database, run_id)
    found = await read_steps(database, run_id)
    starts = await read_step_starts(database, run_id, [step["path"] for step in found]) if found else {}
    return [_step(step, starts) for step in found]


async def get_step_page(database: Database, run_id: str, cursor: str | None = None, limit: int = MAX_READ) -> StepPage:
    """Return a page of the recorded steps of a run, in order."""
    after = (-1, "")
    if cursor is not None:
        match = _STEP_CURSOR.fullmatch(cursor)
        if match is None:
            raise InvalidRequest("Invalid cursor. Pass the `next_cursor` of the previous page of steps.")
        after = (int(match[1]), match[2])
    found = await read_steps(database, run_id, after=after, limit=limit)
    last = found[-1] if len(found) == limit else None
    following = None if last is None else f"{last['no'] or 0}:{last['path']}"
    starts = await read_step_starts(database, run_id, [step["path"] for step in found]) if found else {}
    return StepPage(run_id, tuple(_step(step, starts) for step in found), following)


def _step(row: Mapping[str, Any], starts: Mapping[str, int]) -> Step:
    fields: dict[str, Any] = {name: value for name, value in row.items() if name != "no"}
    fields |= {"tries": row["tries"] or 0, "tokens": row["tokens"] or 0, "started_at_us": starts.get(row["path"])}
    return Step(**fields)


async def get_events(database: Database, run_id: str, after: int = 0, limit: int = 1000) -> Sequence[Event]:
    """Return the stored events of a run after a number. Raises RunNotFound."""
    found = await read_events(database, run_id, after, limit)
    if not found:
        await find_standing(database, run_id)
    return found


async def get_waits(database: Database, run_id: str) -> list[Question]:
    """Return the waits of a run, oldest first, including answers that no worker has read yet."""
    await find_standing(database, run_id)
    return [question_of(wait) for wait in await read_waits(database, run_id)]


async def get_inbox(database: Database, wanted: InboxFilter, cursor: str | None = None, limit: int = 100) -> InboxPage:
    """Return a page of the open questions to people, oldest first; of every tenant without one."""
    after: tuple[int, str, str] | None = None
    if cursor is not None:
        match = _INBOX_CURSOR.fullmatch(cursor)
        if match is None:
            raise InvalidRequest("Invalid cursor. Pass the `next_cursor` of the previous page of the inbox.")
        after = (int(match[1]), match[2], match[3])
    found, last = await read_inbox(database, wanted, after, limit)
    following = None if last is None else f"{last.opened_at_us}:{last.run_id}:{last.path}"
    return InboxPage(tuple(question_of(wait) for wait in found), following)


async def get_question(database: Database, run_id: str, path: str) -> QuestionDetail:
    """Return one question of a run with its answer, whether it is open or not."""
    wait = await find_question(database, run_id, path)
    ended = (await find_standing(database, run_id)).status.terminal
    state = QuestionState.OPEN
    if wait.answered:
        state = QuestionState.ANSWERED
    elif wait.settled_at_us is not None or ended:
        state = QuestionState.EXPIRED if wait.overdue else QuestionState.CLOSED
    elif wait.overdue:
        state = QuestionState.EXPIRED
    return QuestionDetail(question_of(wait), state, wait.answer, wait.note)


def question_of(wait: Wait) -> Question:
    """Return a stored wait as readers see it."""
    request = wait.request
    return Question(
        run_id=wait.run_id,
        target=wait.target,
        tenant=wait.tenant,
        path=wait.path,
        step_id=wait.step_id,
        kind=wait.kind,
        name=wait.name,
        prompt=request.get("prompt"),
        fields=tuple(request.get("fields") or ()),
        context=request.get("context"),
        opened_at_us=wait.opened_at_us,
        due_at_us=wait.due_at_us,
        answered_at_us=wait.answered_at_us,
        answered_by=wait.answered_by,
        answerable_by=wait.answerable_by,
        channel_id=request.get("channel_id"),
        about=question_kind(wait.path),
        claimed_by=wait.claimed_by,
        claimed_until_us=wait.claimed_until_us,
    )


async def get_logs(
    database: Database, run_id: str, standing: RunStanding, since: int, limit: int, event: str | None = None
) -> Logs:
    """Return a page of the run's log from an index on: every event, or those of one type."""
    lines = await read_page(database, run_id, since, limit)
    first_index = first_kept(standing, since, lines) - 1
    expected = standing.last_seq if standing.status.terminal else None
    return Logs(
        run_id=run_id,
        lines=tuple(_log_line(line) for line in lines if event is None or line.type == event),
        # A poller of a finished run must reach its end even if retention deleted the remaining lines.
        next_index=lines[-1].seq if lines else max(since, expected or 0),
        first_index=first_index,
        status=standing.status,
        expected_log_count=expected,
        truncated=since < first_index,
        runner_id=standing.worker_id,
    )


def first_kept(standing: RunStanding, after: int, lines: Sequence[StoredEvent]) -> int:
    """Return the oldest number that is kept. A deletion between the two reads shows as a gap at the page's start."""
    return lines[0].seq if lines and lines[0].seq > after + 1 else standing.first_seq


def _log_line(line: StoredEvent) -> LogLine:
    data: dict[str, Any] = orjson.loads(line.data)
    # The error of a step is a string.
    error, fields = _object(data.get("error")), _object(data.get("fields"))
    return LogLine(
        index=line.seq - 1,
        event=line.type,
        message=_message(line.type, data),
        at=format_timestamp(line.at_us),
        attempt=line.attempt,
        fields=fields,
        traceback=error.get("traceback"),
    )


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _message(kind: str, data: Mapping[str, Any]) -> str:
    match kind:
        case EventType.LOG:
            return str(data.get("message", ""))
        case EventType.PICKED_UP:
            return f"picked up by {data.get('worker_id')}"
        case EventType.WORKER_LOST:
            return f"worker {data.get('worker_id')} was lost"
        case EventType.ATTEMPT_FAILED | EventType.RETRY_LATER:
            error: Mapping[str, Any] = data.get("error") or {}
            return f"{error.get('type', 'error')}: {error.get('message', '')}"
        case _:
            about = [data.get(name) for name in ("path", "status", "error", "prompt", "message", "decision")]
            texts = [text for text in about if isinstance(text, str) and text]
            return f"{kind}: {', '.join(texts)}" if texts else kind
