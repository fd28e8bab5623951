"""Events without their large values, so that the page of a run fetches them on demand."""

from __future__ import annotations

from typing import Any

import orjson

from runlane.api.serializers import RUNS
from runlane.domain.events import StoredEvent


def cut_line(run_id: str, line: StoredEvent, most_bytes: int) -> StoredEvent:
    """Return an event in which each larger value is replaced by its size and its address."""
    if len(line.data) <= most_bytes:
        return line
    data: dict[str, Any] = orjson.loads(line.data)
    for name, value in data.items():
        size = len(orjson.dumps(value))
        if size > most_bytes:
            data[name] = {"$cut": size, "href": f"{RUNS}/{run_id}/values/events/{line.seq}/{name}"}
    return line._replace(data=orjson.dumps(data).decode())
