"""`runlane runs show` prints values as JSON, so that what a person copies from it can be used again."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from pydantic import SecretStr

from runlane import App, Context, Settings
from tests import forking


async def test_values_are_shown_as_json(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runlane.db"
    app = App(Settings(database_url=SecretStr(url)))

    @app.task("greet")
    async def greet(ctx: Context, name: str, loud: bool) -> None:
        await ctx.log(f"Hello {name}", loud=loud)

    async with app:
        accepted = await app.enqueue("greet", {"name": "Zoë", "loud": True})
    shown = await asyncio.to_thread(_show, accepted.run_id, url)
    assert '{"name":"Zoë","loud":true}' in shown
    assert 'queued  {"status":"queued"}' in shown


def _show(run_id: str, url: str) -> str:
    return forking.run(
        [sys.executable, "-m", "runlane", "runs", "show", run_id],
        env={**os.environ, "RUNLANE_DATABASE_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
