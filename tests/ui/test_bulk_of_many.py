"""A bulk change of many runs, on a server of its own: its runs would push those of other tests out of their lists."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.ui.site import Site, wait_until
from tests.ui.test_runs_list import rows


def test_a_bulk_cancel_of_250_runs_must_be_typed_and_lists_three_refusals(page: Page, site: Site) -> None:
    ended = [site.run_task("resize", input={"picture": "x"}, tags=["crowd"]) for _ in range(3)]
    for run_id in ended:
        site.wait_for(run_id, "completed")
    open_runs = [site.run_task("slow", input={}, hold=True, tags=["crowd"]) for _ in range(247)]
    page.goto(f"{site.ui}/runs?tag=crowd")
    grid = page.get_by_role("grid", name="Runs")
    expect(rows(page).first).to_be_visible()
    grid.focus()
    complete = page.get_by_text("250 runs, no more match.")

    def scroll_to_the_end() -> bool | None:
        # A page is loaded when the end comes into view.
        grid.evaluate("grid => grid.scrollTo(0, grid.scrollHeight)")
        return complete.is_visible() or None

    wait_until(scroll_to_the_end, "all runs in the list")
    page.get_by_role("checkbox", name="Select all loaded rows").click()
    toolbar = page.get_by_role("toolbar", name="Selected runs")
    expect(toolbar).to_contain_text("250 runs selected")
    toolbar.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("247 runs will be changed; 3 selected runs cannot be and stay as they are.")
    confirm = dialog.get_by_role("button", name="Cancel: 247 runs")
    expect(confirm).to_be_disabled()
    dialog.get_by_role("textbox").fill("250")
    expect(confirm).to_be_disabled()
    dialog.get_by_role("textbox").fill("247")
    confirm.click()
    expect(page).to_have_url(re.compile("/bulk/"))
    expect(page.get_by_text("247 of 250")).to_be_visible()
    expect(page.get_by_role("heading", name="Refused runs (3)")).to_be_visible()
    for run_id in ended:
        refusal = page.get_by_role("listitem").filter(has=page.get_by_role("link", name=run_id))
        expect(refusal).to_contain_text("completed")
        assert site.get_run(run_id)["status"] == "completed"
    for run_id in open_runs:
        site.wait_for(run_id, "cancelled")
