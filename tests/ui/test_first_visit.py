"""A new installation: what it shows teaches how to start, and gives way to the first run without a reload."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from playwright.sync_api import Page, expect

from tests.ui.site import Site, open_site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    with open_site(tmp_path_factory.mktemp("empty")) as opened:
        yield opened


def test_the_first_steps_are_shown_until_the_first_run(page: Page, site: Site) -> None:
    page.goto(f"{site.ui}/")
    steps = page.locator("section").filter(has=page.get_by_role("heading", name="Three steps to the first run"))
    expect(steps).to_contain_text("runlane dev tasks:app")
    steps.get_by_role("link", name="Open the list of runs").click()
    # The list names the command, although its window is that of a day.
    expect(page.get_by_text("No run in this time window")).to_be_visible()
    expect(page.get_by_text("runlane run TASK")).to_be_visible()
    page.get_by_role("button", name="Search any time").click()
    expect(page.get_by_text("No runs yet")).to_be_visible()
    run_id = site.run_task("resize", input={"picture": "first.png"})
    expect(page.locator(f'[data-row-id="{run_id}"]')).to_be_visible()
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Overview").click()
    expect(page.get_by_role("heading", name="Newest runs")).to_be_visible()
    expect(steps).to_have_count(0)
