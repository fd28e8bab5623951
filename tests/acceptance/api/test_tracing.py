"""One trace from the request through the queue to the attempt; nothing of it while tracing is off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import LogCapture

from runlane.api.services import WorkerOptions
from runlane.observability import tracing
from runlane.settings import Settings
from tests.acceptance.api.serving import Api, copy_of, serving
from tests.acceptance.api.shop import app as shop
from tests.harness import eventually

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
def spans() -> Generator[InMemorySpanExporter]:
    """Tracing is on, and what is exported ends here."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing._provider = provider
    yield exporter
    tracing.stop_tracing()


async def test_one_trace_goes_from_the_request_to_the_attempt(settings: Settings, spans: InMemorySpanExporter) -> None:
    async with serving(copy_of(shop, settings), worker=WorkerOptions()) as api:
        answer = await api.post("/tasks/greet/run", {}, headers={"traceparent": PARENT})
        run_id = answer.json()["run_id"]
        await api.get(f"/runs/{run_id}/wait")
        attempt = await eventually(lambda: _named(spans, "run greet"), "the attempt's span")
        accept = _named(spans, "accept greet")
        request = _parent(spans, accept)
    for span in (request, accept, attempt):
        assert f"{span.context.trace_id:032x}" == TRACE
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == "00f067aa0ba902b7"
    assert attempt.parent is not None
    assert attempt.parent.span_id == accept.context.span_id
    attributes: dict[str, Any] = dict(attempt.attributes or {})
    assert attributes["runlane.run_id"] == run_id
    assert (attributes["runlane.attempt"], attributes["runlane.status"], attributes["runlane.tenant"]) == (
        1,
        "completed",
        "default",
    )


async def test_a_failed_attempt_is_a_failed_span(settings: Settings, spans: InMemorySpanExporter) -> None:
    async with serving(copy_of(shop, settings), worker=WorkerOptions()) as api:
        await api.run("fail")
        attempt = await eventually(lambda: _named(spans, "run fail"), "the attempt's span")
    assert not attempt.status.is_ok
    assert "it always does" in (attempt.status.description or "")


def _named(spans: InMemorySpanExporter, name: str) -> Any:
    return next((span for span in spans.get_finished_spans() if span.name == name), None)


def _parent(spans: InMemorySpanExporter, child: ReadableSpan) -> Any:
    assert child.parent is not None
    wanted = child.parent.span_id
    return next(span for span in spans.get_finished_spans() if span.context and span.context.span_id == wanted)


async def test_a_trace_is_stored_while_tracing_is_off_and_a_broken_one_is_left_out(idle_api: Api) -> None:
    from sqlalchemy import text

    from runlane.store.sql.database import read
    from runlane.store.sql.statement import Statement

    for sent, stored in ((PARENT, PARENT), ("00-0-0-01", None), ("x" * 5000, None), (f"ff{PARENT[2:]}", None)):
        answer = await idle_api.post("/tasks/greet/run", {}, headers={"traceparent": sent})
        assert answer.status_code == 202
        statement = Statement("trace", text("select trace from run_inputs where run_id = :id"))
        rows = await read(idle_api.parts.database, statement, id=answer.json()["run_id"])
        assert rows[0]["trace"] == stored
        shown = (await idle_api.get(f"/runs/{answer.json()['run_id']}")).json()
        assert shown["trace_id"] == (None if stored is None else TRACE)


def test_a_worker_loads_neither_tracing_nor_the_api() -> None:
    code = (
        "import sys, runlane.cli.app_loader, runlane.cli.logs, runlane.cli.process\n"
        "import runlane.app, runlane.worker.worker, runlane.store.sql.postgres\n"
        "print([name for name in sys.modules if name.split('.')[0] in "
        "('fastapi', 'starlette', 'opentelemetry', 'uvicorn', 'prometheus_client', 'httpx2')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"


async def test_log_lines_of_a_run_have_its_id(api: Api) -> None:
    captured = LogCapture()
    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, captured], wrapper_class=structlog.BoundLogger
    )
    try:
        run = await api.run("save", input={"value": 5})
    finally:
        structlog.configure(**before)
    line = next(entry for entry in captured.entries if entry["event"] == "saved")
    assert (line["run_id"], line["attempt"], line["tenant"]) == (run["run_id"], 1, "default")
    assert line["worker"] == run["worker_id"]
