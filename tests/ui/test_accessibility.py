"""Axe finds nothing serious on any screen, in both themes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.ui.site import Site

AXE = Path(__file__).resolve().parents[2] / "ui" / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = {"serious", "critical"}


END_OF_TRANSITIONS = """
() => Promise.allSettled(document.getAnimations().filter(one => one instanceof CSSTransition).map(one => one.finished))
"""
# The rules of axe that look at colors.
OF_COLORS = ("color-contrast", "link-in-text-block")


def findings(page: Page, *rules: str) -> list[str]:
    """Return the serious findings of axe, or of some of its rules, each with its place."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    result: dict[str, Any] = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{violation['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
        for violation in result["violations"]
        if violation["impact"] in SERIOUS
        for node in violation["nodes"]
    ]


# The path of each screen, with the name of a run in braces, and something that is visible once it is loaded.
SCREENS = {
    "overview": ("/", "was declined"),
    "runs": ("/runs", "no more match"),
    "runs-with-children": ("/runs?children=yes", "no more match"),
    "runs-empty": ("/runs?lane=nowhere", "No run matches"),
    "run-timeline": ("/runs/{published}?step=plan", "Output"),
    "run-waiting": ("/runs/{report}", "Publish the report"),
    "run-graph": ("/runs/{report}?tab=graph", "dropped"),
    "run-conversation": ("/runs/{agent}?tab=conversation", "I will send a confirmation."),
    "run-events": ("/runs/{published}?tab=events", "orchestration_id: report"),
    "run-state": ("/runs/{published}?tab=state&step=approval", "State after this step"),
    "run-attempts": ("/runs/{failed}?tab=attempts", "Attempt 1"),
    "run-input": ("/runs/{completed}?tab=io", "harbour.png"),
    "run-logs": ("/runs/{completed}?tab=logs", "part 1 of harbour.png"),
    "inbox": ("/inbox", "Publish the report about the old lighthouse?"),
    "start": ("/start?target=resize", "Start the run"),
    "chat": ("/chat?new=1", "New conversation"),
    "lanes": ("/lanes", "Keeps up."),
    "lane": ("/lanes/media", "Assigned kinds"),
    "workers": ("/workers", "online"),
    "dead-letters": ("/dead-letters", "was declined"),
    "dead-letters-list": ("/dead-letters?view=list", "was declined"),
    "dead-letter": ("/dead-letters/{failed}", "Attempt 1"),
    "schedules": ("/schedules", "No schedule exists yet"),
    "webhooks": ("/webhooks", "No endpoint exists yet"),
    "definitions": ("/definitions", "Always fails"),
    "tasks": ("/definitions?kind=tasks", "resize"),
    "definition-graph": ("/definitions/orchestrations/report", "dropped"),
    "definition-json": ("/definitions/agents/helper", "You help customers."),
    "definition-versions": ("/definitions/orchestrations/report?tab=versions", "There is one version"),
    "definition-uses": ("/definitions/orchestrations/inner?tab=uses", "report"),
    "definition-connection": ("/definitions/mcp-servers/search?tab=connection", "Check the connection"),
    "editor": ("/definitions/orchestrations/new/edit", "new_orchestration"),
    "memories": ("/memories", "No memory exists"),
    "threads": ("/threads", "No thread exists"),
    "assistants": ("/threads?tab=assistants", "helper"),
    "usage": ("/usage", "Total"),
    "quotas": ("/usage?tab=quotas", "runs per day"),
    "limits": ("/usage?tab=limits", "Provider limits"),
    "keys": ("/access", "No key exists"),
    "roles": ("/access?tab=roles", "definitions:write"),
    "tenants": ("/access?tab=tenants", "no limit"),
    "audit": ("/access?tab=audit", "Audit log"),
    "secrets": ("/secrets", "Set a secret"),
    "system": ("/system", "This server"),
}


def open_screen(page: Page, site: Site, runs: dict[str, str], name: str) -> None:
    path, sign = SCREENS[name]
    page.goto(site.ui + path.format(**runs))
    expect(page.get_by_text(sign).first).to_be_visible()


def test_screens_have_no_serious_finding(page: Page, site: Site, runs: dict[str, str]) -> None:
    found: dict[str, list[str]] = {}
    for name in SCREENS:
        page.emulate_media(color_scheme="light")
        open_screen(page, site, runs, name)
        expect(page.locator("html[data-theme=light]")).to_be_attached()
        found[name] = findings(page)
        # A theme has its own colors, and nothing else.
        page.emulate_media(color_scheme="dark")
        expect(page.locator("html[data-theme=dark]")).to_be_attached()
        page.evaluate(END_OF_TRANSITIONS)
        found[f"{name} (dark)"] = findings(page, *OF_COLORS)
    assert {name: list_ for name, list_ in found.items() if list_} == {}


def test_dialogs_have_no_serious_finding(page: Page, site: Site, runs: dict[str, str]) -> None:
    page.goto(f"{site.ui}/runs/{runs['report']}")
    page.locator("[data-why]").get_by_role("button", name="Answer").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert findings(page) == []
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox")).to_be_focused()
    assert findings(page) == []


def test_the_frame_is_used_by_keyboard_alone(page: Page, site: Site, runs: dict[str, str]) -> None:
    page.goto(site.ui + "/")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.type(runs["failed"])
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("declined")
    page.keyboard.press("Control+k")
    page.keyboard.type("change tags")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Tags")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
