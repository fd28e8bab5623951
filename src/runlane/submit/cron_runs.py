"""The runs of crons: what a cron stores about them, and the request of one run.

A cron is a schedule with a target of kind `assistant`. The input of the schedule is the request of its runs, as
`cron_input` returns it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runlane.domain.graph import GraphRequest, MultitaskStrategy
from runlane.domain.graph_registry import DefaultTtl
from runlane.domain.options import RunOptions
from runlane.domain.schedule import ScheduleSettings
from runlane.domain.text import load_json
from runlane.submit.graphs import GraphRunRequest


def cron_input(wanted: GraphRunRequest, payload: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the input of the schedule of a cron. `payload` is the request as clients see it, without its input."""
    return {
        "request": load_json(wanted.request.to_json()),
        "strategy": wanted.strategy.value,
        "deletes": wanted.deletes,
        "ttl": None if wanted.ttl is None else [wanted.ttl.minutes, wanted.ttl.strategy],
        "metadata": dict(metadata),
        "payload": dict(payload),
    }


def cron_run(settings: ScheduleSettings, options: RunOptions) -> GraphRunRequest:
    """Return the request for one run of a cron."""
    stored = settings.input
    return GraphRunRequest(
        assistant_id=settings.target.name,
        request=GraphRequest.from_dict(stored["request"]),
        thread_id=settings.target.thread_id,
        metadata={**stored["metadata"], "cron_id": settings.id},
        strategy=MultitaskStrategy(stored["strategy"]),
        deletes=stored["deletes"],
        # Crons that an earlier version stored have no time to live.
        ttl=None if stored.get("ttl") is None else DefaultTtl(*stored["ttl"]),
        options=options,
    )
