"""The order in which the Tab key reaches the controls of the main pages, and that it leaves every one of them."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.ui.site import Site

MOST_STOPS = 400
# The name of the focused control, as a screen reader says it. Those of several rows are one entry. A table is one stop:
# the arrow keys move in it.
FOCUSED = """() => {
  const at = document.activeElement
  if (at === null || at === document.body) return null
  if (at.closest('[data-row-id]')) return 'rows'
  if (at.closest('[aria-label="Open questions"]')) return 'questions'
  const named = at.getAttribute('aria-label') ?? at.labels?.[0]?.innerText ?? at.innerText ?? ''
  const name = named.trim().split(/\\n/)[0]
  if (/was declined|ZeroDivisionError/.test(name)) return 'causes'
  return /^[0-9a-f]{8}$/.test(name) ? 'id' : name.replace(/[\\d.,]*\\d/g, '#')
}"""
NAVIGATION = [
    *("Skip to the content", "Runlane", "Overview", "Runs", "Inbox", "Chat", "Dead letters", "Definitions"),
    *("Memories", "Threads", "Schedules", "Webhooks", "Lanes", "Workers", "Usage", "Access", "Secrets", "System"),
    "Narrow the navigation",
]
TOP_BAR = ["Search or paste an id", "Live", "Local", "Theme", "Keyboard shortcuts", "Account"]
FRAME = [*NAVIGATION, *TOP_BAR]
BAR = "#:#:#: # accepted, # started, # completed, # failed, # cancelled"
TOTALS = ["accepted: #", "started: #", "completed: #", "failed: #", "cancelled: #", "cost: $#"]
# The path of each page, something that is visible once it is loaded, and its stops.
PAGES = {
    "overview": (
        "/",
        "was declined",
        [
            *FRAME,
            *("Running", "Ready", "Later", "Questions", "Dead letters", "Workers", "Cost today (UTC)"),
            *("Window", BAR, *TOTALS, "media", "billing", "default", "causes", "All runs", "Newest runs"),
        ],
    ),
    "runs": (
        "/runs",
        "no more match",
        [
            *FRAME,
            *("Views", "Export", "Columns", "Start a run"),
            *("Text in id, target, key or progress note", "Status", "Time window"),
            *("Freeze the window: make its bounds exact times", "Filters", "Child runs"),
            *("Runs", "Select all loaded rows", "rows"),
        ],
    ),
    "run": (
        "/runs/{published}",
        "publish",
        [
            *FRAME,
            *("Runs", "report", "Copy the id", "More actions", "default", "id"),
            *("Timeline", "Graph", "Conversation", "Events", "State", "Attempts", "Input and result", "Logs"),
            *("Fold idle time", "Fold finished branches", "Zoom in (Ctrl and wheel)", "Steps of the run"),
        ],
    ),
    # The focus begins at the first question.
    "inbox": (
        "/inbox",
        "Publish the report about the old lighthouse?",
        ["questions", "Claim", "Copy the link to this question", "helper", "As JSON", "approve", "As a command"],
    ),
    "lanes": ("/lanes", "Keeps up.", [*FRAME, "New lane", "Copy as a command", "Lanes", "rows"]),
}


@pytest.mark.parametrize("name", PAGES)
def test_the_tab_key_reaches_every_control_in_order_and_leaves_the_page(
    page: Page, site: Site, runs: dict[str, str], name: str
) -> None:
    path, sign, expected = PAGES[name]
    page.goto(site.ui + path.format(**runs))
    expect(page.get_by_text(sign).first).to_be_visible()
    assert stops(page) == expected


def stops(page: Page) -> list[str]:
    """Press Tab until the focus leaves the page, and return the controls that had it."""
    found: list[str] = []
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        control: str | None = page.evaluate(FOCUSED)
        if control is None:
            return found
        if control not in ("rows", "questions", "causes") or found[-1:] != [control]:
            found.append(control)
    raise AssertionError(f"The focus does not leave the page: {found[-5:]}")
