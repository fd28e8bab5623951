"""A server and a worker as processes, under a load that touches every part that has metrics or spans."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from runlane.access.keyring import new_key
from runlane.settings import Settings
from runlane.store.access.keys import create_key
from runlane.store.sql.database import open_database
from runlane.testing import FakeAnswer, FakeCall, FakeFault, FakeProvider
from tests.acceptance.canary import Collector, variables_for, working
from tests.conftest import in_new_loop
from tests.server_process import free_port, serving

T = TypeVar("T")

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"
SECRET_TEXT = "the content of a prompt"
APP = """
from runlane import App, Context

app = App()

@app.task("lookup")
async def lookup(ctx: Context, text: str = "") -> str:
    return "found " + text

@app.task("break", max_attempts=1)
async def fall(ctx: Context) -> None:
    raise ValueError("it broke")
"""
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
DEFINITIONS: dict[str, Any] = {
    "tools": [{"name": "search", "tool_type": "task", "task": "lookup", "input_schema": SCHEMA}],
    "agents": [{"id": "clerk", "model": "openai-chat:gpt-4o-mini", "tools": ["search"]}],
    "orchestrations": [
        {
            "id": "answer",
            "entry_step_id": "ask",
            "steps": [
                {
                    "id": "ask",
                    "type": "agent",
                    "agent_id": "clerk",
                    "prompt_template": SECRET_TEXT,
                    "output_key": "answer",
                    "next_step_id": "show",
                },
                {"id": "show", "type": "print", "print_content": "{state.answer}", "output_key": "shown"},
            ],
        },
        {
            "id": "question",
            "entry_step_id": "ask",
            "steps": [{"id": "ask", "type": "human", "human_prompt": "Is it right?", "output_key": "answer"}],
        },
    ],
}


def answers() -> list[FakeAnswer]:
    """Return a model that is throttled once, then calls a tool, then answers."""
    return [
        FakeAnswer(when="found", text="It is found."),
        FakeAnswer(
            when=SECRET_TEXT,
            calls=[FakeCall(name="search", arguments={"text": "it"})],
            fault=FakeFault(status=429, message="slow down", times=1, retry_after_seconds=0.05),
        ),
    ]


@dataclass(frozen=True)
class Telemetry:
    """What the installation reported: two scrapes, the spans, and the headers of its webhooks."""

    server_metrics: str
    worker_metrics: str
    spans: list[Span]
    webhooks: list[dict[str, str]]
    exported: bytes


@contextmanager
def receiving() -> Generator[tuple[str, list[dict[str, str]]]]:
    """Run a receiver of webhooks; yield its URL and the headers of what arrives."""
    received: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            received.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(204)
            self.end_headers()

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hook", received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def observe(settings: Settings, folder: Path) -> Telemetry:
    """Start an installation, use it, and return what it reported."""
    (folder / "tasks.py").write_text(APP)
    collector = Collector()
    health_port = free_port()
    try:
        with FakeProvider(answers()) as provider, receiving() as (hook, webhooks):
            variables = variables_for(settings) | {
                "RUNLANE_SECRET_KEY": new_key(),
                "RUNLANE_OTLP_ENDPOINT": collector.url,
                "RUNLANE_OUTBOUND_ALLOW": "127.0.0.1",
                "RUNLANE_WORKER_HEALTH_PORT": str(health_port),
                "OPENAI_BASE_URL": provider.openai_url,
                "OPENAI_API_KEY": "sk-test",
            }
            with serving(folder, variables, "serve", "tasks:app") as server, working(folder, variables):
                client = _Client(server.url, _key(settings))
                client.use(hook, webhooks)
                own = f"http://127.0.0.1:{health_port}/metrics"
                # An end is counted after it is visible, and either process may deliver a webhook.
                server_metrics, worker_metrics = _until(lambda: (client.text("/metrics"), _read(own)), _all_counted)
                client.close()
    finally:
        collector.close()
    return Telemetry(
        server_metrics, worker_metrics, list(spans_of(collector.received)), webhooks, b"".join(collector.received)
    )


def _all_counted(scraped: tuple[str, str]) -> bool:
    delivered = 'runlane_webhook_attempts_total{outcome="delivered"} '
    counts = [int(line.removeprefix(delivered)) for text in scraped for line in text.splitlines() if delivered in line]
    return "orchestration:answer" in scraped[1] and sum(counts) == 2


def spans_of(received: list[bytes]) -> Generator[Span]:
    """Return the spans of export requests."""
    for body in received:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                yield from scope.spans


class _Client:
    """Uses the API as the load of the installation."""

    def __init__(self, url: str, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}", "traceparent": TRACEPARENT}
        self._http = httpx2.Client(base_url=url, headers=headers, timeout=90, trust_env=False)

    def use(self, hook: str, webhooks: list[dict[str, str]]) -> None:
        self._post("/sync", DEFINITIONS)
        self._post("/webhooks/endpoints", {"url": hook, "types": ["run.completed"]})
        quota = self._http.put("/api/v2/quotas/runs_per_day", json={"limit": 100})
        assert quota.status_code == 200, quota.text
        runs = [self._post(f"/tasks/{task}/run", {}) for task in ("lookup", "break")]
        runs.append(self._post("/orchestrations/answer/run", {}))
        self._post("/orchestrations/question/run", {})
        ended = [self._get(f"/runs/{run['run_id']}/wait?timeout_seconds=60")["status"] for run in runs]
        assert ended == ["completed", "failed", "completed"]
        _until(lambda: self._get("/inbox"), lambda inbox: bool(inbox["questions"]))
        _until(lambda: len(webhooks), lambda count: count >= 2)

    def text(self, path: str) -> str:
        answer = self._http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    def close(self) -> None:
        self._http.close()

    def _get(self, path: str) -> Any:
        return json.loads(self.text(f"/api/v2{path}"))

    def _post(self, path: str, body: Any) -> Any:
        answer = self._http.post(f"/api/v2{path}", json=body)
        assert answer.status_code in (200, 201, 202), answer.text
        return answer.json()


def _key(settings: Settings) -> str:
    keys: list[str] = []

    async def create() -> None:
        database = await open_database(settings)
        try:
            keys.append((await create_key(database, "test", "platform_admin", actor="test"))[1])
        finally:
            await database.close()

    in_new_loop(create)
    return keys[0]


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def _until(read: Callable[[], T], holds: Callable[[T], bool]) -> T:
    """Read until the condition holds."""
    deadline = time.monotonic() + 60
    while True:
        found = read()
        if holds(found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
