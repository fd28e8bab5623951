"""Sessions that end while a page is open, and browsers that two keys use: what continues, and what is forgotten.

A server of its own, because an address may sign in ten times a minute.
"""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import OpenContext, PageProblems
from tests.ui.site import Site, keyed_site
from tests.ui.test_sign_in import sign_in


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    with keyed_site(tmp_path_factory.mktemp("keyed")) as site:
        yield site


@pytest.fixture
def visitor(open_context: OpenContext, keyed: Site, problems: PageProblems) -> Page:
    problems.expected.append("401")
    found = open_context().new_page()
    problems.watch(found, keyed.url)
    return found


def test_a_change_is_made_after_the_sign_in_that_it_needed(visitor: Page, keyed: Site) -> None:
    """The session ends while a dialog is open: after the sign-in the request is sent again, without another click."""
    leaving = keyed.call("POST", "/keys", {"name": "leaving-soon", "role": "platform_admin"})
    run_id = keyed.run_task("slow", input={}, hold=True)
    visitor.goto(f"{keyed.ui}/runs/{run_id}")
    sign_in(visitor, leaving["key"])
    visitor.get_by_role("button", name="Cancel", exact=True).click()
    keyed.call("DELETE", f"/keys/{leaving['id']}")
    visitor.get_by_role("dialog").get_by_role("button", name="Cancel the run").click()
    expired = visitor.get_by_role("dialog", name="The session has ended")
    expect(expired).to_be_visible()
    assert keyed.get_run(run_id)["status"] == "awaiting_approval"
    assert keyed.key is not None
    sign_in(visitor, keyed.key)
    expect(expired).to_be_hidden()
    keyed.wait_for(run_id, "cancelled")
    expect(visitor.get_by_role("dialog")).to_be_hidden()


def test_what_was_typed_for_a_start_is_not_offered_to_another_tenant(visitor: Page, keyed: Site) -> None:
    keyed.call("POST", "/tenants", {"id": "globex"})
    theirs = keyed.call("POST", "/keys", {"name": "globex", "role": "operator", "tenant": "globex"})["key"]
    visitor.goto(f"{keyed.ui}/start?target=resize")
    assert keyed.key is not None
    sign_in(visitor, keyed.key)
    visitor.get_by_label("picture").fill("confidential.png")
    visitor.get_by_role("button", name="Start the run").click()
    expect(visitor).to_have_url(re.compile("/runs/run_"))
    # The last values of the target are offered again, to this tenant alone.
    visitor.goto(f"{keyed.ui}/start?target=resize")
    expect(visitor.get_by_label("picture")).to_have_value("confidential.png")
    visitor.context.clear_cookies()
    visitor.reload()
    sign_in(visitor, theirs)
    expect(visitor.get_by_label("picture")).to_have_value("")
    visitor.get_by_role("button", name="Account").click()
    visitor.get_by_role("menuitem", name="Sign out").click()
    expect(visitor.get_by_label("API key")).to_be_visible()
    assert "confidential" not in visitor.evaluate("JSON.stringify(localStorage)")


def test_a_tab_forgets_what_it_has_read_when_another_tab_signs_in_with_another_key(
    visitor: Page, keyed: Site, problems: PageProblems
) -> None:
    # What the first key may read and the second may not.
    problems.expected.append("403")
    keyed.call("POST", "/tenants", {"id": "initech"})
    theirs = keyed.call("POST", "/keys", {"name": "initech", "role": "operator", "tenant": "initech"})["key"]
    run_id = keyed.run_task("slow", input={}, hold=True)
    visitor.goto(f"{keyed.ui}/runs")
    assert keyed.key is not None
    sign_in(visitor, keyed.key)
    row = visitor.locator(f'[data-row-id="{run_id}"]')
    expect(row).to_be_visible()
    visitor.evaluate("window.sameDocument = true")
    other = visitor.context.new_page()
    problems.watch(other, keyed.url)
    other.goto(f"{keyed.ui}/")
    other.get_by_role("button", name="Account").click()
    other.get_by_role("menuitem", name="Sign out").click()
    sign_in(other, theirs)
    expect(other.get_by_role("heading", name="Overview")).to_be_visible()
    visitor.bring_to_front()
    visitor.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(row).to_have_count(0)
    expect(visitor.get_by_text("No run", exact=False).first).to_be_visible()
    assert visitor.evaluate("window.sameDocument") is None
