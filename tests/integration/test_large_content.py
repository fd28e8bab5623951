"""Large content is parsed off the event loop: request bodies, answers of tools, source of scripts, text with JSON.

Each test compares the longest time that the loop's own thread computed between two turns with what the same work takes,
measured in the same run.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import orjson
import pytest
from fastapi import APIRouter, FastAPI

from runlane.api.body import LargeBodyRoute
from runlane.definitions.schema.definition import Tool
from runlane.event_loop.offload import LARGE_BYTES, offload_if
from runlane.outbound import Outbound
from runlane.redaction import Redactor
from runlane.sandbox import source
from runlane.sandbox.sandbox import Sandbox
from runlane.settings import load_settings
from runlane.tools.http import HttpTools
from tests.integration.http_server import plain, serving

ROWS = [{"id": number, "name": f"row {number}", "tags": ["a", "b", str(number)]} for number in range(60_000)]
LARGE = orjson.dumps({"rows": ROWS})


async def longest_block(work: Awaitable[Any]) -> float:
    """Return the most processor time that the loop's thread used between two turns while the work ran."""
    longest = 0.0

    async def probe() -> None:
        nonlocal longest
        used = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            before, used = used, time.thread_time()
            longest = max(longest, used - before)

    watching = asyncio.create_task(probe())
    await asyncio.sleep(0.005)
    try:
        await work
        await asyncio.sleep(0.005)
    finally:
        watching.cancel()
    return longest


def cost(function: Callable[..., Any], *arguments: Any) -> float:
    """Return the processor time of a call, without that of a garbage collection that happens to fall into it."""
    gc.disable()
    began = time.thread_time()
    try:
        function(*arguments)
        return time.thread_time() - began
    finally:
        gc.enable()


async def test_small_content_stays_on_the_loop_and_large_content_leaves_it() -> None:
    here = threading.get_ident()
    assert await offload_if(False, threading.get_ident) == here
    assert await offload_if(True, threading.get_ident) != here


@pytest.mark.parametrize("sized", [True, False], ids=["with content-length", "chunked"])
async def test_a_large_request_body_is_parsed_off_the_loop(sized: bool) -> None:
    app = FastAPI()
    router = APIRouter(route_class=LargeBodyRoute)

    @router.post("/count")
    async def count(body: dict[str, Any]) -> int:
        return len(body["rows"])

    app.include_router(router)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(LARGE), 64 * 1024):
            yield LARGE[start : start + 64 * 1024]

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test") as client:
        headers = {"content-type": "application/json"}

        async def post() -> None:
            answer = await client.post("/count", content=LARGE if sized else pieces(), headers=headers)
            assert answer.json() == len(ROWS)

        async def post_nonsense() -> None:
            answer = await client.post("/count", content=b"[" * (LARGE_BYTES + 1), headers=headers)
            assert answer.status_code in (400, 422)

        parsing = cost(json.loads, LARGE)
        blocked = min([await longest_block(post()) for _ in range(3)])
        assert blocked < parsing * 0.8, (blocked, parsing)
        await post_nonsense()


async def test_a_large_answer_of_a_tool_is_parsed_off_the_loop() -> None:
    tool = Tool.model_validate(
        {"name": "rows", "tool_type": "http", "url": "http://x", "max_output_bytes": 16 * 1024 * 1024}
    )

    async def no_secrets(_tenant: str, _names: Any) -> dict[str, str]:
        return {}

    async with serving(plain(LARGE, headers={"content-type": "application/json"})) as server:
        outbound = Outbound(load_settings(outbound_allow="127.0.0.1"))
        tools = HttpTools(outbound, no_secrets)
        there = tool.model_copy(update={"url": server.url()})

        assert await tools.call("t", Redactor(), there, {}, "key") == {"rows": ROWS}
        blocked = min([await longest_block(tools.call("t", Redactor(), there, {}, "key")) for _ in range(3)])
        await outbound.close()
    parsing = cost(json.loads, LARGE)
    assert blocked < parsing * 0.8, (blocked, parsing)


async def test_source_of_a_long_script_is_prepared_off_the_loop() -> None:
    sandbox = Sandbox()
    lines = [f"x{number} = (state.a.b or 0) + {number}" for number in range(2500)]
    scripts = ["\n".join([*lines, f"result = x0 + {number}"]) for number in range(3)]
    try:
        assert await sandbox.script("result = 1", {}) == 1
        blocked = min([await longest_block(sandbox.script(script, {"a": {}})) for script in scripts])
    finally:
        await sandbox.close()
    preparing = min(cost(source.script, script + "\n") for script in scripts)
    assert blocked < preparing * 0.5, (blocked, preparing)
