"""Fuzzing over the API's own description: no server error, no status or shape that it does not announce."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from runlane.access.keyring import new_key
from runlane.app import App
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.settings import Settings
from runlane.store.access.keys import create_key
from tests.acceptance.api.serving import START_SECONDS, process
from tests.scale import scaled

_CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "response_headers_conformance,ignored_auth"
)


# Thousands of requests: minutes on a busy machine. Postgres checks the types of all values, so it refuses more of them.
@pytest.mark.parametrize("settings", scaled(("postgres-redis",), ("sqlite", "postgres-redis")), indirect=True)
@pytest.mark.timeout(1200)
async def test_the_api_keeps_to_its_description_for_any_request(settings: Settings, tmp_path: Path) -> None:
    async with App(settings) as app:
        # One agent, under the name that the examples have, so that messages get as far as a conversation.
        loaded = parse_bodies({"agents": [{"id": "helper", "model": "scripted", "answers": ["Hello."]}]})
        await sync_definitions(await app.database(), "default", loaded, actor="test")
        _, key = await create_key(await app.database(), "fuzz", "platform_admin", actor="test")
    command = ("serve", "tests.acceptance.api.shop:app", "--port", "0", "--worker")
    with process(*command, settings=settings, RUNLANE_SECRET_KEY=new_key()) as server:
        url = server.wait_for("serving")["url"]
        # The first request computes the description; on a busy machine that takes longer than schemathesis waits.
        async with httpx2.AsyncClient(timeout=START_SECONDS, trust_env=False) as client:
            assert (await client.get(f"{url}/openapi.json")).status_code == 200
        # These wait for the end of a run, and the other endpoints may stop lanes.
        await _fuzz(url, key, tmp_path, "--include-path-regex", "^/(v1|ag-ui)/")
        # Long polls and streams of open runs take long; the aliases are the same routes.
        without = "(/wait|/stream|/live)$|/orchestrations/runs/|^/(v1|ag-ui)/"
        await _fuzz(url, key, tmp_path, "--exclude-path-regex", without)


async def _fuzz(url: str, key: str, folder: Path, *chosen: str) -> None:
    fuzzing = [
        str(Path(sys.executable).with_name("schemathesis")), "run", f"{url}/openapi.json",
        "--phases", "examples,fuzzing", "--max-examples", str(scaled(2, 25)), "--checks", _CHECKS, "--seed", "7",
        "--header", f"Authorization: Bearer {key}", "--request-timeout", "30", "--no-color",
        "--generation-database", "none", "--mode", "all", *chosen,
    ]  # fmt: skip
    found = await asyncio.to_thread(
        subprocess.run,
        fuzzing,
        cwd=folder,
        env={**os.environ, "NO_PROXY": "*", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert found.returncode == 0, found.stdout[found.stdout.find("FAILURES") :][:8000] + found.stderr[-2000:]
