"""Memories in the browser: list, entries with corrections, search and the context document."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.ui.site import Site


@pytest.fixture(scope="module")
def memory(site: Site) -> str:
    made = site.call("POST", "/memory/memories", {"title": "customer-7", "description": "What the shop has learned."})
    path = f"/memory/memories/{made['id']}"
    first = site.call("POST", f"{path}/entries", {"text": "Prefers long answers.", "tags": {"topic": "style"}})
    corrected = {"text": "Prefers short answers.", "reason": "the customer said so"}
    site.call("POST", f"{path}/entries/{first['id']}/correct", corrected)
    site.call("POST", f"{path}/entries", {"text": "Lives <b>near</b> the harbour."})
    site.call("PUT", f"{path}/fragments/context", {"content": "Answer in one sentence."})
    return made["id"]


def test_a_memory_is_found_and_shows_its_entries_with_corrections(page: Page, site: Site, memory: str) -> None:
    page.goto(f"{site.ui}/memories")
    page.get_by_role("link", name="customer-7").click()
    entries = page.get_by_role("list", name="Entries").locator("[data-entry]")
    expect(entries).to_have_count(3)
    expect(entries.first).to_contain_text("Lives <b>near</b> the harbour.")
    expect(entries.last).to_contain_text("corrected: the customer said so")
    expect(entries.last).to_contain_text("topic=style")


def test_entries_are_searched_by_words_and_the_search_is_in_the_address(page: Page, site: Site, memory: str) -> None:
    page.goto(f"{site.ui}/memories/{memory}?tab=search")
    page.get_by_label("Words in entries").fill("harbour")
    page.keyboard.press("Enter")
    found = page.get_by_role("list", name="Found entries").locator("[data-entry]")
    expect(found).to_have_count(1)
    expect(found).to_contain_text("harbour")
    page.reload()
    expect(found).to_have_count(1)


def test_the_context_document_is_read_and_written(page: Page, site: Site, memory: str) -> None:
    page.goto(f"{site.ui}/memories/{memory}?tab=documents&document=context")
    expect(page.locator("pre")).to_have_text("Answer in one sentence.")
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Content").fill("Answer in two sentences.")
    page.get_by_role("button", name="Write the document").click()
    expect(page.locator("pre")).to_have_text("Answer in two sentences.")
    stored = site.call("GET", f"/memory/memories/{memory}/fragments/context")
    assert stored["content"] == "Answer in two sentences."


def test_a_new_memory_is_made_in_the_browser(page: Page, site: Site, memory: str) -> None:
    page.goto(f"{site.ui}/memories")
    page.get_by_role("button", name="New memory").click()
    page.get_by_label("Title").fill("customer-8")
    page.get_by_role("button", name="Create the memory").click()
    expect(page.get_by_role("link", name="customer-8")).to_be_visible()
