"""Pages on a device with a wrong clock, and on a connection that answers slowly."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import OpenContext, PageProblems
from tests.ui.site import Site
from tests.ui.test_accessibility import SCREENS, open_screen

HOUR_MS = 3_600_000
SLOW_MS = 5_000
# Replaces the clock of the page; the timers keep their pace.
WRONG_CLOCK = """(() => {
  const Real = Date
  const away = OFFSET
  class Shifted extends Real {
    constructor(...given) { if (given.length === 0) super(Real.now() + away); else super(...given) }
    static now() { return Real.now() + away }
  }
  globalThis.Date = Shifted
})()"""


@pytest.mark.parametrize("offset", [HOUR_MS, -HOUR_MS])
def test_a_wrong_clock_of_the_browser_changes_no_time(
    open_context: OpenContext, site: Site, runs: dict[str, str], problems: PageProblems, offset: int
) -> None:
    context = open_context()
    context.add_init_script(WRONG_CLOCK.replace("OFFSET", str(offset)))
    page = context.new_page()
    problems.watch(page, site.url)
    # The window is counted by the clock of the server: by that of the browser it would have no run, or too many.
    page.goto(f"{site.ui}/runs?window=15m&target=slow")
    row = page.locator(f'[data-row-id="{runs["running"]}"]')
    expect(row).to_be_visible()
    texts = row.get_by_role("gridcell").all_inner_texts()
    times = [text for text in texts if re.fullmatch(r"now|(\d+s|\d+m( \d+s)?)( ago)?", text)]
    # Accepted, started, and the duration: at most minutes, not an hour, and not in the future.
    assert len(times) == 3, texts
    page.goto(f"{site.ui}/workers")
    expect(page.get_by_text("online").first).to_be_visible()
    expect(page.get_by_text("(late)")).to_have_count(0)
    started = site.call("GET", f"/runs/{runs['running']}")["started_at"]
    page.goto(f"{site.ui}/runs/{runs['running']}")
    # An exact time is that of the server.
    expect(page.locator(f'time[datetime="{started}"]').first).to_be_visible()


def slow_down(page: Page) -> None:
    """Let every further request of the page wait."""
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send(
        "Network.emulateNetworkConditions",
        {"offline": False, "latency": SLOW_MS, "downloadThroughput": -1, "uploadThroughput": -1},
    )


def test_a_slow_answer_is_explained_and_can_be_stopped(page: Page, site: Site, runs: dict[str, str]) -> None:
    page.goto(f"{site.ui}/runs")
    expect(page.locator(f'[data-row-id="{runs["failed"]}"]')).to_be_visible()
    slow_down(page)
    page.get_by_role("button", name="Status", exact=True).click()
    page.get_by_role("menuitemcheckbox", name="failed").click()
    page.keyboard.press("Escape")
    expect(page.get_by_text("The server is still searching.")).to_be_visible()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_text("The search was stopped.")).to_be_visible()
    page.get_by_role("button", name="Search again").click()
    expect(page.locator(f'[data-row-id="{runs["failed"]}"]')).to_be_visible()
    expect(page.locator(f'[data-row-id="{runs["completed"]}"]')).to_have_count(0)
    # A slow server is not an absent one.
    expect(page.get_by_text("Not connected since")).to_have_count(0)


def test_a_second_click_during_a_slow_answer_changes_nothing(page: Page, site: Site) -> None:
    page.goto(f"{site.ui}/start?target=resize")
    page.get_by_label("picture").fill("once.png")
    slow_down(page)
    start = page.get_by_role("button", name="Start the run")
    start.dblclick()
    expect(page).to_have_url(re.compile("/runs/run_"))
    found = site.call("GET", "/runs?target=resize&limit=100")["runs"]
    inputs = [site.get_run(run["run_id"])["input"] for run in found]
    assert [given["picture"] for given in inputs].count("once.png") == 1


# Buttons, fields and links that are cut off: outside of the page, or of a box around them that does not scroll.
CUT_OFF = """() => {
  // A page that scrolls sideways as a whole hides them, too.
  const cuts = (element) => element.matches('main') || /hidden|clip/.test(getComputedStyle(element).overflowX)
  const scrolls = (element) => /auto|scroll/.test(getComputedStyle(element).overflowX)
  const controls = [...document.querySelectorAll('main :is(button, a[href], input, select, textarea)')]
  const cutOff = (element) => {
    const box = element.getBoundingClientRect()
    if (box.width === 0 || !element.checkVisibility({ visibilityProperty: true })) return false
    for (let around = element.parentElement; around !== document.body; around = around.parentElement) {
      if (!cuts(around) && scrolls(around) || around.matches('.react-flow, [role=treegrid]')) return false
      const edge = around.getBoundingClientRect()
      if (cuts(around) && (box.left < edge.left - 2 || box.right > edge.right + 2)) return true
    }
    return box.right > innerWidth + 2 || box.left < -2
  }
  return controls.filter(cutOff).map((element) => element.outerHTML.slice(0, 200))
}"""


def cut_off(page: Page) -> list[str]:
    return page.evaluate(CUT_OFF)


def test_every_screen_is_used_at_200_percent(
    open_context: OpenContext, site: Site, runs: dict[str, str], problems: PageProblems
) -> None:
    # A browser window of 1280 by 800 pixels at 200 % has this many CSS pixels.
    page = open_context(viewport={"width": 640, "height": 400}, device_scale_factor=2).new_page()
    problems.watch(page, site.url)
    for name in SCREENS:
        open_screen(page, site, runs, name)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        assert cut_off(page) == [], name
