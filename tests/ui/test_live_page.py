"""A page that watches: takeovers, outages of the server, and one stream for all tabs."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from runlane.testing import PostgresServer
from tests.server_process import command, serving
from tests.ui.conftest import OpenContext, PageProblems
from tests.ui.site import Site, keyed_site, open_site, prepare_folder, wait_until


@pytest.fixture
def watcher(open_context: OpenContext, problems: PageProblems) -> Page:
    # The browser logs each request that the absent server does not answer.
    problems.expected += ["ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_INCOMPLETE_CHUNKED", "ERR_EMPTY"]
    return open_context().new_page()


def sequence(page: Page) -> list[int]:
    """Return the numbers of the events that the page shows."""
    shown: list[str] = page.locator("[data-seq]").evaluate_all("rows => rows.map(row => row.dataset.seq)")
    return [int(number) for number in shown]


def test_a_page_says_that_the_server_is_away_and_repairs_itself(
    watcher: Page, problems: PageProblems, tmp_path: Path
) -> None:
    with open_site(tmp_path) as site:
        problems.watch(watcher, site.url)
        run_id = site.run_task("talk", input={"lines": 200, "pause_seconds": 0.05})
        watcher.goto(f"{site.ui}/runs/{run_id}?tab=logs")
        expect(watcher.get_by_text("line 3", exact=True)).to_be_visible()
        port = site.server.port
        site.server.kill()
        bar = watcher.get_by_text("Not connected since")
        expect(bar).to_be_visible()
        # What was read stays, and does not look current.
        expect(watcher.get_by_text("line 3", exact=True)).to_be_visible()
        expect(watcher.locator("main")).to_have_css("filter", "grayscale(1)")
        with serving(tmp_path, site.variables, "dev", "tasks:app", port=port) as again:
            expect(bar).to_be_hidden(timeout=60_000)
            expect(watcher.locator("main")).to_have_css("filter", "none")
            expect(watcher.get_by_text("line 200", exact=True)).to_be_attached(timeout=300_000)
            lines = watcher.get_by_role("list", name="Log lines").locator("li").all_inner_texts()
            numbers = [int(text.split("line ")[1].split()[0]) for text in lines if "line " in text]
            # The task repeats the line that was stored without its checkpoint, if the kill came in between.
            assert sorted(set(numbers)) == list(range(1, 201))
            assert numbers == sorted(numbers)
            assert len(numbers) <= 201
            again.kill()


OBSERVE_BAR = """() => {
  window.shownAgain = 0
  let shown = true
  new MutationObserver(() => {
    const now = document.body.innerText.includes('Not connected since')
    if (now && !shown) window.shownAgain += 1
    shown = now
  }).observe(document.body, { childList: true, subtree: true, characterData: true })
}"""


def test_a_page_waits_for_a_server_whose_database_is_away(
    watcher: Page, problems: PageProblems, tmp_path: Path
) -> None:
    """The process answers, but no request can be served: the page looks for it calmly, and repairs itself."""
    problems.expected += ["401", "503"]
    with PostgresServer() as postgres:
        url = postgres.create_database("away")
        assert command(tmp_path, "db", "upgrade", RUNLANE_DATABASE_URL=url).returncode == 0
        with keyed_site(tmp_path, RUNLANE_DATABASE_URL=url) as site:
            problems.watch(watcher, site.url)
            run_id = site.run_task("slow", input={}, hold=True)
            watcher.goto(f"{site.ui}/runs")
            assert site.key is not None
            watcher.get_by_label("API key").fill(site.key)
            watcher.get_by_role("button", name="Sign in").click()
            row = watcher.locator(f'[data-row-id="{run_id}"]')
            expect(row).to_be_visible()
            postgres.kill()
            watcher.get_by_role("link", name="Lanes").click()
            bar = watcher.get_by_text("Not connected since")
            expect(bar).to_be_visible()
            watcher.evaluate(OBSERVE_BAR)
            for _ in range(3):
                with watcher.expect_response(re.compile("/(health|ready)$")):
                    pass
            assert watcher.evaluate("window.shownAgain") == 0
            postgres.start()
            expect(bar).to_be_hidden(timeout=60_000)
            watcher.get_by_role("link", name="Runs", exact=True).click()
            expect(row).to_be_visible()
            site.server.kill()


class WorkerFleet:
    """Workers as processes of their own, by id."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self._folder = folder
        self._variables = variables
        self.processes: list[Any] = []

    def start(self, **settings: str) -> None:
        import subprocess
        import sys

        from tests import forking
        from tests.server_process import environment

        self.processes.append(
            forking.Popen(
                [sys.executable, "-m", "runlane", "worker", "tasks:app"],
                cwd=self._folder,
                env=environment(**self._variables, **settings),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def fleet(tmp_path: Path) -> Generator[tuple[Site, WorkerFleet]]:
    variables = prepare_folder(tmp_path)
    workers = WorkerFleet(tmp_path, variables)
    with serving(tmp_path, variables, "dev", "tasks:app", "--lanes", "media") as server:
        try:
            yield Site(server, tmp_path, variables), workers
        finally:
            workers.stop()


def test_a_takeover_is_shown_without_a_lost_or_doubled_event(
    watcher: Page, problems: PageProblems, fleet: tuple[Site, WorkerFleet]
) -> None:
    site, workers = fleet
    problems.watch(watcher, site.url)
    workers.start()
    run_id = site.run_task("talk", input={"lines": 120, "pause_seconds": 0.05})
    watcher.goto(f"{site.ui}/runs/{run_id}?tab=events")
    expect(watcher.locator('[data-seq="6"]')).to_be_visible()
    wait_until(lambda: site.get_run(run_id)["last_seq"] > 20 or None, "some events")
    workers.start()
    os.kill(workers.processes[0].pid, signal.SIGKILL)
    run = site.wait_for(run_id, "completed")
    assert run["losses"] == 1
    watcher.get_by_label("Type of event").select_option("worker_lost")
    expect(watcher.locator("[data-seq]")).to_have_count(1)
    watcher.get_by_label("Type of event").select_option("log")
    expect(watcher.get_by_text(f"to {run['last_seq']} of {run['last_seq']}")).to_be_visible()
    # One more if the worker died between a line and its checkpoint.
    expect(watcher.get_by_text(re.compile("12[01] match"))).to_be_visible()
    watcher.get_by_role("link", name="Attempts").click()
    lost = watcher.get_by_role("listitem").filter(has_text="The worker died or was cut off.")
    # The worker is gone, and its page shows what was lost with it.
    lost.get_by_role("link").click()
    losses = watcher.get_by_role("dialog").get_by_role("list", name="Lost attempts")
    expect(losses.get_by_role("link", name=run_id[-8:])).to_be_visible()


def test_a_worker_that_stops_shows_how_long_its_runs_may_take(
    watcher: Page, problems: PageProblems, fleet: tuple[Site, WorkerFleet]
) -> None:
    site, workers = fleet
    problems.watch(watcher, site.url)
    workers.start(RUNLANE_GRACE_SECONDS="3000")
    run_id = site.run_task("talk", input={"lines": 100_000, "pause_seconds": 0.2})
    worker_id = site.wait_for(run_id, "running")["worker_id"]
    watcher.goto(f"{site.ui}/workers")
    row = watcher.locator(f'[data-row-id="{worker_id}"]')
    expect(row).to_contain_text("online")
    os.kill(workers.processes[0].pid, signal.SIGTERM)
    left = row.get_by_text(re.compile(r"\d+m( \d+s)? left"))
    expect(left).to_be_visible()
    expect(row).to_contain_text("draining")
    # It counts down.
    expect(left).not_to_have_text(left.inner_text())
    assert site.call("GET", f"/workers/{worker_id}")["worker"]["drain_until"] is not None


def test_tabs_share_one_stream_of_hints(open_context: OpenContext, problems: PageProblems, site: Site) -> None:
    context = open_context()
    streams: list[str] = []
    context.on("request", lambda request: streams.append(request.url) if request.url.endswith("/live") else None)
    pages = [context.new_page() for _ in range(3)]
    for page in pages:
        problems.watch(page, site.url)
        page.goto(f"{site.ui}/runs?status=awaiting_approval&window=all")
        expect(page.get_by_role("button", name="Live", exact=True)).to_be_visible()
    assert len(streams) == 1
    run_id = site.run_task("slow", input={}, hold=True)
    for page in pages:
        page.bring_to_front()
        expect(page.locator(f'[data-row-id="{run_id}"]').or_(page.get_by_text("1 new run"))).to_be_visible()
    # The tab that reads the stream leaves; another one takes over.
    pages[0].close()
    expect(pages[1].get_by_role("button", name="Live", exact=True)).to_be_visible()

    def taken_over() -> bool | None:
        # The driver delivers requests only while a page is called.
        pages[1].evaluate("1")
        return len(streams) == 2 or None

    wait_until(taken_over, "another tab to read the stream")


def test_updates_can_be_paused(page: Page, site: Site) -> None:
    run_id = site.run_task("slow", input={}, hold=True)
    page.goto(f"{site.ui}/runs/{run_id}")
    expect(page.get_by_role("button", name="Live", exact=True)).to_be_visible()
    page.get_by_role("button", name="Live", exact=True).click()
    expect(page.get_by_role("button", name="Paused", exact=True)).to_be_visible()
    site.call("POST", f"/runs/{run_id}/cancel", {})
    page.get_by_role("button", name="Paused", exact=True).click()
    expect(page.locator("header").filter(has_text="cancelled").first).to_be_visible()
