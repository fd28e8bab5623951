"""Responses: domain values as JSON, serialized once without intermediate models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

from runlane.api.error_responses import rate_headers
from runlane.domain.flow_keys import StartOutcome
from runlane.domain.run import Accepted
from runlane.domain.timestamps import format_timestamp
from runlane.domain.wire import to_json

ROOT = "/api/v2"
# The prefix of runs of orchestrations; both prefixes serve the same runs.
ORCHESTRATIONS = f"{ROOT}/orchestrations/runs"
RUNS = f"{ROOT}/runs"
_NOTHING_STARTED = frozenset({StartOutcome.EXISTING, StartOutcome.SKIPPED, StartOutcome.DROPPED})


class JsonBody(Response):
    """A JSON body."""

    media_type = "application/json"

    def __init__(self, body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(to_bytes(body), status, headers)


class ValueBody(Response):
    """A value of `runlane.domain` as JSON."""

    media_type = "application/json"
    # Fields that only this response contains. A repeated request gets null, because their values are not stored.
    shown_once: frozenset[str] = frozenset()

    def __init__(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(to_json(value), status, headers)


def to_bytes(body: Any) -> bytes:
    """Return a value as JSON in the format of JsonBody."""
    return orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS)


def moment(at_us: int | None) -> str | None:
    """Return a stored time as a string."""
    return None if at_us is None else format_timestamp(at_us)


def accepted_json(accepted: Accepted, status: str | None = None, *, root: str = RUNS) -> dict[str, Any]:
    """Return the body of the response to an accepted start."""
    run_id = accepted.run_id
    body: dict[str, Any] = {
        "run_id": run_id,
        "status": status or accepted.status.value,
        "lane": accepted.lane,
        "replayed": accepted.replayed,
        "stream_url": f"{root}/{run_id}/stream",
        "status_url": f"{root}/{run_id}/status",
    }
    if accepted.affected:
        body |= _flow_fields(accepted)
    return body


def _flow_fields(accepted: Accepted) -> dict[str, Any]:
    """Return the flow control outcome of the start. A start without a run has neither an id nor links."""
    given = {
        "start_id": accepted.start_id,
        "due_at": moment(accepted.due_at_us),
        "replaced_run_id": accepted.replaced_run_id,
        "debounced": accepted.debounced or None,
    }
    fields: dict[str, Any] = {"outcome": accepted.outcome.value}
    fields |= {name: value for name, value in given.items() if value is not None}
    return fields if accepted.run_id else {**fields, "run_id": None, "stream_url": None, "status_url": None}


def accepted_reply(accepted: Accepted, status: str | None = None, *, root: str = RUNS) -> JsonBody:
    """Return the response to an accepted start, with the remaining rate of its tenant."""
    code = 200 if accepted.outcome in _NOTHING_STARTED else 202
    return JsonBody(accepted_json(accepted, status, root=root), code, rate_headers(accepted.quota) or None)
