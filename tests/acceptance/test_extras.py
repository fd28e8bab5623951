"""Without the optional packages everything else works, and what needs one names the extra that installs it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from runlane.extras import PACKAGES
from tests.server_process import environment

ROOT = Path(__file__).parents[2]
# Imports fail as if the packages were not installed.
PREFIX = f"""
import asyncio, sys
for name in {sorted({name for names in PACKAGES.values() for name in names})!r}:
    sys.modules[name] = None
"""
BASE = (
    PREFIX
    + """
from runlane import App
from runlane.api.server import build_api

app = App()

@app.task("greet")
async def greet(ctx, name: str) -> str:
    return f"Hello {name}"

async def main() -> None:
    build_api(app)
    async with app:
        worker = await app.worker()
        await worker.start()
        run = await app.enqueue("greet", {"name": "Ada"})
        print((await app.wait(run.run_id, timeout=60)).result)
        await worker.stop()

asyncio.run(main())
"""
)
OPEN = {
    "postgres": "from runlane import App; asyncio.run(App().connect())",
    "redis": "from runlane import App; asyncio.run(App().connect())",
    "otel": "from runlane import App; from runlane.api.server import build_api; build_api(App())",
}
SETTINGS = {
    "postgres": {"RUNLANE_DATABASE_URL": "postgresql://app@127.0.0.1:1/app"},
    "redis": {"RUNLANE_REDIS_URL": "redis://127.0.0.1:1"},
    "otel": {"RUNLANE_OTLP_ENDPOINT": "http://127.0.0.1:1"},
}
MODEL = (
    PREFIX
    + """
from pathlib import Path
from runlane import App
app = App()

async def main() -> None:
    from runlane.catalog.sync import sync_definitions
    from runlane.definitions.loader import parse_bodies
    loaded = parse_bodies({"agents": [{"id": "ada", "model": "MODEL", "system_prompt": "Answer."}]})
    async with app:
        await sync_definitions(await app.database(), "default", loaded, actor="test")
        worker = await app.worker()
        await worker.start()
        run = await app.ask("ada", "Hello")
        print((await app.wait(run.run_id, timeout=60)).error["message"])
        await worker.stop()

asyncio.run(main())
"""
)


def python(folder: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder, env=environment(**variables), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_tasks_and_the_api_need_no_extra(tmp_path: Path) -> None:
    done = python(tmp_path, BASE)
    assert (done.returncode, "\nHello Ada\n" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize("extra", sorted(OPEN))
def test_a_setting_that_needs_a_package_names_its_extra(tmp_path: Path, extra: str) -> None:
    done = python(tmp_path, PREFIX + OPEN[extra], **SETTINGS[extra])
    assert f"pip install 'runlane[{extra}]'" in done.stderr


@pytest.mark.parametrize(("model", "extra"), [("openai:gpt-5-mini", "openai"), ("anthropic:claude-5", "anthropic")])
def test_a_run_with_a_model_of_a_missing_provider_fails_with_its_extra(tmp_path: Path, model: str, extra: str) -> None:
    done = python(tmp_path, MODEL.replace("MODEL", model), OPENAI_API_KEY="k", ANTHROPIC_API_KEY="k")
    assert f"pip install 'runlane[{extra}]'" in done.stdout, done.stderr


def test_every_extra_is_declared_and_in_all() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(PACKAGES) <= set(declared)
    (everything,) = declared["all"]
    assert everything == f"runlane[{','.join(sorted(set(declared) - {'all'}))}]"
