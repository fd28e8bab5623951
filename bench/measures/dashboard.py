"""The dashboard in a real browser: long runs, large graphs, many workers, and changes that appear by themselves.

One `runlane dev` on SQLite serves one Chromium. A page counts as open when what its reader came for is visible. The
times include the browser, the server and, for a change, the commit that it follows.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from playwright.async_api import Browser, Page, async_playwright
from tests import forking
from tests.ui.browser import ARGUMENTS, find_chromium, with_environment
from tests.ui.site import Site, open_site

from bench.measures import Sizes
from bench.samples import Sample
from bench.servers import Servers

SYSTEM: Final = "runlane"
RUN: Final = "long run, page open"
TASK: Final = "long run, longest task while it is scrolled"
EVENTS: Final = "long run, first events"
GRAPH: Final = "graph of 300 steps"
WORKERS: Final = "200 workers"
LIVE: Final = "a new run in the list, after its commit"
_TIMEOUT_MS: Final = 60_000
_STEPS: Final = 300
_CALM_SECONDS: Final = 2.5
_WORKERS: Final = 200
_EVENTS_PER_ROUND: Final = 4
# Tasks of the main thread that are longer than 50 ms, which browsers report.
_OBSERVE: Final = """
window.longTasks = [];
new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((entry) => entry.duration)))
  .observe({ type: 'longtask', buffered: true });
"""


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield the times of each page, once for each repeat."""
    forking.prepare()
    chromium = find_chromium()
    with TemporaryDirectory() as folder, open_site(Path(folder)) as site:
        run_id = _long_run(site, sizes.dashboard_events // _EVENTS_PER_ROUND)
        site.call("POST", "/sync", {"orchestrations": [_chain()], "source": "chain"})
        _add_workers(Path(folder) / "runlane.db")
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=chromium.path, args=ARGUMENTS, env=with_environment(chromium)
            )
            for repeat in range(sizes.repeats):
                async for name, values in _pages(browser, site, run_id):
                    yield Sample("dashboard", SYSTEM, name, repeat, "ms", values)
            await browser.close()
        # The long run has ended; the others would delay an orderly stop.
        site.server.kill()


async def _pages(browser: Browser, site: Site, run_id: str) -> AsyncGenerator[tuple[str, list[float]]]:
    async def opened(page: Page, path: str, *visible: str) -> float:
        started = time.perf_counter()
        await page.goto(f"{site.ui}{path}", wait_until="commit")
        for selector in visible:
            await page.wait_for_selector(selector, timeout=_TIMEOUT_MS)
        return (time.perf_counter() - started) * 1000

    # The code of the page is in the cache of the browser, as for a reader who was here before.
    context = await browser.new_context(viewport={"width": 1440, "height": 900})
    page = await context.new_page()
    await page.add_init_script(_OBSERVE)
    await opened(page, "/runs", "[data-row-id]")
    yield RUN, [await opened(page, f"/runs/{run_id}", '[data-span="rounds"]', '[data-span="last"]')]
    yield TASK, [await _scroll(page)]
    yield EVENTS, [await opened(page, f"/runs/{run_id}?tab=events", '[data-seq="1"]')]
    yield GRAPH, [await opened(page, "/definitions/orchestrations/chain", f'[data-step="step{_STEPS}"]')]
    yield WORKERS, [await opened(page, "/workers", '[data-row-id^="wrk_bench"]')]
    await opened(page, "/runs", "[data-row-id]")
    yield LIVE, [await _appears(page, site) for _ in range(5)]
    await context.close()


async def _scroll(page: Page) -> float:
    """Unfold the rounds of the long run and scroll through them; return the longest task, at least 1."""
    await page.locator('[data-span="rounds"]').get_by_role("button", name="Unfold").click()
    await page.wait_for_selector('[data-span="rounds/1"]', timeout=_TIMEOUT_MS)
    await page.evaluate("window.longTasks.length = 0")
    await page.mouse.move(600, 700)
    for _ in range(60):
        await page.mouse.wheel(0, 400)
        await _next_frame(page)
    return max([1.0, *await page.evaluate("window.longTasks")])


async def _appears(page: Page, site: Site) -> float:
    """Return the time until a run that starts is offered. A page refreshes at once, and then once a second at most."""
    await asyncio.sleep(_CALM_SECONDS)
    offer = page.get_by_role("button", name="new run")
    site.run_task("resize", input={"picture": "bench.png"})
    started = time.perf_counter()
    await offer.wait_for(timeout=_TIMEOUT_MS)
    took = (time.perf_counter() - started) * 1000
    await offer.click()
    await offer.wait_for(state="hidden", timeout=_TIMEOUT_MS)
    return took


async def _next_frame(page: Page) -> None:
    await page.evaluate("new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")


def _long_run(site: Site, rounds: int) -> str:
    loop = {"id": "rounds", "type": "loop", "loop_step_ids": ["round"], "loop_count": rounds, "collect": False}
    steps = [
        {**loop, "next_step_id": "last"},
        {"id": "round", "type": "print", "print_content": "One more."},
        {"id": "last", "type": "print", "print_content": "All rounds are done."},
    ]
    body = {"id": "long", "max_total_turns": 2 * rounds, "steps": steps}
    site.call("POST", "/sync", {"orchestrations": [body], "source": "long"})
    run_id = site.orchestrate("long", "many rounds")
    while site.call("GET", f"/runs/{run_id}/status")["status"] != "completed":
        time.sleep(0.2)
    return run_id


def _chain() -> dict[str, Any]:
    """Return an orchestration of 300 steps, of which each third one branches."""
    steps: list[dict[str, Any]] = []
    for number in range(1, _STEPS + 1):
        step: dict[str, Any] = {"id": f"step{number}", "type": "print", "print_content": "x"}
        following = f"step{number + 1}"
        if number % 3 == 0 and number + 2 <= _STEPS:
            step = {
                "id": f"step{number}", "type": "if_else", "if_condition": "True", "if_true_step_id": following,
                "if_false_step_id": f"step{number + 2}",
            }  # fmt: skip
        elif number < _STEPS:
            step["next_step_id"] = following
        steps.append(step)
    return {"id": "chain", "steps": steps}


def _add_workers(path: Path) -> None:
    later = time.time_ns() // 1000 + 3_600_000_000
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        connection.executemany(
            "insert into workers (id, status, host, pid, version, lanes, capacity, active, has_lock, started_at, "
            "heartbeat_at, lease_until) values (?, 'online', ?, 1, '0', '[\"default\"]', 100, 40, 0, 0, ?, ?)",
            [(f"wrk_bench{number:04}", f"host-{number % 20}", later, later) for number in range(_WORKERS)],
        )
        connection.commit()
