"""The pytest fixtures of the testing kit, in projects of their own: one process, several tests, a database for each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TASKS = """
from runlane import App, Context

app = App()
seen = []


@app.task("double")
async def double(ctx: Context, number: int) -> int:
    await ctx.checkpoint(number)
    return number * 2


@app.task("moody", max_attempts=2)
def moody(ctx: Context) -> int:
    seen.append(ctx.attempt)
    if ctx.attempt == 1:
        raise ValueError("not today")
    return ctx.attempt
"""

CONFTEST = """
import pytest

from tasks import app

pytest_plugins = ["runlane.testing.pytest_plugin"]


@pytest.fixture
def runlane_app():
    return app


@pytest.fixture
def runlane_settings(runlane_settings):
    return runlane_settings.model_copy(update={"default_model": "scripted"})
"""

ASYNC_TESTS = """
import pytest

from runlane import Status

ASKS = {
    "id": "asks",
    "entry_step_id": "ask",
    "steps": [{"type": "human", "id": "ask", "human_prompt": "Well?", "human_fields": [{"name": "word"}]}],
}
SILENT = {"id": "silent", "entry_step_id": "say", "steps": [{"type": "print", "id": "say", "print_content": "no"}]}


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [1, 2, 3])
async def test_each_test_has_a_database_of_its_own(running_app, number, tmp_path):
    run = await running_app.run("double", {"number": number}, idempotency_key="the same in each test")
    assert (run.status, run.result) == (Status.COMPLETED, number * 2)
    assert str(tmp_path) in running_app.app.settings.shown_database


@pytest.mark.asyncio
async def test_failures_are_tried_again(running_app):
    assert (await running_app.run("moody")).result == 2


@pytest.mark.asyncio
async def test_a_question_is_awaited_and_answered(running_app):
    app = running_app.app
    await app.sync({"orchestrations": [ASKS, SILENT]})
    run_id = (await app.orchestrate("asks")).run_id
    asked = await running_app.question(run_id)
    assert (asked.prompt, asked.step_id) == ("Well?", "ask")
    with pytest.raises(TimeoutError, match='did not ask a question of step "other" within 0.1 s'):
        await running_app.question(run_id, step="other", timeout=0.1)
    assert await running_app.answer(run_id, {"word": "yes"}) == asked
    assert (await app.wait(run_id, 30)).result == {"word": "yes"}
    silent = (await app.orchestrate("silent")).run_id
    with pytest.raises(AssertionError, match="ended as completed and did not ask"):
        await running_app.question(silent)
"""

PLAIN_TESTS = """
import pytest


@pytest.mark.parametrize("number", [1, 2])
def test_a_plain_test_has_a_running_app(running_app_in_thread, number):
    app = running_app_in_thread.app
    assert app.blocking(running_app_in_thread.run("double", {"number": number})).result == number * 2
"""


# Plugins of the packages that this suite needs: importing them takes longer than the tests of the projects.
NOT_OURS = [f"-pno:{plugin}" for plugin in ("schemathesis", "langsmith_plugin", "hypothesispytest", "cacheprovider")]


def _pytest(folder: Path, *arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", *NOT_OURS, *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (folder / "tasks.py").write_text(TASKS)
    (folder / "conftest.py").write_text(CONFTEST)
    return folder


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_async_and_plain_tests_share_a_process(project: Path, mode: str) -> None:
    (project / "test_async.py").write_text(ASYNC_TESTS)
    (project / "test_plain.py").write_text(PLAIN_TESTS)
    # What a developer has in the environment does not reach the tests: they neither read that database nor share Redis.
    elsewhere = {"RUNLANE_DATABASE_URL": "sqlite:////nowhere/at/all.db", "RUNLANE_REDIS_URL": "redis://127.0.0.1:1"}
    result = _pytest(project, "-o", f"asyncio_mode={mode}", **elsewhere)
    assert "7 passed" in result, result


def test_one_event_loop_for_all_tests_works_as_well(project: Path) -> None:
    (project / "test_async.py").write_text(ASYNC_TESTS)
    scopes = [f"asyncio_default_{what}_loop_scope=session" for what in ("test", "fixture")]
    result = _pytest(project, *(word for scope in scopes for word in ("-o", scope)))
    assert "5 passed" in result, result


def test_without_pytest_asyncio_plain_tests_work_and_async_ones_explain_why_not(project: Path) -> None:
    conftest = f"import sys\n\nsys.modules['pytest_asyncio'] = None\n{CONFTEST}"
    (project / "pytest.ini").write_text("[pytest]\n")
    (project / "conftest.py").write_text(conftest)
    (project / "test_plain.py").write_text(PLAIN_TESTS + "\n\ndef test_needs_a_loop(running_app):\n    pass\n")
    result = _pytest(project, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert "2 passed, 1 error" in result, result
    assert "The fixture running_app needs pytest-asyncio" in result


def test_a_missing_app_is_an_error_with_the_cure(project: Path) -> None:
    (project / "conftest.py").write_text('pytest_plugins = ["runlane.testing.pytest_plugin"]\n')
    (project / "test_plain.py").write_text(PLAIN_TESTS)
    result = _pytest(project)
    assert "The fixture runlane_app is not defined. Define it in conftest.py" in result


def test_the_same_tests_run_on_postgres(project: Path) -> None:
    with (project / "conftest.py").open("a") as conftest:
        conftest.write(
            "\n\n@pytest.fixture\ndef runlane_database_url(runlane_postgres_url):\n    return runlane_postgres_url\n"
        )
    (project / "test_async.py").write_text(ASYNC_TESTS.replace("str(tmp_path) in", '"runlane_test_" in'))
    (project / "test_plain.py").write_text(PLAIN_TESTS)
    result = _pytest(project)
    assert "7 passed" in result, result
