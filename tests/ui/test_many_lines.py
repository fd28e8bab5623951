"""Runs with many log lines or large events: what a view has not loaded it names, and it loads it on request."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing

from playwright.sync_api import Page, Request, expect

from tests.ui.site import Site

# Each line is two events: the line and its checkpoint.
LINES = 1_300


def talk(site: Site, lines: int) -> str:
    run_id = site.run_task("talk", input={"lines": lines})
    site.wait_for(run_id, "completed")
    return run_id


def test_log_lines_beyond_the_first_page_are_named_and_loaded(page: Page, site: Site) -> None:
    run_id = talk(site, LINES)
    page.goto(f"{site.ui}/runs/{run_id}?tab=logs")
    lines = page.get_by_role("list", name="Log lines")
    expect(lines.get_by_text("line 1", exact=True)).to_be_visible()
    expect(lines).to_contain_text(re.compile(r"Lines up to event 1,000 of 2,6\d\d are shown"))
    lines.get_by_role("button", name="Load more").click()
    expect(lines.get_by_text(f"line {LINES}", exact=True)).to_be_attached()
    texts = lines.get_by_role("listitem").all_inner_texts()
    shown = [int(found[1]) for found in (re.search(r"line (\d+)", text) for text in texts) if found is not None]
    assert shown == list(range(1, LINES + 1))
    expect(lines.get_by_role("button", name="Load more")).to_have_count(0)


def test_the_newest_lines_are_one_click_away_and_have_a_link(page: Page, site: Site) -> None:
    run_id = talk(site, LINES)
    page.goto(f"{site.ui}/runs/{run_id}?tab=logs")
    page.get_by_role("button", name="Newest lines").click()
    lines = page.get_by_role("list", name="Log lines")
    expect(lines.get_by_text(f"line {LINES}", exact=True)).to_be_attached()
    expect(lines).to_contain_text("are not shown")
    page.reload()
    expect(lines.get_by_text(f"line {LINES}", exact=True)).to_be_attached()
    page.get_by_role("button", name="From the beginning").click()
    expect(lines.get_by_text("line 1", exact=True)).to_be_visible()


def test_filters_of_events_are_in_the_address_and_applied_by_the_server(page: Page, site: Site) -> None:
    run_id = talk(site, LINES)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/events?" in request.url else None)
    page.goto(f"{site.ui}/runs/{run_id}?tab=events&type=done")
    last = site.get_run(run_id)["last_seq"]
    expect(page.locator(f'[data-seq="{last}"]')).to_contain_text("completed")
    expect(page.locator("[data-seq]")).to_have_count(1)
    expect(page.get_by_text(re.compile(rf"1 to {last:,} of {last:,}, 1 match"))).to_be_visible()
    page.get_by_label("Path of a step").fill("no-such-step")
    expect(page.get_by_text("No event matches")).to_be_visible()
    expect(page).to_have_url(re.compile("type=done&path=no-such-step"))
    page.get_by_role("button", name="Clear the filters").click()
    expect(page.locator('[data-seq="1"]')).to_be_visible()
    # Two pages of the run model, and one for each view of the list; not the whole run for a filter.
    assert len([url for url in asked if "type=done" in url]) == 2


def test_large_events_are_read_page_by_page_and_not_again_and_again(page: Page, site: Site) -> None:
    """A page of events ends before its limit if they are large: what follows is read after it."""
    run_id = talk(site, 5)
    with closing(sqlite3.connect(site.folder / "runlane.db", timeout=30)) as database, database:
        (last,) = database.execute("select max(seq) from run_events where run_id = ?", (run_id,)).fetchone()
        text = json.dumps({"message": "x" * 1_500_000})
        for seq in range(last + 1, last + 21):
            database.execute(
                "insert into run_events (run_id, seq, type, attempt, at, data) "
                "select run_id, ?, 'log', attempt, at, ? from run_events where run_id = ? and seq = 1",
                (seq, text, run_id),
            )
        database.execute("update runs set last_seq = ? where id = ?", (last + 20, run_id))
    reads: list[str] = []

    def note(request: Request) -> None:
        if "/events?" in request.url and "limit=500" in request.url:
            reads.append(request.url)

    page.on("request", note)
    page.goto(f"{site.ui}/runs/{run_id}?tab=events")
    expect(page.get_by_text(f"1 to {last + 20} of {last + 20}")).to_be_visible()
    expect(page.locator(f'[data-seq="{last + 20}"]')).to_be_attached()
    # Each part of the events is read once.
    assert len(reads) == len(set(reads))
