"""Check a request against its thread where it is accepted: answers need their questions, forks their checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from sqlalchemy import Text, bindparam, select

from runlane.domain.graph import GraphRequest
from runlane.domain.text import load_json
from runlane.errors import Conflict, InvalidRequest, NotFound
from runlane.store.sql.database import Session
from runlane.store.sql.schema import checkpoints
from runlane.store.sql.statement import Row, Statement

_INTERRUPT_ID: Final = re.compile(r"[0-9a-f]{32}")

_HAS_CHECKPOINT = Statement(
    "has_checkpoint",
    select(checkpoints.c.id).where(
        checkpoints.c.thread == bindparam("thread", type_=Text()),
        checkpoints.c.ns == bindparam("ns", type_=Text()),
        checkpoints.c.id == bindparam("id", type_=Text()),
    ),
    purpose="Check whether a thread has a checkpoint.",
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
    # The state after the open runs is not known yet, and a fork resumes an earlier state.
    if request.command is not None and "resume" in request.command and not row["open_runs"] and wanted is None:
        _check_resume(row, request.command["resume"])


def _check_resume(row: Row, resume: Any) -> None:
    by_task: dict[str, list[dict[str, Any]]] = {} if row["interrupts"] is None else load_json(row["interrupts"])
    known = {item["id"] for items in by_task.values() for item in items}
    if not known:
        # A breakpoint and a cancelled run also interrupt a thread, but do not ask a question.
        raise Conflict(
            f'The thread "{row["id"]}" is {row["status"]} and does not wait for an answer. '
            "Send input to start the graph again, or neither input nor command to continue after a breakpoint."
        )
    if not isinstance(resume, Mapping):
        return
    ids = list(cast("Mapping[str, Any]", resume))
    if not ids or not all(_INTERRUPT_ID.fullmatch(name) for name in ids):
        return  # an answer that is an object
    unknown = [name for name in ids if name not in known]
    if unknown:
        raise InvalidRequest(
            f'The thread "{row["id"]}" has no interrupt "{unknown[0]}". Open interrupts: '
            f"{', '.join(sorted(known)) or 'none'}."
        )
