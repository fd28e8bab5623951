"""What operators look up and change in one place: child runs, forks, costs, sizes, connections, and many workers."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from runlane.domain.series import BUCKETS
from runlane.testing import FakeMcp
from tests import forking
from tests.server_process import serving
from tests.ui.conftest import OpenContext, PageProblems
from tests.ui.site import Site, open_site, wait_until

FAMILY: dict[str, Any] = {
    "orchestrations": [{"id": "outer", "steps": [{"id": "work", "type": "agent", "agent_id": "caller"}]}],
    "agents": [
        {
            "id": "caller",
            "model": "scripted",
            "tools": ["call_inner"],
            "answers": [{"tool": "call_inner", "arguments": {"message": "go"}, "cost_usd": 0.5}, "done"],
        }
    ],
    "tools": [{"name": "call_inner", "tool_type": "orchestration", "orchestration_id": "inner"}],
    "source": "tests",
}
# A browser without a desktop shows no notification, so the page gets a constructor that keeps what it was given.
NOTICES = """
window.notices = []
window.Notification = class {
  static permission = 'default'
  static requestPermission() { this.permission = 'granted'; return Promise.resolve('granted') }
  constructor(title, options) { window.notices.push({ title, ...options }) }
  close() {}
}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    """A server that may call MCP servers of this machine."""
    forking.prepare(forking.MCP)
    variables = {"RUNLANE_OUTBOUND_ALLOW": "127.0.0.1", **forking.MCP}
    with open_site(tmp_path_factory.mktemp("site"), port=None, **variables) as opened:
        yield opened
        opened.server.kill()


@pytest.fixture(scope="module")
def family(site: Site) -> dict[str, str]:
    """A run whose agent has called another orchestration as a tool."""
    site.call("POST", "/sync", FAMILY)
    parent = site.orchestrate("outer", "go")
    site.wait_for(parent, "completed")
    (child,) = site.get_run(parent)["children"]
    return {"parent": parent, "child": child["run_id"]}


def test_child_runs_are_listed_on_request_and_with_their_parent(page: Page, site: Site, family: dict[str, str]) -> None:
    parent, child = (page.locator(f'[data-row-id="{family[name]}"]') for name in ("parent", "child"))
    page.goto(f"{site.ui}/runs")
    expect(parent).to_be_visible()
    expect(child).to_have_count(0)
    page.get_by_label("Child runs").check()
    expect(child).to_be_visible()
    expect(page).to_have_url(re.compile("children=yes"))
    page.goto(f"{site.ui}/runs?parent={family['parent']}")
    expect(child).to_be_visible()
    page.goto(f"{site.ui}/runs?target=orchestration:inner")
    page.get_by_role("button", name="Include child runs").click()
    expect(child).to_be_visible()
    # A definition that only other runs start leads to them.
    page.goto(f"{site.ui}/definitions/orchestrations/inner")
    page.get_by_role("link", name="Its runs").click()
    expect(child).to_be_visible()


def test_a_run_lists_its_forks(page: Page, site: Site, family: dict[str, str]) -> None:
    forks = [
        site.call("POST", f"/runs/{family['parent']}/fork", {"from_step": "work", "state": {"number": number}})[
            "run_id"
        ]
        for number in range(5)
    ]
    page.goto(f"{site.ui}/runs/{family['parent']}")
    expect(page.get_by_role("link", name=forks[-1][-8:])).to_be_visible()
    page.get_by_role("link", name="all forks").click()
    for fork in forks:
        expect(page.locator(f'[data-row-id="{fork}"]')).to_be_visible()
    expect(page.get_by_role("grid", name="Runs").locator("[data-row-id]")).to_have_count(5)


def test_the_most_expensive_runs_are_listed_with_their_cost(page: Page, site: Site, family: dict[str, str]) -> None:
    page.goto(f"{site.ui}/usage")
    table = page.get_by_role("region", name="Most expensive runs")
    expect(table).to_contain_text("orchestration:outer")
    expect(table).to_contain_text("$0.50")
    table.get_by_role("link", name=family["parent"][-8:]).click()
    expect(page).to_have_url(re.compile(family["parent"]))


def test_the_cost_of_today_is_shown_by_the_hour(page: Page, site: Site) -> None:
    hour = int(time.time()) // 3600 * 3600
    with _database(site) as connection:
        _count(connection, 60, hour, lane="default", target="orchestration:outer", cost_usd=12.5)
        _count(connection, 60, hour)
    page.goto(f"{site.ui}/usage?days=1")
    expect(page.get_by_role("heading", name="Cost per hour")).to_be_visible()
    chart = page.get_by_role("figure")
    shown = time.strftime("%H:00", time.gmtime(hour))
    expect(chart.get_by_title(re.compile(f"^{shown}: \\$12.5"))).to_be_visible()
    page.get_by_label("Measure").select_option("calls")
    expect(page.get_by_role("heading", name="Calls per day")).to_be_visible()


def test_the_size_of_each_table_is_shown(page: Page, site: Site) -> None:
    page.goto(f"{site.ui}/system")
    table = page.get_by_role("table", name="Largest tables")
    expect(table.get_by_role("row")).to_have_count(11)
    expect(table).to_contain_text("kB")
    page.get_by_text("smaller tables").click()
    expect(page.get_by_role("table", name="Smaller tables")).to_be_visible()


def test_the_slowest_statements_of_the_servers_are_listed(page: Page, site: Site) -> None:
    page.goto(f"{site.ui}/system")
    expect(page.get_by_role("heading", name="Slowest statements")).to_be_visible()
    # Another server of the same database has a slow list.
    slow = {"name": "search_runs_by_tag", "seconds": 72.0, "at": "2026-11-18T00:00:00Z", "count": 1234}

    def store_slow_server() -> bool | None:
        with _database(site) as connection:
            stored = connection.execute(
                "insert into servers select 'srv_slow', 'far', 1, version, started_at, heartbeat_at + 600000000, ? "
                "from servers limit 1",
                (json.dumps({"slow_statements": [slow]}),),
            )
            return stored.rowcount == 1 or None

    wait_until(store_slow_server, "the row of the server")
    page.reload()
    row = page.get_by_role("table", name="Slowest statements").get_by_role("row").nth(1)
    expect(row).to_contain_text("search_runs_by_tag")
    expect(row).to_contain_text("1m 12s")
    expect(row).to_contain_text("1,234")
    checks = page.get_by_role("list", name="Checks")
    expect(checks).to_contain_text("search_runs_by_tag took 72.00 s, the slowest in the last hour")


def test_the_lanes_show_how_many_runs_start_in_a_minute(page: Page, site: Site) -> None:
    site.wait_for(site.run_task("resize", input={"picture": "first.png"}), "completed")
    minute = int(time.time()) // 60 * 60 - 120
    with _database(site) as connection:
        _count(connection, 60, minute, lane="media", target="resize", started=4321)
        _count(connection, 60, minute)
    page.goto(f"{site.ui}/lanes")
    expect(page.get_by_role("columnheader", name="Started / min")).to_be_visible()
    starts = page.locator('[data-row-id="media"]').get_by_role("img", name=re.compile("^Runs of media that started in"))
    expect(starts).to_have_attribute("aria-label", re.compile("4321"))
    page.goto(f"{site.ui}/lanes/media")
    expect(page.locator("dl > div").filter(has_text=re.compile("^started"))).to_have_text("started4,321")


def _count(connection: sqlite3.Connection, seconds: int, bucket: int, **given: Any) -> None:
    """Store figures as maintenance does; those without a lane mark the bucket as counted."""
    names = ("accepted", "started", "completed", "failed", "cancelled", "retried", "cost_usd", "tokens")
    row = dict.fromkeys(("tenant", "lane", "target"), "") | dict.fromkeys(names, 0)
    row |= dict.fromkeys(("waits", "durations"), json.dumps([0] * BUCKETS))
    row |= {"seconds": seconds, "bucket": bucket, **given}
    columns, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
    connection.execute(f"insert or replace into run_series ({columns}) values ({marks})", row)


@contextmanager
def _database(site: Site) -> Generator[sqlite3.Connection]:
    """Write to the file of the site, beside its server."""
    with closing(sqlite3.connect(site.folder / "runlane.db", timeout=30)) as connection, connection:
        yield connection


def test_the_queued_runs_of_a_lane_are_counted_and_cancelled(page: Page, site: Site) -> None:
    site.call("PATCH", "/lanes/media", {"enabled": False})
    queued = [site.run_task("resize", input={"picture": f"{number}.png"}) for number in range(3)]
    later = site.run_task("resize", input={"picture": "later.png"}, delay_seconds=3600)
    page.goto(f"{site.ui}/lanes/media")
    page.get_by_role("button", name="Cancel queued runs").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("the queued runs of the lane media")
    expect(dialog).to_contain_text("3 runs will be changed.")
    dialog.get_by_text("As a command").click()
    expect(dialog).to_contain_text("runlane bulk start cancel --lane media --status queued")
    dialog.get_by_role("button", name="Cancel: 3 runs").click()
    expect(page).to_have_url(re.compile("/bulk/"))
    for run_id in queued:
        site.wait_for(run_id, "cancelled")
    assert site.get_run(later)["status"] == "scheduled"
    site.call("PATCH", "/lanes/media", {"enabled": True})
    page.goto(f"{site.ui}/lanes/media")
    expect(page.get_by_role("button", name="Cancel queued runs")).to_be_disabled()


def test_the_workers_of_a_version_are_drained_and_resumed(page: Page, site: Site) -> None:
    with ExitStack() as stack:
        folder, variables = site.folder, {**site.variables, "RUNLANE_WORKER_HEALTH_PORT": "0"}
        stack.enter_context(serving(folder, variables, "serve", "tasks:app", "--worker"))
        wait_until(lambda: len(workers(site)) == 2 or None, "the second worker")
        page.goto(f"{site.ui}/workers")
        page.get_by_role("list", name="Workers by version").get_by_role("button", name="Drain all").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("2 workers claim no more runs")
        expect(dialog).to_contain_text("No worker of another version is online, so new runs wait.")
        dialog.get_by_role("button", name="Drain 2 workers").click()
        expect(dialog).to_be_hidden()
        assert {worker["status"] for worker in workers(site)} == {"draining"}
        page.get_by_role("button", name="Cancel the drain").first.click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel the drain").click()
        expect(page.get_by_role("dialog")).to_be_hidden()
        assert {worker["status"] for worker in workers(site)} == {"online"}


def workers(site: Site) -> list[dict[str, Any]]:
    return site.call("GET", "/workers")["workers"]


def test_an_mcp_server_is_checked_from_its_definition(page: Page, site: Site) -> None:
    with FakeMcp() as fake:
        fake.control()
        site.call("POST", "/sync", {"mcp_servers": [{"name": "fake", "url": fake.url}], "source": "tests"})
        page.goto(f"{site.ui}/definitions/mcp-servers/fake?tab=connection")
        page.get_by_role("button", name="Check the connection").click()
        expect(page.get_by_role("status").filter(has_text="It answers, with 10 tools.")).to_be_visible()
        tools = page.get_by_role("list", name="Tools of the server")
        expect(tools).to_contain_text("fake__add")
        fake.control(token="needed")
        page.get_by_role("button", name="Check the connection").click()
        expect(page.get_by_text("It cannot be used (mcp_refused).")).to_be_visible()


def test_a_new_question_shows_a_notification_once_it_is_switched_on(
    open_context: OpenContext, site: Site, problems: PageProblems
) -> None:
    context = open_context()
    context.add_init_script(NOTICES)
    page = context.new_page()
    problems.watch(page, site.url)
    site.wait_for(site.run_agent("helper", "Please confirm my order 1."), "paused")
    page.goto(f"{site.ui}/inbox")
    switch = page.get_by_role("button", name="Show a desktop notification for each new question")
    expect(switch).to_have_attribute("aria-pressed", "false")
    switch.click()
    expect(page.get_by_role("button", name="Desktop notifications are on.")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Runs").click()
    expect(page.get_by_role("grid", name="Runs")).to_be_visible()
    assert page.evaluate("window.notices") == []
    site.wait_for(site.run_agent("helper", "Please confirm my order 2."), "paused")
    # The page allows no script from a string, so the test looks again instead of the page.
    wait_until(lambda: len(page.evaluate("window.notices")) or None, "the notification")
    (notice,) = page.evaluate("window.notices")
    assert notice["body"] == "A new question waits for an answer; 2 questions are open."
    assert "order" not in json.dumps(notice)
    # An answered question is not a new one, and neither is what arrives after they were switched off.
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Inbox").click()
    page.get_by_role("button", name="Desktop notifications are on.").click()
    expect(switch).to_be_visible()
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Runs").click()
    site.wait_for(site.run_agent("helper", "Please confirm my order 3."), "paused")
    expect(page.get_by_role("navigation", name="Pages")).to_contain_text("3")
    assert len(page.evaluate("window.notices")) == 1
