"""The list of runs in the browser: filters in the URL, new rows, selection and bulk jobs."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

from playwright.sync_api import Locator, Page, expect

from tests.ui.site import Site


def rows(page: Page) -> Locator:
    return page.get_by_role("grid", name="Runs").locator("[data-row-id]")


def test_filters_are_in_the_url_and_survive_a_reload(page: Page, site: Site, runs: dict[str, str]) -> None:
    page.goto(f"{site.ui}/runs")
    expect(page.locator(f'[data-row-id="{runs["completed"]}"]')).to_be_visible()
    page.get_by_role("button", name="Status", exact=True).click()
    page.get_by_role("menuitemcheckbox", name="failed").click()
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile(r"status=failed"))
    expect(rows(page)).to_have_count(2)
    page.reload()
    expect(rows(page)).to_have_count(2)
    page.get_by_role("button", name="Clear Status failed").click()
    expect(page.locator(f'[data-row-id="{runs["completed"]}"]')).to_be_visible()
    page.go_back()
    expect(rows(page)).to_have_count(2)


def test_an_empty_list_names_the_filter_that_can_be_cleared(page: Page, site: Site, runs: dict[str, str]) -> None:
    page.goto(f"{site.ui}/runs?lane=nowhere")
    page.get_by_role("button", name="Clear lane nowhere", exact=True).click()
    expect(page.locator(f'[data-row-id="{runs["failed"]}"]')).to_be_visible()


def test_a_list_without_a_match_says_how_far_it_has_searched(page: Page, site: Site) -> None:
    # More runs than the server examines for the pages that are read at once.
    with closing(sqlite3.connect(site.folder / "runlane.db", timeout=60)) as connection, connection:
        connection.execute(
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < 45000) insert into runs "
            "(id, target, lane, status, rank, priority, max_attempts, max_losses, accepted_at, ended_at) "
            "select printf('run_%032x', i), 'old', 'media', 'completed', 0, 0, 1, 1, 1, 2 from n"
        )
    page.goto(f"{site.ui}/runs?window=all&text=nowhere&children=yes")
    expect(page.get_by_text("No run has matched yet")).to_be_visible()
    expect(page.get_by_text(re.compile(r"^Runs since .* were examined; older ones may match\.$"))).to_be_visible()
    page.get_by_role("button", name="Search older runs").click()
    expect(page.get_by_text("No run matches")).to_be_visible()
    with closing(sqlite3.connect(site.folder / "runlane.db", timeout=60)) as connection, connection:
        connection.execute("delete from runs where target = 'old'")


def test_each_filter_reaches_the_server(page: Page, site: Site, runs: dict[str, str]) -> None:
    for query, name in (
        ("tag=customer=7", "running"),
        ("key=user:7&status=blocked", "blocked"),
        ("target=orchestration:broken", "broken"),
        ("text=a-part-of-nothing", None),
        (f"worker={site.get_run(runs['completed'])['worker_id']}&tag=customer=7", "running"),
        ("error=no_such_code", None),
        ("longer=300d&status=completed", None),
        ("mincost=1000", None),
        ("session=none", None),
    ):
        page.goto(f"{site.ui}/runs?{query}")
        if name is None:
            expect(page.get_by_text("No run matches")).to_be_visible()
        else:
            expect(rows(page)).to_have_count(1)
            expect(rows(page).first).to_have_attribute("data-row-id", runs[name])


def test_new_runs_are_counted_and_offered(page: Page, site: Site, runs: dict[str, str]) -> None:
    page.goto(f"{site.ui}/runs")
    expect(page.locator(f'[data-row-id="{runs["completed"]}"]')).to_be_visible()
    new = site.run_task("resize", input={"picture": "new.png"})
    offer = page.get_by_role("button", name=re.compile("new run"))
    expect(offer).to_be_visible()
    assert page.locator(f'[data-row-id="{new}"]').count() == 0
    offer.click()
    expect(page.locator(f'[data-row-id="{new}"]')).to_be_visible()


def test_a_loaded_row_changes_in_place(page: Page, site: Site) -> None:
    run_id = site.run_task("slow", input={}, hold=True)
    page.goto(f"{site.ui}/runs?status=awaiting_approval")
    shown = page.locator(f'[data-row-id="{run_id}"]')
    expect(shown).to_contain_text("awaiting approval")
    site.call("POST", f"/runs/{run_id}/approve", {})
    expect(shown).to_contain_text("running")
    site.call("POST", f"/runs/{run_id}/cancel", {})
    expect(shown).to_contain_text("cancelled")


def test_rows_are_opened_by_keyboard(page: Page, site: Site, runs: dict[str, str]) -> None:
    page.goto(f"{site.ui}/runs?status=failed")
    expect(rows(page)).to_have_count(2)
    page.get_by_role("grid", name="Runs").focus()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(runs["failed"]))


def test_a_bulk_cancel_counts_first_and_lists_what_was_refused(page: Page, site: Site) -> None:
    ids = [site.run_task("slow", input={}, hold=True, tags=["bulk"]) for _ in range(5)]
    ended = site.run_task("resize", input={"picture": "x"}, tags=["bulk"])
    site.wait_for(ended, "completed")
    page.goto(f"{site.ui}/runs?tag=bulk")
    expect(rows(page)).to_have_count(6)
    page.get_by_role("checkbox", name="Select all loaded rows").click()
    page.get_by_role("toolbar", name="Selected runs").get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("5 runs will be changed; 1 selected run cannot be and stays as it is.")
    dialog.get_by_role("button", name="Cancel: 5 runs").click()
    expect(page).to_have_url(re.compile("/bulk/"))
    expect(page.get_by_text("5 of 6")).to_be_visible()
    expect(page.get_by_role("link", name=ended)).to_be_visible()
    for run_id in ids:
        site.wait_for(run_id, "cancelled")
    assert site.get_run(ended)["status"] == "completed"


def test_a_row_says_when_its_run_was_accepted_and_started(page: Page, site: Site, runs: dict[str, str]) -> None:
    page.goto(f"{site.ui}/runs")
    expect(page.get_by_role("columnheader", name="Started")).to_be_visible()
    started = site.get_run(runs["completed"])["started_at"]
    row = page.locator(f'[data-row-id="{runs["completed"]}"]')
    expect(row.locator(f'time[datetime="{started}"]')).to_be_visible()


def test_the_link_of_a_row_is_copied(page: Page, site: Site, runs: dict[str, str]) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{site.ui}/runs")
    page.get_by_role("button", name=f"Actions of {runs['completed']}").click()
    page.get_by_role("menuitem", name="Copy the link").click()
    expect(page.get_by_text("Copied.", exact=True).first).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == f"{site.ui}/runs/{runs['completed']}"


def test_copied_times_are_exact(page: Page, site: Site, runs: dict[str, str]) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{site.ui}/runs")
    accepted = page.locator(f'[data-row-id="{runs["completed"]}"] time').first
    expect(accepted).to_have_text(re.compile("ago|now"))
    accepted.evaluate("element => getSelection().selectAllChildren(element.parentElement)")
    page.keyboard.press("Control+c")
    exact = accepted.get_attribute("title")
    assert exact is not None
    assert "UTC" in exact
    assert page.evaluate("navigator.clipboard.readText()") == exact


def test_columns_are_chosen_and_kept(page: Page, site: Site, runs: dict[str, str]) -> None:
    page.goto(f"{site.ui}/runs")
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("dialog").get_by_label("Key", exact=True).check()
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("columnheader", name="Key")).to_be_visible()
    page.reload()
    expect(page.get_by_role("columnheader", name="Key")).to_be_visible()
    expect(page.locator(f'[data-row-id="{runs["blocked"]}"]')).to_contain_text("user:7")


def test_the_list_is_cards_on_a_narrow_screen(phone: Page, site: Site, runs: dict[str, str]) -> None:
    phone.goto(f"{site.ui}/runs?status=failed")
    card = phone.locator(f'[data-row-id="{runs["failed"]}"]')
    expect(card).to_be_visible()
    assert phone.evaluate("document.documentElement.scrollWidth") <= 360
    card.get_by_role("link").click()
    expect(phone.get_by_role("alert")).to_contain_text("declined")
    phone.get_by_role("button", name="Open the navigation").click()
    phone.get_by_role("link", name="Overview").click()
    expect(phone.get_by_role("heading", name="Overview")).to_be_visible()
