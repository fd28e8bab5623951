"""No secret value appears in any table, answer, stream, log line or trace, however hard a task tries to reveal it.

Real processes: a worker and a server, whose output is kept, and a collector that their spans are sent to. The value and
its base64 must not occur anywhere.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import httpx2

from runlane.access.keyring import new_key
from runlane.redaction import REDACTED
from runlane.settings import Settings
from runlane.store.access.keys import create_key
from runlane.store.sql.database import open_database
from tests.acceptance.canary import Collector, leaks, tables, variables_for, working
from tests.harness import eventually
from tests.server_process import command, serving

CANARY = 'canary/6d1f "quoted" und+more'
TASKS = """
import base64, hashlib, logging
from urllib.parse import quote

import structlog
from runlane import App, Context, Fail, Retry

app = App()
log = structlog.get_logger("tasks")


def forms(value):
    encoded = base64.b64encode(value.encode()).decode()
    basic = base64.b64encode(f"user:{value}".encode()).decode()
    return {"plain": value, "base64": encoded, "basic": basic, "url": quote(value, safe=""), "repr": repr(value),
            "digest": hashlib.sha256(value.encode()).hexdigest(), value: "as a key", "list": [[value]]}


@app.task("echo")
async def echo(ctx: Context) -> dict:
    value = await ctx.secret("TOKEN")
    await ctx.log(f"it is {value}", **{"token": value, "forms": forms(value)})
    for number in range(5):
        await ctx.progress(number / 5, f"at {value}")
    await ctx.checkpoint(forms(value))
    log.info("mine", token=value, forms=forms(value))
    logging.getLogger("library").warning("theirs %s", value)
    try:
        raise ValueError(value)
    except ValueError:
        log.exception("caught")
    return forms(value)


@app.task("break", max_attempts=2)
def fall(ctx: Context) -> None:
    value = ctx.secret("TOKEN")
    ctx.log(value)
    raise ValueError(f"no: {value}") from KeyError(base64.b64encode(value.encode()).decode())


@app.task("fail")
async def fail(ctx: Context) -> None:
    raise Fail(await ctx.secret("TOKEN"))


@app.task("later")
async def later(ctx: Context) -> str:
    if ctx.attempt == 1:
        raise Retry(reason=await ctx.secret("TOKEN"))
    return await ctx.secret("TOKEN")
"""


def _say(name: str, content: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "type": "print", "print_content": content, "output_key": name, **more}


FLOW: dict[str, Any] = {
    "id": "flow",
    "entry_step_id": "get",
    "steps": [
        {"id": "get", "type": "task", "task": "echo", "output_key": "found", "next_step_id": "say"},
        _say("say", "{state.found.plain}", next_step_id="ask"),
        {"id": "ask", "type": "human", "human_prompt": "Is it {state.found.plain}?", "next_step_id": "bad"},
        {"id": "bad", "type": "task", "task": "break", "output_key": "none", "on_error": "end", "next_step_id": "end"},
        _say("end", "{state.found.base64} {state.error.message}"),
    ],
}


async def test_no_secret_is_anywhere(canary_settings: Settings, collector: Collector, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    own = {"RUNLANE_SECRET_KEY": new_key(), "RUNLANE_OTLP_ENDPOINT": collector.url}
    variables = variables_for(canary_settings) | own
    database = await open_database(canary_settings)
    try:
        _, key = await create_key(database, "test", "platform_admin", actor="test")
        with serving(tmp_path, variables, "serve", "tasks:app") as server, working(tmp_path, variables) as worker_log:
            headers = {"Authorization": f"Bearer {key}"}
            async with httpx2.AsyncClient(
                base_url=f"{server.url}/api/v2", headers=headers, timeout=90, trust_env=False
            ) as client:
                answers = await _use_it(client)
            shown = [
                command(tmp_path, *words, **variables).stdout
                for words in (("runs", "list"), ("dead-letters", "list"), ("secrets", "list"), ("audit", "list"))
            ]
        outputs: dict[str, str | bytes] = {
            "the answers": "\n".join(answers),
            "the command line": "\n".join(shown),
            "the worker's output": worker_log.read_text(),
            "the server's output": (tmp_path / f"server-{server.port}.log").read_text(),
            "the spans": b"\n".join(collector.received),
        }
        outputs |= await tables(database)
    finally:
        await database.close()
    assert [place for place, content in outputs.items() if leaks(content, CANARY)] == []
    digest = hashlib.sha256(CANARY.encode()).hexdigest()
    # The value was really there, and was taken out in each of these places.
    for place in ("the answers", "the worker's output", "the table run_results", "the table run_steps"):
        assert digest in str(outputs[place]), place
    for place in (
        "the answers", "the worker's output", "the table run_results", "the table run_steps", "the table run_events",
        "the table run_attempts", "the table run_waits", "the table dead_letters",
    ):  # fmt: skip
        assert REDACTED in str(outputs[place]), place
    assert REDACTED.encode() in b"\n".join(collector.received)
    assert '"mine"' in str(outputs["the worker's output"])
    assert "theirs [redacted]" in str(outputs["the worker's output"])


async def _use_it(client: httpx2.AsyncClient) -> list[str]:
    """Let tasks and an orchestration reveal the secret in every way; return everything that the server answers."""
    answers: list[str] = []

    async def ask(method: str, path: str, **options: Any) -> Any:
        answer = await client.request(method, path, **options)
        answers.append(answer.text)
        return answer

    assert (await ask("PUT", "/secrets/TOKEN", json={"value": CANARY})).status_code == 200
    assert (await ask("POST", "/sync", json={"orchestrations": [FLOW]})).status_code == 200
    tasks = ("echo", "break", "fail", "later")
    ids: list[str] = [(await ask("POST", f"/tasks/{name}/run", json={})).json()["run_id"] for name in tasks]
    flow = (await ask("POST", "/orchestrations/flow/run", json={"message": "go"})).json()["run_id"]
    streams = [asyncio.create_task(ask("GET", f"/runs/{run_id}/stream")) for run_id in (*ids, flow)]

    async def has_question() -> bool:
        return (await client.get(f"/runs/{flow}/status")).json()["waiting_for_human"]

    await eventually(has_question, "the question", 60)
    for path in (f"/runs/{flow}/waits", "/inbox", f"/runs/{flow}"):
        await ask("GET", path)
    assert (await ask("POST", f"/runs/{flow}/resume", json={"response": "yes"})).status_code == 202
    await asyncio.gather(*streams)
    for run_id in (*ids, flow):
        for view in ("", "/status", "/attempts", "/steps", "/events", "/logs", "/waits", "/stream"):
            await ask("GET", f"/runs/{run_id}{view}")
    for path in ("/runs", "/audit", "/secrets", "/orchestrations/flow", "/workers"):
        await ask("GET", path)
    results = [(await client.get(f"/runs/{run_id}")).json() for run_id in (*ids, flow)]
    assert [run["status"] for run in results] == ["completed", "failed", "failed", "completed", "completed"]
    assert results[0]["result"]["plain"] == results[3]["result"] == REDACTED
    assert REDACTED in results[4]["result"]
    return answers
