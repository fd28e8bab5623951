"""Changes that a page missed: before its stream was open, while it was hidden, and while rows were selected."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, Route, expect

from tests.ui.site import Site


def open_held_run(page: Page, site: Site) -> tuple[str, Locator]:
    """Open the list of held runs and return one of them with its row."""
    run_id = site.run_task("slow", input={}, hold=True)
    page.goto(f"{site.ui}/runs?status=awaiting_approval&window=all")
    row = page.locator(f'[data-row-id="{run_id}"]')
    expect(row).to_contain_text("awaiting approval")
    return run_id, row


def cancel(site: Site, run_id: str) -> None:
    site.call("POST", f"/runs/{run_id}/cancel", {})
    site.wait_for(run_id, "cancelled")


def hide(page: Page, state: str) -> None:
    """Let the page see that it is hidden or visible, as when the reader chooses another tab."""
    page.evaluate(
        """state => {
          Object.defineProperty(document, 'visibilityState', { configurable: true, get: () => state })
          document.dispatchEvent(new Event('visibilitychange'))
        }""",
        state,
    )


def test_a_change_between_the_first_read_and_the_stream_is_shown(page: Page, site: Site) -> None:
    waiting: list[Route] = []

    def hold(route: Route) -> None:
        waiting.append(route)

    page.route("**/api/v2/live", hold)
    run_id, row = open_held_run(page, site)
    cancel(site, run_id)
    for route in waiting:
        route.continue_()
    expect(row).to_contain_text("cancelled")


def test_a_list_that_was_hidden_catches_up_when_it_is_looked_at(page: Page, site: Site) -> None:
    run_id, row = open_held_run(page, site)
    expect(page.get_by_role("button", name="Live", exact=True)).to_be_visible()
    hide(page, "hidden")
    with page.expect_response(lambda response: "/inbox/count" in response.url or "/runs" in response.url):
        cancel(site, run_id)
    hide(page, "visible")
    expect(row).to_contain_text("cancelled")


def test_a_list_catches_up_when_its_rows_are_no_longer_selected(page: Page, site: Site) -> None:
    run_id, row = open_held_run(page, site)
    expect(page.get_by_role("button", name="Live", exact=True)).to_be_visible()
    row.get_by_role("checkbox").check()
    cancel(site, run_id)
    # Other parts of the page wait as well, so the next hint is one that nothing waits for.
    page.get_by_role("toolbar", name="Selected runs").get_by_role("button", name="Clear").click()
    expect(row).to_contain_text("cancelled")


def test_a_failed_run_below_the_first_page_is_shown_as_retried(page: Page, site: Site) -> None:
    failed = site.run_task("charge", input={"order": "L-1", "amount": 1.0}, tags=["below"])
    site.wait_for(failed, "failed")
    for _ in range(101):
        site.run_task("slow", input={}, hold=True, tags=["below"])
    page.goto(f"{site.ui}/runs?tag=below&window=all")
    grid = page.get_by_role("grid", name="Runs")
    row = page.locator(f'[data-row-id="{failed}"]')
    expect(grid.locator("[data-row-id]").first).to_be_visible()
    grid.focus()
    page.keyboard.press("End")
    expect(page.get_by_text("102 runs, no more match.")).to_be_visible()
    page.keyboard.press("End")
    expect(row).to_contain_text("failed")
    # It stays queued, so that nothing but the retry changes it.
    site.call("PATCH", "/lanes/billing", {"enabled": False})
    site.call("POST", f"/runs/{failed}/retry", {})
    expect(row).to_contain_text("queued")
    site.call("PATCH", "/lanes/billing", {"enabled": True})
