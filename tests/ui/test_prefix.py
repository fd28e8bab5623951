"""The dashboard below a path of another host: every request stays below it, and sessions, changes and streams work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.ui.conftest import OpenContext, PageProblems
from tests.ui.prefix_proxy import PREFIX, publishing
from tests.ui.site import keyed_site, sync


@pytest.mark.parametrize("strips", [True, False])
def test_the_dashboard_below_a_path(
    open_context: OpenContext, problems: PageProblems, tmp_path: Path, strips: bool
) -> None:
    trusting = keyed_site(tmp_path, RUNLANE_TRUSTED_PROXIES="127.0.0.0/8")
    opened = trusting if strips else keyed_site(tmp_path, RUNLANE_UI_BASE_PATH=PREFIX)
    problems.expected.append("401")
    with opened as site, publishing(site.server.port, strips=strips) as proxy:
        sync(site)
        run_id = site.orchestrate("report", "the old lighthouse")
        site.wait_for(run_id, "paused")
        held = site.run_task("slow", input={}, hold=True)
        page = open_context().new_page()
        problems.watch(page, proxy.origin)
        page.goto(f"{proxy.origin}{PREFIX}/")
        assert site.key is not None
        page.get_by_label("API key").fill(site.key)
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(f"{proxy.origin}{PREFIX}/ui/")
        # The list, its stream of hints, and a run with its own stream.
        page.get_by_role("navigation", name="Pages").get_by_role("link", name="Runs").click()
        expect(page).to_have_url(re.compile(f"{PREFIX}/ui/runs"))
        expect(page.get_by_role("button", name="Live", exact=True)).to_be_visible()
        expect(page.locator(f'[data-row-id="{held}"]')).to_be_visible()
        site.run_task("slow", input={}, hold=True)
        expect(page.get_by_text("1 new run")).to_be_visible()
        page.locator(f'[data-row-id="{run_id}"]').get_by_role("link").first.click()
        page.get_by_role("link", name="Graph").click()
        # The layout comes from a script that runs beside the page.
        expect(page.locator('[data-step="approval"]')).to_have_attribute("data-outcome", "waiting")
        # A change passes the checks of its origin.
        page.locator("[data-why]").get_by_role("button", name="Answer").click()
        page.get_by_role("dialog").get_by_label("decision").select_option("publish")
        page.get_by_role("dialog").get_by_role("button", name="Send the answer").click()
        expect(page.locator('[data-step="publish"]')).to_have_attribute("data-outcome", "done")
        # A link to a page works from the start.
        page.goto(f"{proxy.origin}{PREFIX}/ui/runs/{held}")
        expect(page.locator("[data-why]")).to_contain_text("approves")
        page.get_by_role("button", name="Account").click()
        page.get_by_role("menuitem", name="Sign out").click()
        expect(page.get_by_label("API key")).to_be_visible()
        assert proxy.outside == []
        site.server.kill()
