"""A run with thousands of events opens at once: the page reads what it shows."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Request, expect

from tests.scale import scaled
from tests.ui.site import Site

ROUNDS = scaled(1_100, 12_500)
MAX_ROWS = 120


LONG = {
    "id": "long",
    "name": "Many rounds",
    "max_total_turns": 2 * ROUNDS,
    "steps": [
        {
            "id": "rounds",
            "type": "loop",
            "loop_step_ids": ["round"],
            "loop_count": ROUNDS,
            "collect": False,
            "next_step_id": "last",
        },
        {"id": "round", "type": "print", "print_content": "One more."},
        {"id": "last", "type": "print", "print_content": "All rounds are done."},
    ],
}


@pytest.fixture(scope="module")
def long_run(site: Site) -> str:
    site.call("POST", "/sync", {"orchestrations": [LONG], "source": "long"})
    run_id = site.orchestrate("long", "many rounds")
    site.wait_for(run_id, "completed")
    return run_id


def test_opening_it_does_not_transfer_its_events(page: Page, site: Site, long_run: str) -> None:
    read: list[str] = []

    def note(request: Request) -> None:
        if "/events" in request.url or "/timeline" in request.url:
            read.append(request.url)

    page.on("request", note)
    page.goto(f"{site.ui}/runs/{long_run}")
    rounds = page.locator('[data-span="rounds"]')
    expect(rounds).to_contain_text(f"{ROUNDS} done")
    expect(page.locator('[data-span="last"]')).to_have_attribute("data-outcome", "done")
    assert len([url for url in read if "/events" in url]) == 1
    rounds.get_by_role("button", name="Unfold").click()
    expect(page.locator('[data-span="rounds/1"]')).to_be_visible()
    assert page.locator("[data-span]").count() < MAX_ROWS


def test_the_end_of_its_events_is_one_click_away(page: Page, site: Site, long_run: str) -> None:
    last = site.get_run(long_run)["last_seq"]
    assert last > 4 * ROUNDS
    page.goto(f"{site.ui}/runs/{long_run}?tab=events")
    expect(page.locator('[data-seq="1"]')).to_be_visible()
    page.get_by_role("button", name="To the end").click()
    page.get_by_label("Type of event").select_option("done")
    expect(page.locator(f'[data-seq="{last}"]')).to_contain_text("completed")
    assert page.locator("[data-seq]").count() < MAX_ROWS


def test_a_step_beyond_the_first_thousand_shows_its_output(page: Page, site: Site, long_run: str) -> None:
    page.goto(f"{site.ui}/runs/{long_run}?step=last")
    inspector = page.get_by_role("complementary", name="Inspector")
    expect(inspector.get_by_role("tree", name="the output of the step")).to_contain_text("All rounds are done.")
