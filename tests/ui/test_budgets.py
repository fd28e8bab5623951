"""A run that has reached a cap: its page offers to raise it where it says that the run waits."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.ui.site import Site

# Each answer costs 2 cents, and two are allowed before a person is asked.
THRIFTY = {
    "id": "thrifty",
    "max_total_cost_usd": 0.02,
    "on_cap": "ask",
    "steps": [
        {"id": "draft", "type": "llm", "prompt_template": "Draft.", "output_key": "draft", "next_step_id": "polish"},
        {"id": "polish", "type": "llm", "prompt_template": "Polish.", "output_key": "text"},
    ],
    "answers": {
        "draft": [{"say": "A draft.", "cost_usd": 0.02}],
        "polish": [{"say": "A polished text.", "cost_usd": 0.02}],
    },
}


@pytest.fixture
def capped(site: Site) -> str:
    """Return a run that waits because its cap is reached."""
    site.call("POST", "/sync", {"orchestrations": [THRIFTY], "source": "thrifty"})
    run_id = site.orchestrate("thrifty", "go")
    site.wait_for(run_id, "paused")
    return run_id


def why(page: Page) -> Locator:
    return page.locator("[data-why]")


def test_a_cap_is_raised_where_the_run_waits(page: Page, site: Site, capped: str) -> None:
    page.goto(f"{site.ui}/runs/{capped}")
    form = why(page).get_by_role("form", name="Raise the cap")
    # The amount begins with the cap itself, and its consequence is shown before it is sent.
    expect(form.get_by_label("More, in US dollars")).to_have_value("0.02")
    expect(form).to_contain_text("The run may spend $0.020 more, up to $0.040.")
    form.get_by_label("More, in US dollars").fill("nothing")
    expect(form.get_by_role("button", name="Raise the cap")).to_be_disabled()
    form.get_by_label("More, in US dollars").fill("0.5")
    expect(form).to_contain_text("The run may spend $0.50 more, up to $0.52.")
    form.get_by_text("As a command").click()
    expect(form).to_contain_text("runlane runs resume")
    form.get_by_role("button", name="Raise the cap").click()
    site.wait_for(capped, "completed")
    expect(page.locator("header").filter(has_text="completed").first).to_be_visible()
    expect(why(page)).to_have_count(0)
    assert site.get_run(capped)["state"]["text"] == "A polished text."


def test_a_run_that_may_not_spend_more_fails_with_the_reason(page: Page, site: Site, capped: str) -> None:
    page.goto(f"{site.ui}/runs/{capped}")
    why(page).get_by_role("button", name="Do not allow more").click()
    site.wait_for(capped, "failed")
    expect(page.get_by_role("alert")).to_contain_text(re.compile(r"cost \$0.02 of at most \$0.02"))
