"""No secret of an agent appears anywhere, though providers, web services and MCP servers return it in every way.

Real processes, as in test_canary: besides worker and server a fake provider that repeats its key in answers and errors,
a web service that repeats its headers and its address, and an MCP server that repeats its token and its environment.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2

from runlane.access.keyring import new_key
from runlane.redaction import REDACTED
from runlane.settings import Settings
from runlane.store.access.keys import create_key
from runlane.store.sql.database import open_database
from runlane.testing import FakeAnswer, FakeCall, FakeFault, FakeMcp, FakeProvider
from tests.acceptance.canary import Collector, leaks, tables, variables_for, working
from tests.harness import eventually
from tests.server_process import command, serving

OPENAI, ANTHROPIC = "sk-canary-openai/1+a=b&c", "sk-canary-anthropic/2+d=e&f"
HEADER, PATH, QUERY = 'canary-header/3+"quoted"', "canary path/4+?#", "canary=query&5+/ü"
TOKEN, VARIABLE = "canary-token/6+x=y", 'canary "variable"/7 ü\\'
SECRETS = {
    "OPENAI_API_KEY": OPENAI,
    "ANTHROPIC_API_KEY": ANTHROPIC,
    "HEADER": HEADER,
    "SEGMENT": PATH,
    "QUERY": QUERY,
    "MCP_TOKEN": TOKEN,
    "MCP_VARIABLE": VARIABLE,
}
APP = "from runlane import App\napp = App()\n"


def dressed(value: str) -> str:
    """Return the value in every form that must not get through, and its digest as proof that it was there."""
    encoded = base64.b64encode(value.encode()).decode()
    basic = base64.b64encode(f"user:{value}".encode()).decode()
    digest = hashlib.sha256(value.encode()).hexdigest()
    return f"{value} {encoded} {basic} {quote(value, safe='')} {json.dumps(value)} {value!r} {digest}"


def answers() -> list[FakeAnswer]:
    """Return the answers of the provider, in pieces of three characters, so that no secret comes whole.

    In each run it repeats the secrets that this run has used; others are not redacted in this run.
    """
    calls = [
        FakeCall(name=name, arguments={"text": OPENAI})
        for name in ("fetch", "break", "remote__headers", "local__environment")
    ]
    return [
        FakeAnswer(when="case:tools", thinking=dressed(OPENAI), calls=calls, piece_chars=3),
        FakeAnswer(when="case:think", thinking=dressed(ANTHROPIC), text=dressed(ANTHROPIC), piece_chars=3),
        FakeAnswer(when="case:named", calls=[FakeCall(name=OPENAI, id=OPENAI, arguments=OPENAI)], piece_chars=3),
        FakeAnswer(when="case:denied", fault=FakeFault(status=401, message=dressed(OPENAI), code="invalid_api_key")),
        FakeAnswer(
            when="case:busy",
            text="at last",
            fault=FakeFault(status=429, message=dressed(OPENAI), times=1, retry_after_seconds=0.1),
        ),
        FakeAnswer(
            when="case:late",
            text="at last",
            piece_chars=3,
            fault=FakeFault(kind="late", message=dressed(OPENAI), times=1),
        ),
        FakeAnswer(when="case:approve", calls=[FakeCall(name="asked", arguments={"text": OPENAI})], piece_chars=3),
        # After the last of the tools, which returns its environment.
        saying(OPENAI, HEADER, PATH, QUERY, TOKEN, VARIABLE, when="CANARY"),
        saying(OPENAI, HEADER, PATH, QUERY, when="/asked/"),
        FakeAnswer(text="no script"),
        saying(OPENAI),
    ]


def saying(*values: str, when: str | None = None) -> FakeAnswer:
    everything = " | ".join(dressed(value) for value in values)
    return FakeAnswer(when=when, text=everything, thinking=everything, piece_chars=3)


class Echo(BaseHTTPRequestHandler):
    """Sends back what it was sent: as it came, and in other forms."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        dressed_headers = {name: dressed(value) for name, value in self.headers.items()}
        body = json.dumps({"path": self.path, "headers": dressed_headers, "raw": dict(self.headers.items())}).encode()
        self.send_response(500 if self.path.startswith("/break") else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


@contextmanager
def echoing() -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def definitions(echo: str, mcp: FakeMcp) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}

    def tool(name: str, **more: Any) -> dict[str, Any]:
        url = f"{echo}/{name}/{{secret.SEGMENT}}?q={{secret.QUERY}}"
        headers = {"X-Plain": "{secret.HEADER}", "Authorization": "Bearer {secret.HEADER}"}
        return {"name": name, "url": url, "headers": headers, "input_schema": schema, **more}

    def agent(name: str, model: str, *tools: str) -> dict[str, Any]:
        return {"id": name, "model": model, "tools": list(tools)}

    def flow(name: str, agent_id: str, **more: Any) -> dict[str, Any]:
        prompt = "case:" + name
        step = {"id": "ask", "type": "agent", "agent_id": agent_id, "prompt_template": prompt, "output_key": "answer"}
        show = {"id": "show", "type": "print", "print_content": "{state.answer}", "output_key": "shown"}
        sorry = {"id": "sorry", "type": "print", "print_content": "{state.error.message}", "output_key": "shown"}
        asking = {**step, "next_step_id": "show", "on_error": "sorry", **more}
        return {"id": name, "entry_step_id": "ask", "steps": [asking, show, sorry]}

    direct = {"id": "ask", "type": "tool", "forced_tool": "break", "arguments": {"text": "a"}, "output_key": "answer"}
    return {
        "tools": [tool("fetch"), tool("break"), tool("asked", requires_approval=True)],
        "mcp_servers": [
            {"name": "remote", "url": mcp.url, "token": "{secret.MCP_TOKEN}", "headers": {"X-Team": "{secret.HEADER}"}},
            {
                "name": "local",
                "server_type": "stdio",
                "command": mcp.command[0],
                "args": mcp.command[1:],
                "env": {"CANARY": "{secret.MCP_VARIABLE}"},
            },
        ],
        "agents": [
            agent("asker", "openai-chat:fake", "fetch", "break", "remote__", "local__"),
            agent("thinker", "anthropic:fake"),
            agent("responder", "openai:fake", "asked"),
        ],
        "orchestrations": [
            flow("tools", "asker"),
            flow("think", "thinker"),
            flow("named", "asker"),
            flow("denied", "responder"),
            flow("busy", "asker"),
            flow("late", "responder"),
            flow("approve", "responder"),
            {"id": "direct", "steps": [direct]},
        ],
    }


FLOWS = ("tools", "think", "named", "denied", "busy", "late", "approve", "direct")


async def test_no_secret_of_an_agent_is_anywhere(
    canary_settings: Settings, collector: Collector, tmp_path: Path
) -> None:
    (tmp_path / "tasks.py").write_text(APP)
    database = await open_database(canary_settings)
    try:
        _, key = await create_key(database, "test", "platform_admin", actor="test")
        with FakeProvider(answers()) as provider, FakeMcp() as mcp, echoing() as echo:
            mcp.control(token=TOKEN)
            variables = variables_for(canary_settings) | {
                "RUNLANE_SECRET_KEY": new_key(),
                "RUNLANE_OTLP_ENDPOINT": collector.url,
                "RUNLANE_OUTBOUND_ALLOW": "127.0.0.1",
                "RUNLANE_MCP_STDIO": "true",
                "RUNLANE_LOG_LEVEL": "debug",
                "OPENAI_LOG": "debug",
                "ANTHROPIC_LOG": "debug",
                "OPENAI_BASE_URL": provider.openai_url,
                "ANTHROPIC_BASE_URL": provider.url,
            }
            with serving(tmp_path, variables, "serve", "tasks:app") as server, working(tmp_path, variables) as log:
                async with httpx2.AsyncClient(
                    base_url=f"{server.url}/api/v2",
                    headers={"Authorization": f"Bearer {key}"},
                    timeout=120,
                    trust_env=False,
                ) as client:
                    outputs = await Use(client, echo, mcp).outputs()
                shown = [
                    command(tmp_path, *words, **variables)
                    for words in (
                        ("runs", "list"),
                        ("secrets", "list"),
                        ("usage",),
                        ("limits", "list"),
                        ("audit", "list"),
                    )
                ]
            assert [one.stderr for one in shown if one.returncode] == []
            assert {call.tool for call in mcp.calls()} == {"headers", "environment"}
        outputs |= {
            "the command line": "\n".join(one.stdout + one.stderr for one in shown),
            "the worker's output": log.read_text(),
            "the server's output": (tmp_path / f"server-{server.port}.log").read_text(),
            "the spans": b"\n".join(collector.received).decode("utf-8", "replace"),
            **await tables(database),
        }
    finally:
        await database.close()
    assert {place: found for place, content in outputs.items() if (found := leaks(content, *SECRETS.values()))} == {}
    # The values were really there, and were taken out.
    for value in SECRETS.values():
        digest = hashlib.sha256(value.encode()).hexdigest()
        for place in ("the streams", "the answers", "the table run_events", "the table run_calls"):
            assert digest in outputs[place], (value, place)
    for place in ("the streams", "the answers", "the spans", "the table run_waits", "the table run_results"):
        assert REDACTED in outputs[place], place


class Use:
    """Lets agents use everything that reveals secrets, and reads everything that the server returns about it."""

    def __init__(self, client: httpx2.AsyncClient, echo: str, mcp: FakeMcp) -> None:
        self._client = client
        self._definitions = definitions(echo, mcp)
        self._answers: list[str] = []
        self._streams: list[str] = []
        self._heard: set[str] = set()

    async def outputs(self) -> dict[str, str]:
        for name, value in SECRETS.items():
            assert (await self._ask("PUT", f"/secrets/{name}", json={"value": value})).status_code == 200
        synced = await self._ask("POST", "/sync", json=self._definitions)
        assert synced.status_code == 200, synced.text
        runs = {name: await self._started(f"/orchestrations/{name}/run", {"hold": True}) for name in FLOWS}
        # Followed before they begin, so that every live piece is seen.
        streams = [asyncio.create_task(self._stream(f"/runs/{run_id}/stream")) for run_id in runs.values()]
        for run_id in runs.values():
            await eventually(lambda run_id=run_id: f"/runs/{run_id}/stream" in self._heard, "the reader")
            assert (await self._ask("POST", f"/runs/{run_id}/approve")).status_code == 202
        await self._approve(runs["approve"])
        await asyncio.gather(*streams)
        ended = {name: (await self._ask("GET", f"/runs/{run_id}")).json() for name, run_id in runs.items()}
        states = {name: run["status"] for name, run in ended.items()}
        assert states == dict.fromkeys(FLOWS, "completed") | {"direct": "failed"}, ended
        assert ended["busy"]["result"] == ended["late"]["result"] == "at last"
        runs["chat"] = await self._chat()
        for run_id in runs.values():
            for view in ("", "/status", "/attempts", "/steps", "/events", "/logs", "/waits"):
                await self._ask("GET", f"/runs/{run_id}{view}")
            await self._stream(f"/runs/{run_id}/stream")
        for path in (
            "/runs", "/audit", "/secrets", "/workers", "/usage", "/limits", "/inbox", "/chat", "/tools", "/agents",
            "/mcp-servers", "/mcp-servers/local", "/orchestrations", "/agents/asker", "/tools/fetch", "/schemas/tool",
        ):  # fmt: skip
            await self._ask("GET", path)
        self._answers.append((await self._client.get(str(self._client.base_url.join("/metrics")))).text)
        return {"the answers": "\n".join(self._answers), "the streams": "\n".join(self._streams)}

    async def _ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        answer = await self._client.request(method, path, **options)
        self._answers.append(answer.text)
        return answer

    async def _started(self, path: str, body: dict[str, Any]) -> str:
        answer = await self._ask("POST", path, json={"message": "go", **body})
        assert answer.status_code == 202, answer.text
        return answer.json()["run_id"]

    async def _stream(self, path: str) -> None:
        pieces: list[str] = []
        async with self._client.stream("GET", path) as answer:
            assert answer.status_code == 200
            async for piece in answer.aiter_text():
                self._heard.add(path)
                pieces.append(piece)
        self._streams.append("".join(pieces))

    async def _approve(self, run_id: str) -> None:
        async def has_question() -> bool:
            return (await self._client.get(f"/runs/{run_id}/status")).json()["waiting_for_human"]

        await eventually(has_question, "the question", 60)
        for path in (f"/runs/{run_id}/waits", "/inbox", f"/runs/{run_id}"):
            await self._ask("GET", path)
        answer = await self._ask("POST", f"/runs/{run_id}/resume", json={"response": {"decision": "approve"}})
        assert answer.status_code == 202, answer.text

    async def _chat(self) -> str:
        """Two turns, the second of which fails."""
        first = (await self._ask("POST", "/chat", json={"agent": "asker", "message": "case:tools"})).json()
        session = first["session_id"]
        more = {"agent": "asker", "message": "case:denied", "session_id": session}
        last = (await self._ask("POST", "/chat", json=more)).json()
        for run_id in (first["run_id"], last["run_id"]):
            await self._stream(f"/runs/{run_id}/stream")
        for view in ("status", "messages", "events"):
            assert (await self._ask("GET", f"/chat/{session}/{view}")).status_code == 200
        await self._stream(f"/chat/{session}/stream")
        return last["run_id"]
