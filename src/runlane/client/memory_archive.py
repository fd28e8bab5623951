"""Read the memory that the run of an export has written."""

from __future__ import annotations

from typing import Final

from runlane.client.http import PREFIX, Http, part
from runlane.client.wire import parse
from runlane.domain.memory import MemoryExport
from runlane.domain.memory_archive import ExportRecords
from runlane.errors import NotFound

_PAGE: Final = 1000


async def read_export(http: Http, run_id: str) -> MemoryExport:
    """Return the memory that an export has written to the log of its run. The run must be completed."""
    records = ExportRecords()
    after = 0
    while True:
        page = await http.read(f"{PREFIX}/runs/{part(run_id)}/events", {"after": after, "limit": _PAGE, "type": "log"})
        for event in page["events"]:
            records.add(event["message"], event.get("fields"))
        # A page without log lines is not always the last, because a page scans a limited number of events.
        if page["next_after"] <= after:
            break
        after = page["next_after"]
    exported = records.exported()
    if exported is None:
        raise NotFound(f"The run {run_id} has written no export. See its status: runlane runs show {run_id}")
    return parse(MemoryExport, exported)
