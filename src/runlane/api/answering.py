"""Answers of people over HTTP, one or many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runlane.api.services import Services
from runlane.domain.access import Principal
from runlane.domain.hints import Topic
from runlane.domain.run import Status
from runlane.submit.orchestrations import answer_run


async def answer_question(
    parts: Services,
    principal: Principal,
    run_id: str,
    response: Mapping[str, Any] | str,
    step: str | None,
    note: str | None = None,
) -> Status:
    """Answer a question of a run on behalf of the caller's key, and notify workers and open pages."""
    change = await answer_run(
        parts.database,
        run_id,
        response,
        step=step,
        answered_by=principal.name,
        platform=principal.everywhere,
        note=note,
    )
    parts.connection.publish_change(change)
    parts.connection.bus.hint(Topic.INBOX, None, run_id)
    return change.status
