"""Sign-in: a key becomes a session that no script can read, and ends with the key."""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import OpenContext, PageProblems
from tests.ui.site import Site, create_key, keyed_site


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


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def test_a_key_opens_the_page_it_was_meant_for(visitor: Page, keyed: Site) -> None:
    visitor.goto(f"{keyed.ui}/runs?status=failed")
    sign_in(visitor, "sk-rl-" + "0" * 64)
    expect(visitor.get_by_role("alert")).to_contain_text("This key is not valid.")
    assert keyed.key is not None
    sign_in(visitor, keyed.key)
    expect(visitor.get_by_role("heading", name="Runs")).to_be_visible()
    expect(visitor).to_have_url(re.compile("status=failed"))
    # Nothing that a script can reach contains the key.
    stored = visitor.evaluate(
        "JSON.stringify([localStorage, sessionStorage, document.cookie, document.body.outerHTML])"
    )
    assert keyed.key not in stored
    cookie = next(cookie for cookie in visitor.context.cookies() if "runlane" in cookie.get("name", ""))
    assert cookie.get("httpOnly") is True
    assert cookie.get("sameSite") == "Strict"

    visitor.get_by_role("button", name="Account").click()
    visitor.get_by_role("menuitem", name="Sign out").click()
    expect(visitor.get_by_label("API key")).to_be_visible()


def test_pages_and_buttons_follow_the_permissions(visitor: Page, keyed: Site) -> None:
    run_id = keyed.run_task("slow", input={}, hold=True)
    visitor.goto(keyed.ui + "/")
    sign_in(visitor, create_key(keyed.folder, keyed.variables, "reader", "viewer"))
    pages = visitor.get_by_role("navigation", name="Pages")
    expect(pages.get_by_role("link", name="Workers")).to_be_visible()
    expect(pages.get_by_role("link", name="Secrets")).to_have_count(0)
    visitor.goto(f"{keyed.ui}/runs/{run_id}")
    expect(visitor.get_by_role("button", name="More actions")).to_be_visible()
    expect(visitor.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)


def test_a_key_of_another_tenant_sees_nothing_of_the_one_before(visitor: Page, keyed: Site) -> None:
    """Neither what was read with the first key, nor the tenant that a platform admin has chosen."""
    keyed.call("POST", "/tenants", {"id": "acme"})
    theirs = keyed.call("POST", "/keys", {"name": "theirs", "role": "operator", "tenant": "acme"})["key"]
    leaving = keyed.call("POST", "/keys", {"name": "boss", "role": "platform_admin"})
    run_id = keyed.run_task("slow", input={}, hold=True)
    visitor.goto(f"{keyed.ui}/runs")
    sign_in(visitor, leaving["key"])
    expect(visitor.locator(f'[data-row-id="{run_id}"]')).to_be_visible()
    visitor.get_by_role("button", name="Tenant").click()
    visitor.get_by_role("menuitem", name="default").click()
    keyed.call("DELETE", f"/keys/{leaving['id']}")
    visitor.get_by_role("link", name="Overview").click()
    expect(visitor.get_by_role("dialog", name="The session has ended")).to_be_visible()
    visitor.evaluate("window.sameDocument = true")
    sign_in(visitor, theirs)
    expect(visitor.get_by_role("dialog", name="The session has ended")).to_be_hidden()
    visitor.get_by_role("link", name="Runs", exact=True).click()
    expect(visitor.get_by_text("No run", exact=False).first).to_be_visible()
    assert visitor.evaluate("window.sameDocument") is None
    assert run_id not in visitor.content()


def test_a_revoked_key_ends_the_session_and_the_page_continues_after_another_one(visitor: Page, keyed: Site) -> None:
    made = create_key(keyed.folder, keyed.variables, "leaving", "operator")
    visitor.goto(f"{keyed.ui}/runs")
    sign_in(visitor, made)
    expect(visitor.get_by_role("heading", name="Runs")).to_be_visible()
    listed = keyed.call("GET", "/keys")["keys"]
    key_id = next(key["id"] for key in listed if key["name"] == "leaving")
    keyed.call("DELETE", f"/keys/{key_id}")
    visitor.get_by_role("link", name="Overview").click()
    dialog = visitor.get_by_role("dialog", name="The session has ended")
    expect(dialog).to_be_visible()
    assert keyed.key is not None
    sign_in(visitor, keyed.key)
    expect(dialog).to_be_hidden()
    expect(visitor.get_by_role("heading", name="Overview")).to_be_visible()
