"""Start a run from the form that its input schema makes."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.ui.site import Site

RUN_ID = re.compile(r"/runs/(run_[0-9a-f]+)")


def started(page: Page) -> str:
    """Return the run that the page has gone to."""
    expect(page).to_have_url(RUN_ID)
    found = RUN_ID.search(page.url)
    assert found is not None
    return found.group(1)


def test_a_task_is_started_from_its_fields(page: Page, site: Site) -> None:
    page.goto(f"{site.ui}/start")
    page.get_by_label("Target").select_option("resize")
    start = page.get_by_role("button", name="Start the run")
    expect(start).to_be_disabled()
    page.get_by_label("picture").fill("boat.png")
    expect(page.get_by_label("width")).to_have_value("800")
    page.get_by_label("width").fill("640")
    page.get_by_label("mode").select_option("fill")
    page.get_by_text("Options", exact=True).click()
    page.get_by_label("Tags").fill("nightly customer=7")
    page.get_by_text("As a command").click()
    expect(page.get_by_text("runlane run resize --input")).to_be_visible()
    start.click()
    run = site.wait_for(started(page), "completed")
    assert run["result"] == {"picture": "boat.png", "width": 640, "mode": "fill"}
    assert run["tags"] == ["customer=7", "nightly"]
    # The last values of the target are offered again.
    page.goto(f"{site.ui}/start?target=resize")
    expect(page.get_by_label("picture")).to_have_value("boat.png")


def test_a_run_is_started_like_another_one_as_json(page: Page, site: Site) -> None:
    first = site.run_task("resize", input={"picture": "old.png", "width": 10})
    site.wait_for(first, "completed")
    page.goto(f"{site.ui}/start?like={first}")
    expect(page.get_by_label("picture")).to_have_value("old.png")
    page.get_by_role("button", name="Edit as JSON").click()
    area = page.get_by_label("Input", exact=True)
    area.fill("{")
    expect(page.get_by_text("This is not a JSON object.")).to_be_visible()
    area.fill('{"picture": "new.png", "width": 11}')
    page.get_by_role("button", name="Start the run").click()
    run = site.wait_for(started(page), "completed")
    assert run["result"]["picture"] == "new.png"


def test_an_agent_needs_a_message(page: Page, site: Site) -> None:
    page.goto(f"{site.ui}/start?target=agent:helper")
    expect(page.get_by_role("button", name="Start the run")).to_be_disabled()
    page.get_by_label("Message").fill("Please confirm my order.")
    page.get_by_role("button", name="Start the run").click()
    site.wait_for(started(page), "paused")


def test_a_run_leads_to_a_form_with_its_input(page: Page, site: Site) -> None:
    first = site.run_task("resize", input={"picture": "again.png", "width": 20})
    site.wait_for(first, "completed")
    page.goto(f"{site.ui}/runs/{first}")
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name="Start another like it").click()
    expect(page.get_by_label("picture")).to_have_value("again.png")
    page.get_by_role("button", name="Start the run").click()
    expect(page).not_to_have_url(re.compile(first))
    run = site.wait_for(started(page), "completed")
    assert run["result"] == {"picture": "again.png", "width": 20, "mode": "fit"}


def test_a_typed_number_keeps_every_digit(page: Page, site: Site) -> None:
    page.goto(f"{site.ui}/start?target=resize")
    page.get_by_label("picture").fill("wide.png")
    page.get_by_label("width").fill("12345678901234567")
    page.get_by_role("button", name="Start the run").click()
    run_id = started(page)
    assert site.wait_for(run_id, "completed")["result"]["width"] == 12345678901234567
    # The same as JSON, from the run.
    page.goto(f"{site.ui}/start?like={run_id}")
    page.get_by_role("button", name="Edit as JSON").click()
    expect(page.get_by_label("Input", exact=True)).to_have_value(re.compile("12345678901234567"))
    page.get_by_role("button", name="Start the run").click()
    expect(page).not_to_have_url(re.compile(run_id))
    assert site.wait_for(started(page), "completed")["result"]["width"] == 12345678901234567
