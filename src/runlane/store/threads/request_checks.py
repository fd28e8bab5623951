"""Check a request against its thread where it is accepted: answers need their questions, forks their checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from sqlalchemy import Text, bindparam, select

from runlane.domain.events import EventType
from runlane.domain.graph import GraphRequest
from runlane.domain.run import Status
from runlane.domain.text import load_json
from runlane.errors import Conflict, InvalidRequest, NotFound
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit
from runlane.store.sql.schema import checkpoint_writes, checkpoints, run_events, runs, thread_runs
from runlane.store.sql.statement import Row, Statement

_INTERRUPT_ID: Final = re.compile(r"[0-9a-f]{32}")
_INTERRUPT: Final = "__interrupt__"
# A run that asks stores its question with its last events.
_LAST_EVENTS: Final = 20

_HAS_CHECKPOINT = Statement(
    "has_checkpoint",
    select(checkpoints.c.id).where(
        checkpoints.c.thread == bindparam("thread", type_=Text()),
        checkpoints.c.ns == bindparam("ns", type_=Text()),
        checkpoints.c.id == bindparam("id", type_=Text()),
    ),
    purpose="Check whether a thread has a checkpoint.",
)
_open_runs = (
    select(thread_runs.c.run_id)
    .select_from(thread_runs.join(runs, runs.c.id == thread_runs.c.run_id))
    .where(
        thread_runs.c.thread == bindparam("thread", type_=Text()),
        runs.c.status.not_in([lit(status) for status in Status if status.terminal]),
    )
)
_ASKED = Statement(
    "open_questions_of_thread",
    select(checkpoint_writes.c.task_id)
    .where(
        checkpoint_writes.c.thread == bindparam("thread", type_=Text()),
        checkpoint_writes.c.channel == lit(_INTERRUPT),
        checkpoint_writes.c.run_id.in_(_open_runs),
    )
    .limit(lit(1)),
    purpose="Check whether a run that has not ended has asked a question in its thread.",
)
_REPORTED = Statement(
    "reported_questions_of_thread",
    select(run_events.c.seq)
    .select_from(run_events.join(runs, runs.c.id == run_events.c.run_id))
    .where(
        run_events.c.run_id.in_(_open_runs),
        run_events.c.type == lit(EventType.GRAPH_STREAM),
        run_events.c.seq > runs.c.last_seq - lit(_LAST_EVENTS),
        run_events.c.data.like('%"__interrupt__"%'),
    )
    .limit(lit(1)),
    purpose="Check whether the last events of a run that has not ended report a question.",
)


async def check_request(session: Session, row: Row, request: GraphRequest) -> None:
    """Raise Conflict, InvalidRequest or NotFound for a request that cannot have the effect that it names."""
    checkpoint = request.checkpoint or {}
    if checkpoint.get("thread_id") not in (None, row["id"]):
        raise InvalidRequest(
            f'The checkpoint belongs to the thread "{checkpoint["thread_id"]}". Start the run in that thread.'
        )
    wanted: str | None = checkpoint.get("checkpoint_id")
    if wanted is not None:
        ns = checkpoint.get("checkpoint_ns") or ""
        if not await session.fetch(_HAS_CHECKPOINT, thread=row["key"], ns=ns, id=wanted):
            raise NotFound(
                f'The thread "{row["id"]}" has no checkpoint "{wanted}". See POST /threads/{row["id"]}/history'
            )
    # A fork resumes an earlier state.
    if request.command is None or "resume" not in request.command or wanted is not None:
        return
    resume: Any = request.command["resume"]
    if not row["open_runs"]:
        _check_resume(row, resume)
    elif not _names_interrupts(resume) and not await _has_asked(session, row["key"]):
        # The question that the caller has seen is being answered, so this answer would reach the next one.
        raise Conflict(
            f'The thread "{row["id"]}" is busy, so it does not wait for an answer. Read the thread when its run has '
            "ended. If the answer is for an interrupt that you know, send it as an object with the id of the interrupt."
        )


def _names_interrupts(resume: Any) -> bool:
    """Return whether answers have the ids of their interrupts."""
    ids: list[Any] = list(cast("Mapping[Any, Any]", resume)) if isinstance(resume, Mapping) else []
    return bool(ids) and all(isinstance(name, str) and _INTERRUPT_ID.fullmatch(name) for name in ids)


async def _has_asked(session: Session, key: str) -> bool:
    """Return whether an open run has asked already: clients read its question before the run ends."""
    return bool(await session.fetch(_ASKED, thread=key) or await session.fetch(_REPORTED, thread=key))


def _check_resume(row: Row, resume: Any) -> None:
    by_task: dict[str, list[dict[str, Any]]] = {} if row["interrupts"] is None else load_json(row["interrupts"])
    known = {item["id"] for items in by_task.values() for item in items}
    if not known:
        # A breakpoint and a cancelled run also interrupt a thread, but do not ask a question.
        raise Conflict(
            f'The thread "{row["id"]}" is {row["status"]} and does not wait for an answer. '
            "Send input to start the graph again, or neither input nor command to continue after a breakpoint."
        )
    if not _names_interrupts(resume):
        return
    unknown = [name for name in cast("Mapping[str, Any]", resume) if name not in known]
    if unknown:
        raise InvalidRequest(
            f'The thread "{row["id"]}" has no interrupt "{unknown[0]}". Open interrupts: '
            f"{', '.join(sorted(known)) or 'none'}."
        )
