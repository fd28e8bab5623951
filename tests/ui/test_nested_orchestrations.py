"""Orchestrations inside orchestrations: drawn in place in the graph, and as a tree on the timeline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.ui.site import Site


def runs_inner(step: str, orchestration: str, **more: Any) -> Mapping[str, Any]:
    return {"id": step, "type": "orchestration", "orchestration_id": orchestration, "message": "x", **more}


# Four levels: the third one is the deepest that is drawn in place.
LEVELS = [
    {
        "id": "level0",
        "steps": [
            {"id": "rounds", "type": "loop", "loop_step_ids": ["first"], "loop_count": 2, "next_step_id": "after"},
            runs_inner("first", "level1"),
            {"id": "after", "type": "print", "print_content": "After."},
        ],
    },
    {
        "id": "level1",
        "steps": [
            {"id": "before", "type": "print", "print_content": "Before.", "next_step_id": "second"},
            runs_inner("second", "level2"),
        ],
    },
    {"id": "level2", "steps": [runs_inner("third", "level3")]},
    {"id": "level3", "steps": [{"id": "bottom", "type": "print", "print_content": "At the bottom."}]},
]


@pytest.fixture(scope="module")
def nested(site: Site) -> str:
    site.call("POST", "/sync", {"orchestrations": LEVELS, "source": "levels"})
    run_id = site.orchestrate("level0", "go")
    site.wait_for(run_id, "completed")
    return run_id


def node(page: Page, step: str) -> Locator:
    return page.locator(f'[data-step="{step}"]')


def inside(outer: Locator, inner: Locator) -> bool:
    """Return whether one box lies in another one."""
    a, b = outer.bounding_box(), inner.bounding_box()
    assert a is not None
    assert b is not None
    return (
        a["x"] <= b["x"]
        and a["y"] <= b["y"]
        and b["x"] + b["width"] <= a["x"] + a["width"]
        and b["y"] + b["height"] <= a["y"] + a["height"]
    )


def test_inner_orchestrations_are_opened_in_place_up_to_two_levels(page: Page, site: Site, nested: str) -> None:
    page.goto(f"{site.ui}/runs/{nested}?tab=graph")
    node(page, "first").get_by_role("link", name="open").click()
    second = node(page, "first/>second")
    expect(second).to_have_attribute("data-outcome", "done")
    expect(node(page, "first/>before")).to_have_attribute("data-outcome", "done")
    assert inside(node(page, "first"), second)
    # The rest of the graph stays.
    expect(node(page, "after")).to_have_attribute("data-outcome", "done")
    second.get_by_role("link", name="open").click()
    third = node(page, "first/>second/>third")
    expect(third).to_have_attribute("data-outcome", "done")
    assert inside(second, third)
    # The view is in the address.
    expect(page).to_have_url(re.compile(r"open=first&open=first/%3Esecond"))
    page.reload()
    expect(third).to_have_attribute("data-outcome", "done")
    # A step inside is inspected, in its latest round.
    third.click()
    expect(page.get_by_role("complementary", name="Inspector")).to_contain_text("rounds/2/first/>second/>third")
    # The next level is a page of its own.
    third.get_by_role("link", name="open").click()
    expect(node(page, "bottom")).to_have_attribute("data-outcome", "done")
    expect(node(page, "after")).to_have_count(0)
    page.get_by_role("navigation", name="Orchestrations around").get_by_role("link", name="whole run").click()
    expect(node(page, "after")).to_be_visible()


def test_an_opened_orchestration_is_closed_with_what_is_inside(page: Page, site: Site, nested: str) -> None:
    page.goto(f"{site.ui}/runs/{nested}?tab=graph&open=first&open=first/>second")
    expect(node(page, "first/>second/>third")).to_be_visible()
    before = node(page, "first").bounding_box()
    assert before is not None
    node(page, "first").get_by_role("link", name="close").first.click()
    expect(node(page, "first/>second")).to_have_count(0)
    expect(page).not_to_have_url(re.compile("open="))
    # The step that was closed stays where it was.
    after = node(page, "first").bounding_box()
    assert after is not None
    assert (round(after["x"]), round(after["y"])) == (round(before["x"]), round(before["y"]))
    page.go_back()
    expect(node(page, "first/>second/>third")).to_be_visible()


def test_the_timeline_shows_every_level(page: Page, site: Site, nested: str) -> None:
    page.goto(f"{site.ui}/runs/{nested}")
    path = "rounds/2/first/>second/>third/>bottom"
    row = page.locator(f'[data-span="{path}"]')
    expect(row).to_have_attribute("data-outcome", "done")
    expect(row).to_have_attribute("aria-level", "6")
    # Folding a level hides what is inside.
    page.locator('[data-span="rounds/2/first/>second"]').get_by_role("button", name="Fold").click()
    expect(row).to_have_count(0)
    row_of_first = page.locator('[data-span="rounds/2/first"]')
    expect(row_of_first).to_be_visible()
