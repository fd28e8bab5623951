"""Definitions in the browser: versions and their difference, the graph, and the editor with the server's checks."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.ui.conftest import PageProblems
from tests.ui.site import Site

GREETING: dict[str, Any] = {
    "id": "greeting",
    "name": "Greeting",
    "steps": [
        {"id": "first", "type": "print", "print_content": "Hello.", "next_step_id": "second"},
        {"id": "second", "type": "print", "print_content": "Goodbye."},
    ],
}


def store(site: Site, definition: dict[str, Any], source: str = "dashboard") -> None:
    site.call("POST", "/sync", {"orchestrations": [definition], "source": source})


def editor(page: Page) -> Locator:
    return page.get_by_label("Definition as JSON")


def replace_text(page: Page, old: str, new: str) -> None:
    """Change a part of the text by keyboard."""
    text = "\n".join(editor(page).locator(".cm-line").all_inner_texts())
    assert old in text
    editor(page).click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text.replace(old, new))


def test_versions_are_compared(page: Page, site: Site) -> None:
    store(site, GREETING)
    store(site, {**GREETING, "name": "Warm greeting"})
    page.goto(f"{site.ui}/definitions")
    page.locator('[data-row-id="greeting"]').get_by_role("link").click()
    expect(page.get_by_role("heading", name="Warm greeting")).to_be_visible()
    expect(page.get_by_text("first", exact=True).first).to_be_visible()
    page.get_by_role("navigation", name="Views of the definition").get_by_role("link", name="Versions").click()
    expect(page.get_by_role("list", name="Versions").get_by_role("listitem")).to_have_count(2)
    difference = page.get_by_role("group", name="Difference of the versions")
    expect(difference).to_contain_text("Warm greeting")
    expect(page).to_have_url(re.compile("tab=versions"))


def test_a_version_leads_to_its_runs(page: Page, site: Site) -> None:
    store(site, GREETING)
    older = site.orchestrate("greeting", "one")
    store(site, {**GREETING, "name": "Later greeting"})
    newer = site.orchestrate("greeting", "two")
    for run_id in (older, newer):
        site.wait_for(run_id, "completed")
    version = site.get_run(older)["definition"]
    assert version != site.get_run(newer)["definition"]
    page.goto(f"{site.ui}/definitions/orchestrations/greeting?tab=versions")
    entry = page.get_by_role("list", name="Versions").get_by_role("listitem").filter(has_text=version[:8])
    entry.get_by_role("link", name="Runs of this version").click()
    expect(page.locator(f'[data-row-id="{older}"]')).to_be_visible()
    expect(page.locator(f'[data-row-id="{newer}"]')).to_have_count(0)
    # The same for a program.
    for run in site.call("GET", f"/runs?target=orchestration:greeting&definition={version}")["runs"]:
        assert site.get_run(run["run_id"])["definition"] == version


def test_the_list_counts_what_uses_each_definition(page: Page, site: Site) -> None:
    page.goto(f"{site.ui}/definitions")
    used = page.get_by_role("columnheader", name="Used by")
    expect(used).to_be_visible()
    place = page.get_by_role("columnheader").all_inner_texts().index("Used by")
    expect(page.locator('[data-row-id="inner"]').get_by_role("gridcell").nth(place)).to_have_text("1")
    expect(page.locator('[data-row-id="report"]').get_by_role("gridcell").nth(place)).not_to_have_text("1")


def test_what_uses_a_definition_is_listed(page: Page, site: Site) -> None:
    page.goto(f"{site.ui}/definitions/orchestrations/inner?tab=uses")
    expect(page.get_by_role("list", name="Used by").get_by_role("link", name="report")).to_be_visible()


def test_a_definition_is_checked_by_the_server_and_saved(page: Page, site: Site) -> None:
    store(site, GREETING)
    page.goto(f"{site.ui}/definitions/orchestrations/greeting/edit")
    expect(page.get_by_text("no change")).to_be_visible()
    replace_text(page, '"next_step_id": "second"', '"next_step_id": "third"')
    # The graph of the text before it is stored; while the text has errors, the last valid one, greyed.
    expect(page.locator('[data-graph="old"] [data-step="second"]')).to_be_visible()
    findings = page.get_by_role("list", name="Findings")
    expect(findings).to_contain_text("/steps/0/next_step_id")
    expect(findings).to_contain_text("third")
    expect(page.get_by_role("button", name="Save", exact=True)).to_be_disabled()
    replace_text(page, '"next_step_id": "third"', '"next_step_id": "second"')
    replace_text(page, "Hello.", "Good morning.")
    expect(page.get_by_text("valid", exact=True)).to_be_visible()
    expect(page.locator('[data-graph="current"] [data-step="second"]')).to_be_visible()
    page.get_by_role("button", name="Save", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("group", name="Change of the definition")).to_contain_text("Good morning.")
    expect(dialog).to_contain_text("Runs that have been started stay on their version.")
    dialog.get_by_role("button", name="Save the new version").click()
    expect(page).to_have_url(re.compile(r"/definitions/orchestrations/greeting$"))
    stored = site.call("GET", "/orchestrations/greeting")["definition"]
    assert stored["steps"][0]["print_content"] == "Good morning."


def test_a_version_that_was_stored_meanwhile_is_not_overwritten(page: Page, site: Site, problems: PageProblems) -> None:
    problems.expected.append("412")
    store(site, GREETING)
    page.goto(f"{site.ui}/definitions/orchestrations/greeting/edit")
    expect(page.get_by_text("no change")).to_be_visible()
    store(site, {**GREETING, "name": "Changed elsewhere"})
    replace_text(page, "Hello.", "Mine.")
    expect(page.get_by_text("valid", exact=True)).to_be_visible()
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("button", name="Save the new version").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_be_visible()
    assert site.call("GET", "/orchestrations/greeting")["definition"]["name"] == "Changed elsewhere"


def test_a_definition_of_files_is_locked_and_can_be_copied(page: Page, site: Site) -> None:
    page.goto(f"{site.ui}/definitions/orchestrations/broken/edit")
    expect(page.get_by_text("the next sync would overwrite a change made here")).to_be_visible()
    expect(page.get_by_role("button", name="Save", exact=True)).to_be_disabled()
    page.get_by_role("button", name="Edit a copy").click()
    expect(editor(page)).to_contain_text("broken_copy")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page).to_have_url(re.compile("broken_copy$"))
    assert site.call("GET", "/orchestrations/broken_copy")["definition"]["id"] == "broken_copy"


def test_the_editor_says_what_the_field_under_the_cursor_means(page: Page, site: Site) -> None:
    page.goto(f"{site.ui}/definitions/orchestrations/new/edit")
    about = page.get_by_role("note", name="Field under the cursor")
    expect(about).to_contain_text("Move the cursor to a field")
    line = page.locator(".cm-line", has_text="print_content")
    line.click()
    expect(about).to_contain_text("steps[0].print_content")
    schema = site.call("GET", "/schemas/orchestration")["$defs"]
    expect(about).to_contain_text(schema["PrintStep"]["properties"]["print_content"]["description"])
    # By keyboard: the line above has the type, which means the step.
    page.keyboard.press("ArrowUp")
    expect(about).to_contain_text("steps[0].type")
    expect(about).to_contain_text(schema["PrintStep"]["description"])
    # By pointer, without moving the cursor.
    page.locator(".cm-line", has_text='"name"').hover(position={"x": 40, "y": 8})
    meaning = schema["Orchestration"]["properties"]["name"]["description"]
    expect(page.locator(".cm-tooltip-hover")).to_contain_text(meaning)


def test_a_definition_shows_what_its_fields_mean(page: Page, site: Site) -> None:
    page.goto(f"{site.ui}/definitions/orchestrations/report?tab=json")
    tree = page.get_by_role("tree", name="the definition")
    meaning = site.call("GET", "/schemas/orchestration")["$defs"]["Orchestration"]["properties"]["steps"]["description"]
    expect(tree).to_contain_text(meaning)
    page.get_by_label("Describe the fields").uncheck()
    expect(tree).not_to_contain_text(meaning)
    page.reload()
    expect(tree).to_contain_text("Publish the report")
    expect(tree).not_to_contain_text(meaning)
