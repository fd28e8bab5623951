"""What a newcomer looks for in the dashboard. Each test starts at the overview and uses visible links only.

The number of clicks is part of the promise: a question that takes more of them has lost its place.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Generator
from dataclasses import replace

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.ui.conftest import OpenContext, PageProblems
from tests.ui.site import Site, create_key, keyed_site, sync, wait_until
from tests.ui.test_access import sign_in

FAILURES = 3


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    with keyed_site(tmp_path_factory.mktemp("keyed"), RUNLANE_SECRET_KEY=secrets.token_hex(32)) as opened:
        sync(opened)
        yield opened
        opened.server.kill()


@pytest.fixture(scope="module")
def found(site: Site) -> dict[str, str]:
    """Return the runs that the questions are about."""
    failed = [site.run_task("charge", input={"order": "A-17", "amount": 12.5}) for _ in range(FAILURES)]
    runs = {
        "first": site.run_task("slow", input={}, ordering_key="user:7"),
        "blocked": site.run_task("slow", input={}, ordering_key="user:7"),
        "report": site.orchestrate("report", "the old lighthouse"),
        "broken": site.orchestrate("broken", "a division"),
        "failed": failed[0],
    }
    for run_id in failed:
        site.wait_for(run_id, "failed")
    for name, status in (("blocked", "blocked"), ("report", "paused"), ("broken", "failed")):
        site.wait_for(runs[name], status)
    return runs


class Visitor:
    """A person who reads and clicks what is visible."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0

    def click(self, target: Locator) -> None:
        expect(target).to_be_visible()
        target.click()
        self.clicks += 1

    def panel(self, heading: str) -> Locator:
        return self.page.locator("section").filter(has=self.page.get_by_role("heading", name=heading, exact=True))


@pytest.fixture
def visitor(open_context: OpenContext, site: Site, found: dict[str, str], problems: PageProblems) -> Visitor:
    """A person on the overview, signed in."""
    problems.expected.append("401")
    page = open_context().new_page()
    problems.watch(page, site.url)
    sign_in(page, site, site.key)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    return Visitor(page)


def test_why_a_run_failed(visitor: Visitor, found: dict[str, str]) -> None:
    page = visitor.page
    newest = visitor.panel("Newest runs")
    visitor.click(newest.locator(f'[data-row-id="{found["broken"]}"]').get_by_role("link"))
    # The reason, and the step that it happened in.
    expect(page.get_by_role("alert")).to_contain_text("ZeroDivisionError")
    expect(page.get_by_role("alert")).to_contain_text("in step divide")
    assert visitor.clicks == 1
    visitor.click(page.get_by_role("alert").get_by_role("link", name="Attempts and traceback"))
    expect(page.get_by_role("region", name="Attempts")).to_contain_text("division by zero")
    assert visitor.clicks == 2


def test_why_a_run_failed_starting_from_its_cause(visitor: Visitor) -> None:
    causes = visitor.panel("Failures by cause")
    visitor.click(causes.get_by_role("link", name="was declined"))
    visitor.click(visitor.page.get_by_role("link", name="with traceback"))
    expect(visitor.page.get_by_text("raise Fail(").first).to_be_visible()
    assert visitor.clicks == 2


def test_why_a_run_waits(visitor: Visitor, site: Site, found: dict[str, str]) -> None:
    page = visitor.page
    visitor.click(page.get_by_role("link", name=re.compile("^Later")))
    visitor.click(page.locator(f'[data-row-id="{found["blocked"]}"]').get_by_role("link").first)
    why = page.locator("[data-why]")
    expect(why).to_contain_text("which holds its ordering key")
    assert visitor.clicks == 2
    # The run that it waits for is one link away.
    visitor.click(why.get_by_role("link", name=found["first"][-8:]))
    expect(page).to_have_url(re.compile(found["first"]))


def test_a_run_that_waits_for_a_person(visitor: Visitor) -> None:
    visitor.click(visitor.page.get_by_role("link", name=re.compile("^Questions")))
    expect(visitor.page.get_by_role("article", name="Question")).to_contain_text("Publish the report")
    assert visitor.clicks == 1


def test_what_a_run_cost(visitor: Visitor, found: dict[str, str]) -> None:
    page = visitor.page
    visitor.click(visitor.panel("Newest runs").locator(f'[data-row-id="{found["report"]}"]').get_by_role("link"))
    expect(page.locator("header").filter(has_text="Cost").first).to_contain_text("$0.020")
    # And each step of it.
    expect(page.locator('[data-span="plan"]')).to_contain_text("$0.012")
    assert visitor.clicks == 1


def test_what_everything_cost(visitor: Visitor) -> None:
    visitor.click(visitor.page.get_by_role("link", name=re.compile("^Cost today")))
    expect(visitor.page.get_by_role("region", name="Usage by agent")).to_contain_text("Total")
    assert visitor.clicks == 1


def test_how_to_replay_all_failures_of_one_kind(visitor: Visitor, site: Site, found: dict[str, str]) -> None:
    page = visitor.page
    visitor.click(visitor.panel("Failures by cause").get_by_role("link", name="was declined"))
    visitor.click(page.get_by_role("button", name=f"Replay all {FAILURES}"))
    # The dialog says how many, before anything happens.
    visitor.click(page.get_by_role("dialog").get_by_role("button", name=re.compile(rf"Replay.*{FAILURES}")))
    expect(page).to_have_url(re.compile("/bulk/"))
    expect(page.get_by_text(re.compile(rf"{FAILURES} of {FAILURES}")).first).to_be_visible()
    assert visitor.clicks == 3
    wait_until(lambda: site.get_run(found["failed"])["attempt"] == 2 or None, "the second attempt")


def test_who_changed_a_lane(visitor: Visitor, site: Site) -> None:
    ann = create_key(site.folder, site.variables, "ann", "operator")
    replace(site, key=ann).call("PATCH", "/lanes/media", {"max_slots": 7})
    page = visitor.page
    visitor.click(page.get_by_role("navigation", name="Pages").get_by_role("link", name="Lanes"))
    visitor.click(page.locator('[data-row-id="media"]').get_by_role("link").first)
    visitor.click(page.get_by_role("link", name="Who changed it"))
    newest = page.get_by_role("list", name="Audit entries").get_by_role("listitem").first
    expect(newest).to_contain_text("ann")
    expect(newest).to_contain_text("7")
    assert visitor.clicks == 3
