"""Action links: made in the inbox or by a command, shown by a page without scripts, and used by its button alone."""

from __future__ import annotations

import json
import re
from collections.abc import Generator

import pytest
from playwright.sync_api import Page, expect

from tests.server_process import command
from tests.ui.conftest import OpenContext, PageProblems
from tests.ui.site import Site, keyed_site, sync
from tests.ui.test_accessibility import findings
from tests.ui.test_sign_in import sign_in

QUESTION = "Publish the report about the old lighthouse?"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    """A server that needs keys and allows links."""
    with keyed_site(tmp_path_factory.mktemp("links"), RUNLANE_ACTION_LINKS="true") as opened:
        sync(opened)
        yield opened
        opened.server.kill()


@pytest.fixture
def run_id(site: Site) -> str:
    started = site.orchestrate("report", "the old lighthouse")
    site.wait_for(started, "paused")
    return started


@pytest.fixture
def boss(page: Page, site: Site, problems: PageProblems, run_id: str) -> Page:
    """A signed-in page with the question of the run."""
    problems.expected.append("401")
    page.goto(f"{site.ui}/inbox?run={run_id}&path=approval")
    assert site.key is not None
    sign_in(page, site.key)
    expect(page.get_by_role("heading", name=QUESTION)).to_be_visible()
    return page


def make_link(page: Page, person: str) -> str:
    """Make a link for a person in the inbox, and return its address."""
    page.get_by_role("button", name="Make a link").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Person").fill(person)
    dialog.get_by_label("decision").select_option("publish")
    expect(dialog).to_contain_text("Opening it changes nothing.")
    dialog.get_by_role("button", name="Make the link").click()
    shown = page.get_by_role("dialog", name=f"The link for {person}")
    found = re.search(r"http\S+/answer/[\w-]+", shown.inner_text())
    assert found is not None
    shown.get_by_label("I have stored it").check()
    shown.get_by_role("button", name="Done").click()
    return found.group()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_person_without_a_key_decides_with_the_button_of_the_page(
    boss: Page, open_context: OpenContext, problems: PageProblems, site: Site, run_id: str, theme: str
) -> None:
    url = make_link(boss, "Ann")
    expect(boss.get_by_role("region", name="Links that answer this question")).to_contain_text("Ann")
    small = {"width": 360, "height": 740}
    reader = open_context(viewport=small, color_scheme=theme).new_page()
    problems.watch(reader, site.url)
    reader.goto(url)
    expect(reader.get_by_text(QUESTION)).to_be_visible()
    expect(reader.get_by_text('"publish"')).to_be_visible()
    assert findings(reader) == []
    assert reader.evaluate("document.documentElement.scrollWidth") <= small["width"]
    # Opening it has changed nothing.
    assert site.get_run(run_id)["status"] == "paused"
    reader.get_by_role("button", name="Give this answer").click()
    expect(reader.get_by_role("heading", name="The question is answered")).to_be_visible()
    expect(reader.get_by_text("Answered by Ann (link of boss)")).to_be_visible()
    assert findings(reader) == []
    site.wait_for(run_id, "completed")
    expect(boss.get_by_text("Answered by Ann (link of boss)")).to_be_visible()


def test_the_page_of_a_link_works_without_scripts(
    open_context: OpenContext, problems: PageProblems, site: Site, run_id: str
) -> None:
    body = {"run_id": run_id, "path": "approval", "person": "Ben", "response": {"decision": "drop"}}
    url = site.call("POST", "/inbox/links", body)["url"]
    reader = open_context(java_script_enabled=False).new_page()
    problems.watch(reader, site.url)
    reader.goto(url)
    reader.get_by_role("button", name="Give this answer").click()
    expect(reader.get_by_role("heading", name="The question is answered")).to_be_visible()
    site.wait_for(run_id, "completed")


def test_a_link_is_revoked_in_the_inbox(
    boss: Page, open_context: OpenContext, problems: PageProblems, site: Site, run_id: str
) -> None:
    url = make_link(boss, "Cleo")
    links = boss.get_by_role("region", name="Links that answer this question")
    links.get_by_role("button", name="Revoke").click()
    boss.get_by_role("dialog").get_by_role("button", name="Revoke the link").click()
    expect(links).to_be_hidden()
    problems.expected.append("404")
    reader = open_context().new_page()
    problems.watch(reader, site.url)
    reader.goto(url)
    expect(reader.get_by_role("heading", name="This link is not valid")).to_be_visible()
    site.call("POST", f"/runs/{run_id}/cancel", {})


def test_a_command_makes_lists_and_revokes_a_link(site: Site, run_id: str) -> None:
    assert site.key is not None
    server = {"RUNLANE_URL": site.url, "RUNLANE_API_KEY": site.key}
    answer = ("--field", "decision=publish", "--person", "Dan")
    made = command(site.folder, "links", "create", run_id, "approval", *answer, **server)
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith(f"{site.url}/answer/")
    (listed,) = json.loads(command(site.folder, "links", "list", "--run", run_id, "--json", **server).stdout)
    assert (listed["person"], listed["response"]) == ("Dan", {"decision": "publish"})
    revoked = command(site.folder, "links", "revoke", listed["id"], **server)
    assert revoked.stdout.strip() == f"{listed['id']}: revoked."
    assert json.loads(command(site.folder, "links", "list", "--json", **server).stdout) == []
    refused = command(site.folder, "links", "create", run_id, "approval", "--person", "Dan", **server)
    assert (refused.returncode, "either --answer or --field" in refused.stderr) == (1, True)
    site.call("POST", f"/runs/{run_id}/cancel", {})
