"""Keys, roles, tenants, secrets, audit and health in the browser of a server that needs keys."""

from __future__ import annotations

import re
import secrets
from collections.abc import Generator
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import OpenContext, PageProblems
from tests.ui.site import Site, command, create_key, keyed_site

SECRET = "correct-horse-battery"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    with keyed_site(tmp_path_factory.mktemp("keyed"), RUNLANE_SECRET_KEY=secrets.token_hex(32)) as opened:
        yield opened
        opened.server.kill()


def sign_in(page: Page, site: Site, key: str | None) -> None:
    assert key is not None
    page.goto(f"{site.ui}/")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()


@pytest.fixture
def boss(open_context: OpenContext, site: Site, problems: PageProblems) -> Page:
    """A page of a platform admin."""
    problems.expected.append("401")
    page = open_context().new_page()
    problems.watch(page, site.url)
    sign_in(page, site, site.key)
    return page


def test_a_key_is_shown_once_used_and_revoked(
    boss: Page, site: Site, open_context: OpenContext, problems: PageProblems
) -> None:
    boss.goto(f"{site.ui}/access")
    boss.get_by_role("button", name="New key").click()
    dialog = boss.get_by_role("dialog")
    dialog.get_by_label("Name").fill("night shift")
    dialog.get_by_label("Role").select_option("viewer")
    dialog.get_by_role("button", name="Create the key").click()
    shown = boss.get_by_role("dialog", name="The key night shift")
    key = shown.locator("code").inner_text()
    expect(shown.get_by_role("button", name="Done")).to_be_disabled()
    shown.get_by_label("I have stored it").check()
    shown.get_by_role("button", name="Done").click()
    assert key not in boss.content()
    # A viewer has no page for access, and a link to it names the permission.
    viewer = open_context().new_page()
    problems.watch(viewer, site.url)
    sign_in(viewer, site, key)
    expect(viewer.get_by_role("link", name="Access")).to_be_hidden()
    viewer.goto(f"{site.ui}/access")
    expect(viewer.get_by_text("This page needs the permission keys:manage or audit:read")).to_be_visible()
    boss.goto(f"{site.ui}/access?tab=sessions")
    expect(boss.get_by_text("night shift")).to_be_visible()
    boss.goto(f"{site.ui}/access")
    boss.get_by_role("button", name="Actions of night shift").click()
    boss.get_by_role("menuitem", name="Revoke").click()
    boss.get_by_label("Type night shift to confirm").fill("night shift")
    boss.get_by_role("button", name="Revoke the key").click()
    expect(boss.get_by_text("revoked").first).to_be_visible()
    viewer.reload()
    expect(viewer.get_by_role("button", name="Sign in")).to_be_visible()


def test_a_role_and_a_tenant_are_made(boss: Page, site: Site) -> None:
    boss.goto(f"{site.ui}/access?tab=roles")
    boss.get_by_role("button", name="New role").click()
    dialog = boss.get_by_role("dialog")
    dialog.get_by_label("Name").fill("answerer")
    dialog.get_by_label("runs:read").check()
    dialog.get_by_label("runs:write").check()
    dialog.get_by_role("button", name="Create the role").click()
    expect(boss.get_by_role("columnheader", name=re.compile("answerer"))).to_be_visible()
    boss.goto(f"{site.ui}/access?tab=tenants")
    boss.get_by_role("button", name="New tenant").click()
    boss.get_by_role("dialog").get_by_label("Id").fill("acme")
    boss.get_by_role("button", name="Create the tenant").click()
    boss.get_by_role("button", name="Change acme").click()
    dialog = boss.get_by_role("dialog")
    dialog.get_by_label("Running runs").fill("7")
    expect(dialog).to_contain_text("Changed: max_running.")
    dialog.get_by_role("button", name="Save the tenant").click()
    expect(dialog).to_be_hidden()
    assert site.call("GET", "/tenants/acme")["max_running"] == 7


def test_the_audit_log_shows_who_changed_a_lane(boss: Page, site: Site) -> None:
    site.call("POST", "/lanes", {"name": "audited"})
    boss.goto(f"{site.ui}/lanes/audited")
    boss.get_by_role("button", name="Pause", exact=True).click()
    boss.get_by_role("button", name="Pause the lane").click()
    expect(boss.get_by_role("dialog")).to_be_hidden()
    boss.get_by_role("link", name="Who changed it").click()
    entries = boss.get_by_role("list", name="Audit entries").get_by_role("listitem")
    expect(entries.first).to_contain_text("boss")
    # What was changed is on the line itself.
    expect(entries.first).to_contain_text("enabled: yes → no")
    entries.first.get_by_role("button").click()
    expect(boss.get_by_role("group", name="Change", exact=True)).to_contain_text("enabled")


def test_the_audit_log_finds_an_old_change_of_an_actor(boss: Page, site: Site) -> None:
    site.call("POST", "/lanes", {"name": "crowded"})
    busy = replace(site, key=create_key(site.folder, site.variables, "busy", "platform_admin"))
    # More changes than a page of the log has.
    for number in range(101):
        busy.call("PATCH", "/lanes/crowded", {"max_slots": number})
    boss.goto(f"{site.ui}/access?tab=audit&subject=crowded")
    entries = boss.get_by_role("list", name="Audit entries").get_by_role("listitem")
    expect(entries.first).to_contain_text("busy")
    boss.get_by_label("Actor").fill("boss")
    boss.keyboard.press("Enter")
    expect(entries).to_have_count(1)
    expect(entries).to_contain_text("boss")


def test_a_secret_is_written_and_never_read(boss: Page, site: Site) -> None:
    boss.goto(f"{site.ui}/secrets")
    boss.get_by_role("button", name="Set a secret").click()
    dialog = boss.get_by_role("dialog")
    dialog.get_by_label("Name").fill("API_TOKEN")
    dialog.get_by_label("Value").fill(SECRET)
    dialog.get_by_text("As a command").click()
    assert SECRET not in dialog.inner_text()
    dialog.get_by_role("button", name="Store the secret").click()
    expect(boss.locator("[data-row-id]", has_text="API_TOKEN")).to_be_visible()
    assert SECRET not in boss.content()


def test_the_checks_of_the_doctor_are_shown(boss: Page, site: Site) -> None:
    boss.goto(f"{site.ui}/system")
    checks = boss.get_by_role("list", name="Checks")
    expect(checks).to_contain_text("database")
    expect(checks).to_contain_text("ended runs are kept for 30 days; the deletion is not late")
    checks.get_by_role("link", name="workers").click()
    expect(boss.get_by_role("grid", name="Workers")).to_be_visible()


def test_an_operator_answers_but_does_not_manage(open_context: OpenContext, site: Site, problems: PageProblems) -> None:
    problems.expected.append("401")
    key = create_key(site.folder, site.variables, "operator", "operator")
    page = open_context().new_page()
    problems.watch(page, site.url)
    sign_in(page, site, key)
    expect(page.get_by_role("link", name="Inbox")).to_be_visible()
    expect(page.get_by_role("link", name="Secrets")).to_be_hidden()
    page.goto(f"{site.ui}/definitions")
    expect(page.get_by_text("No orchestrations exist yet")).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("New orchestration"))).to_be_hidden()
    # The requests of an operator of another tenant would be refused: see below.
    page.goto(f"{site.ui}/lanes/default")
    expect(page.get_by_role("button", name="Hold")).to_be_visible()


def test_an_operator_of_another_tenant_is_offered_no_change_of_a_lane(
    open_context: OpenContext, site: Site, problems: PageProblems
) -> None:
    problems.expected.append("401")
    made = command(site.folder, "tenants", "create", "shop", **site.variables)
    assert made.returncode == 0, made.stderr
    key = create_key(site.folder, site.variables, "operator-of-shop", "operator", "shop")
    page = open_context().new_page()
    problems.watch(page, site.url)
    sign_in(page, site, key)
    page.goto(f"{site.ui}/lanes/default")
    expect(page.get_by_role("heading", name="Assigned kinds")).to_be_visible()
    for name in ("Hold", "Settings", "Disable"):
        expect(page.get_by_role("button", name=name)).to_be_hidden()
