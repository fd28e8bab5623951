"""The web chat of the examples in a browser: `useStream` of the unmodified JavaScript SDK, and a worker that dies."""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests import forking, npm
from tests.server_process import environment, serving
from tests.ui.conftest import OpenContext, PageProblems
from tests.ui.site import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "webchat"
OFFER = "I have found the 9:40 train to Vienna for 38 euro. It leaves from platform 4 and takes two hours"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example with its built page."""
    npm.install(EXAMPLE / "web")
    npm.run(EXAMPLE / "web", "npm", "run", "--silent", "build")
    folder = tmp_path_factory.mktemp("webchat") / "project"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules", "__pycache__", ".lock"))
    return folder


@contextmanager
def worker(folder: Path, variables: dict[str, str], word_seconds: float) -> Generator[subprocess.Popen[bytes]]:
    """Run `runlane worker`, whose model needs this long for a word; kill it at the end of the block."""
    env = environment(**variables, **forking.GRAPHS, WORD_SECONDS=str(word_seconds))
    with (folder / "worker.log").open("ab") as log:
        process = forking.Popen(
            [sys.executable, "-m", "runlane", "worker"], cwd=folder, env=env,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def hosts_graph(url: str) -> bool | None:
    """Return whether a worker has registered the graph; None if not yet."""
    try:
        with urllib.request.urlopen(f"{url}/assistants/travel", timeout=30):
            return True
    except urllib.error.HTTPError:
        return None


def messages(page: Page, text: str) -> None:
    expect(page.get_by_role("list", name="Messages")).to_contain_text(text)


def test_a_chat_streams_asks_and_survives_its_worker(
    open_context: OpenContext, problems: PageProblems, project: Path
) -> None:
    variables = {"RUNLANE_DATABASE_URL": f"sqlite:///{project / 'runlane.db'}"}
    with serving(project, variables, "serve") as server:
        page = open_context().new_page()
        problems.watch(page, server.url)
        with worker(project, variables, 0.4) as victim:
            wait_until(lambda: hosts_graph(server.url), "the graph")
            page.goto(f"{server.url}/chat")
            page.get_by_role("textbox", name="Message").fill("Please book a train")
            page.keyboard.press("Enter")
            messages(page, "Please book a train")
            # The first words are shown while the answer is written.
            messages(page, "I have found")
            expect(page.get_by_role("status")).to_have_text("The assistant is writing.")
            victim.kill()
        with worker(project, variables, 0.01):
            messages(page, OFFER)
            question = page.get_by_role("region", name="Question")
            expect(question).to_contain_text("Book the 9:40 train to Vienna for 38 euro?")
            expect(page.get_by_role("listitem")).to_have_count(2)
            page.reload()
            messages(page, OFFER)
            question.get_by_role("button", name="yes").click()
            messages(page, "Booked: the 9:40 train to Vienna for 38 euro.")
            expect(question).to_be_hidden()
            expect(page.get_by_role("status")).to_have_text("Ready.")
            expect(page.get_by_role("listitem")).to_have_count(3)
