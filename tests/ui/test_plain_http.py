"""Pages over plain HTTP, where browsers have no clipboard, no locks and no random ids: everything works as well."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.ui.conftest import OpenContext, PageProblems
from tests.ui.site import Site

# What browsers offer to pages over HTTPS and of this machine alone.
WITHOUT_SECURE_CONTEXT = """
delete Crypto.prototype.randomUUID
delete Navigator.prototype.clipboard
delete Navigator.prototype.locks
"""


@pytest.fixture
def plain(open_context: OpenContext, site: Site, problems: PageProblems) -> Page:
    context = open_context()
    context.add_init_script(WITHOUT_SECURE_CONTEXT)
    page = context.new_page()
    problems.watch(page, site.url)
    return page


def test_a_run_is_started_and_changed(plain: Page, site: Site) -> None:
    plain.goto(f"{site.ui}/start?target=resize")
    plain.get_by_label("picture").fill("plain.png")
    plain.get_by_label("Stay here and start another").check()
    plain.get_by_role("button", name="Start the run").click()
    plain.get_by_role("link", name=re.compile("^run_")).click()
    expect(plain.locator("header").filter(has_text="completed").first).to_be_visible()
    plain.get_by_role("button", name="Copy the id").click()
    expect(plain.get_by_role("button", name="Copied")).to_be_visible()


def test_a_question_is_answered_and_a_message_sent(plain: Page, site: Site) -> None:
    plain.goto(f"{site.ui}/chat?new=1")
    plain.get_by_label("Message").fill("Please confirm my order.")
    plain.keyboard.press("Enter")
    expect(plain).to_have_url(re.compile("/chat/sess_"))
    expect(plain.get_by_role("list", name="Messages")).to_contain_text("I will send a confirmation.")
    (question,) = site.call("GET", "/inbox")["questions"]
    plain.goto(f"{site.ui}/inbox")
    plain.get_by_role("radio", name="approve").check()
    plain.get_by_role("button", name="Send the answer").click()
    site.wait_for(question["run_id"], "completed")


def test_without_locks_a_page_reads_changes_every_few_seconds(plain: Page, site: Site) -> None:
    run_id = site.run_task("slow", input={}, hold=True)
    plain.goto(f"{site.ui}/runs?status=awaiting_approval&window=all")
    expect(plain.get_by_role("button", name="Every 5 s")).to_be_visible()
    row = plain.locator(f'[data-row-id="{run_id}"]')
    expect(row).to_contain_text("awaiting approval")
    site.call("POST", f"/runs/{run_id}/cancel", {})
    expect(row).to_contain_text("cancelled")


def test_a_change_whose_response_was_lost_is_made_once(page: Page, site: Site, problems: PageProblems) -> None:
    problems.expected.append("ERR_FAILED")
    run_id = site.orchestrate("broken", "a division")
    site.wait_for(run_id, "failed")
    page.goto(f"{site.ui}/runs/{run_id}?step=divide")
    page.get_by_role("button", name="Fork from here").click()
    start = page.get_by_role("dialog").get_by_role("button", name="Start the fork")
    expect(start).to_be_enabled()
    lost: list[int] = []

    def lose_first(route: Route) -> None:
        """Let the server make the change, and the connection break before its response."""
        if lost:
            route.continue_()
            return
        lost.append(route.fetch().status)
        route.abort()

    page.route("**/fork", lose_first)
    start.click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("does not answer")
    start.click()
    expect(page).not_to_have_url(re.compile(run_id))
    assert lost == [202]
    forks = site.call("GET", f"/runs?forked_from={run_id}")["runs"]
    assert len(forks) == 1
