"""Redis is emptied or dies under an open page: nothing that the page shows is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import redis
from playwright.sync_api import Page, expect

from runlane.testing import RedisServer
from tests.server_process import serving
from tests.ui.conftest import OpenContext, PageProblems
from tests.ui.site import Site, prepare_folder, wait_until
from tests.ui.test_live_page import WorkerFleet

LINES = 150
Fault = Callable[[RedisServer], None]


@pytest.fixture
def own_redis() -> Generator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def connected(tmp_path: Path, own_redis: RedisServer) -> Generator[Site]:
    """A server and, in a process of its own, the worker of the lane `default`. Redis connects them."""
    variables = {**prepare_folder(tmp_path), "RUNLANE_REDIS_URL": own_redis.url}
    workers = WorkerFleet(tmp_path, variables)
    with serving(tmp_path, variables, "dev", "tasks:app", "--lanes", "media") as server:
        try:
            workers.start()
            yield Site(server, tmp_path, variables)
        finally:
            workers.stop()
            server.kill()


def flush(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()


def kill(server: RedisServer) -> None:
    server.kill()


def restart(server: RedisServer) -> None:
    server.kill()
    server.start()


@pytest.mark.parametrize("fault", [flush, kill, restart])
def test_a_page_loses_nothing_when_redis_does(
    open_context: OpenContext, problems: PageProblems, connected: Site, own_redis: RedisServer, fault: Fault
) -> None:
    page = open_context().new_page()
    problems.watch(page, connected.url)
    run_id = connected.run_task("talk", input={"lines": LINES, "pause_seconds": 0.05})
    page.goto(f"{connected.ui}/runs/{run_id}?tab=logs")
    expect(page.get_by_text("line 3", exact=True)).to_be_visible()
    page.evaluate("window.sameDocument = true")
    fault(own_redis)
    wait_until(lambda: connected.get_run(run_id)["last_seq"] > LINES // 2 or None, "events after the fault")
    if fault is flush:
        fault(own_redis)
    connected.wait_for(run_id, "completed")
    expect(page.get_by_text(f"line {LINES}", exact=True)).to_be_attached()
    assert numbers_of(page) == list(range(1, LINES + 1))
    expect(page.locator("header").filter(has_text="completed").first).to_be_visible()
    assert page.evaluate("window.sameDocument") is True
    # The list of runs receives hints, too.
    page.goto(f"{connected.ui}/runs?target=talk")
    expect(page.locator(f'[data-row-id="{run_id}"]')).to_be_visible()
    connected.run_task("talk", input={"lines": 1})
    expect(page.get_by_text("1 new run")).to_be_visible()


def numbers_of(page: Page) -> list[int]:
    """Return the numbers of the lines that the page shows, in its order."""
    lines = page.get_by_role("list", name="Log lines").locator("li").all_inner_texts()
    return [int(text.split("line ")[1].split()[0]) for text in lines if "line " in text]
