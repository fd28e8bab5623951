"""Lanes, workers, dead letters, schedules and webhooks: each change shows its consequence, and happens."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, cast

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import PageProblems
from tests.ui.site import Site, open_site, wait_until

TRACE_URL = "https://traces.example.com/trace/{trace_id}?from=runlane"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class Receiver(ThreadingHTTPServer):
    """An endpoint that answers with a status and keeps what it received."""

    def __init__(self) -> None:
        self.status = 500
        self.received: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        receiver = cast("Receiver", self.server)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        receiver.received.append(json.loads(body))
        self.send_response(receiver.status)
        self.end_headers()
        self.wfile.write(b"<b>answer</b>")

    def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Keep the log of the test quiet."""


@contextmanager
def receiving() -> Generator[Receiver]:
    receiver = Receiver()
    thread = Thread(target=receiver.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.shutdown()
        receiver.server_close()
        thread.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    """A server that may call endpoints of this machine."""
    folder = tmp_path_factory.mktemp("site")
    key = secrets.token_hex(32)
    allowed = "127.0.0.1"
    with open_site(
        folder, RUNLANE_OUTBOUND_ALLOW=allowed, RUNLANE_SECRET_KEY=key, RUNLANE_TRACE_URL=TRACE_URL
    ) as opened:
        yield opened
        opened.server.kill()


def confirm(page: Page, verb: str | re.Pattern[str]) -> None:
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name=verb).click()
    expect(dialog).to_be_hidden()


def test_a_lane_is_paused_and_resumed(page: Page, site: Site) -> None:
    site.wait_for(site.run_task("resize", input={"picture": "first.png"}), "completed")
    page.goto(f"{site.ui}/lanes/media")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("The lane starts no more runs.")
    confirm(page, "Pause the lane")
    waiting = site.run_task("resize", input={"picture": "waits.png"})
    expect(page.get_by_text("1 run waits: the lane is disabled.")).to_be_visible()
    assert site.get_run(waiting)["status"] == "queued"
    page.goto(f"{site.ui}/runs/{waiting}")
    expect(page.locator("[data-why]")).to_contain_text('The lane "media" is disabled.')
    page.locator("[data-why]").get_by_role("link", name="Lane media").click()
    page.get_by_role("button", name="Enable", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("1 run waits")
    confirm(page, "Enable the lane")
    site.wait_for(waiting, "completed")
    expect(page.get_by_text("Idle.")).to_be_visible()


def test_a_lane_is_held_with_a_reason_and_capped(page: Page, site: Site) -> None:
    page.goto(f"{site.ui}/lanes/media")
    page.get_by_role("button", name="Hold", exact=True).click()
    page.get_by_role("dialog").get_by_label("Reason").fill("The disk is replaced.")
    confirm(page, "Hold the lane")
    expect(page.get_by_text("The disk is replaced.")).to_be_visible()
    page.goto(f"{site.ui}/lanes")
    expect(page.locator('[data-row-id="media"]')).to_contain_text("held")
    page.locator('[data-row-id="media"]').get_by_role("link").click()
    page.get_by_role("button", name="Release").click()
    confirm(page, "Release the hold")
    page.get_by_role("button", name="Settings").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("No cap").uncheck()
    dialog.get_by_label("Slots").fill("3")
    expect(dialog).to_contain_text("At most 3 runs of the lane run at once, in the whole cluster.")
    dialog.get_by_text("As a command").click()
    expect(dialog).to_contain_text("runlane lanes set media --max-slots 3")
    confirm(page, "Save the settings")
    assert site.call("GET", "/lanes/media")["max_slots"] == 3
    expect(page.get_by_text("0 / 3")).to_be_visible()


def test_a_lane_is_capped_and_paused_from_its_row(page: Page, site: Site) -> None:
    site.call("POST", "/lanes", {"name": "rowed"})
    page.goto(f"{site.ui}/lanes")
    row = page.locator('[data-row-id="rowed"]')
    row.get_by_role("button", name="Actions of rowed").click()
    page.get_by_role("menuitem", name="Slots and settings").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("No cap").uncheck()
    dialog.get_by_label("Slots").fill("5")
    confirm(page, "Save the settings")
    expect(row).to_contain_text("0 / 5")
    row.get_by_role("button", name="Actions of rowed").click()
    page.get_by_role("menuitem", name="Pause").click()
    confirm(page, "Pause the lane")
    expect(row).to_contain_text("paused")


def test_a_page_whose_object_was_deleted_meanwhile_is_not_shown_as_current(
    page: Page, site: Site, problems: PageProblems
) -> None:
    problems.expected.append("404")
    site.call("POST", "/lanes", {"name": "short-lived"})
    page.goto(f"{site.ui}/lanes/short-lived")
    expect(page.get_by_role("heading", name="Assigned kinds")).to_be_visible()
    site.call("DELETE", "/lanes/short-lived")
    expect(page.get_by_role("alert")).to_contain_text('No lane "short-lived" exists.')


def test_workers_show_their_slots(page: Page, site: Site) -> None:
    worker = site.call("GET", "/workers")["workers"][0]
    page.goto(f"{site.ui}/workers")
    row = page.locator(f'[data-row-id="{worker["worker_id"]}"]')
    expect(row).to_contain_text("online")
    row.get_by_role("link").click()
    expect(page.get_by_role("dialog")).to_contain_text("resize")
    expect(page.get_by_role("link", name="All runs that it executed last")).to_have_attribute(
        "href", re.compile(worker["worker_id"])
    )


def test_a_run_leads_to_its_trace_and_its_lane(page: Page, site: Site) -> None:
    task = {"input": {"picture": "traced.png"}}
    run_id = site.call("POST", "/tasks/resize/run", task, traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")["run_id"]
    page.goto(f"{site.ui}/runs/{run_id}")
    link = page.get_by_role("link", name=TRACE[-8:])
    expect(link).to_have_attribute("href", TRACE_URL.replace("{trace_id}", TRACE))
    expect(link).to_have_attribute("rel", "noopener noreferrer")
    page.get_by_role("link", name="media", exact=True).click()
    expect(page.get_by_role("heading", name="Lane media")).to_be_visible()


def test_a_group_of_failures_is_replayed_at_once(page: Page, site: Site) -> None:
    failed = [site.run_task("charge", input={"order": f"B-{number}", "amount": 1}) for number in range(3)]
    for run_id in failed:
        site.wait_for(run_id, "failed")
    page.goto(f"{site.ui}/dead-letters?target=charge")
    group = page.get_by_role("list", name="Groups of failures").get_by_role("listitem").first
    expect(group).to_contain_text("was declined")
    group.get_by_role("button", name="Replay all 3").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("3 runs will be queued again under the same ids")
    confirm(page, "Replay: 3")
    expect(page).to_have_url(re.compile("/bulk/"))
    expect(page.get_by_text("3 of 3")).to_be_visible()
    for run_id in failed:
        wait_until(lambda run_id=run_id: len(attempts(site, run_id)) >= 2 or None, f"{run_id} to be tried again")


def runs_of(site: Site, schedule: str) -> list[dict[str, Any]]:
    return site.call("GET", f"/runs?schedule_id={schedule}&limit=10")["runs"]


def attempts(site: Site, run_id: str) -> list[dict[str, Any]]:
    return site.call("GET", f"/runs/{run_id}/attempts")["attempts"]


def test_a_dead_letter_shows_its_traceback_and_is_discarded(page: Page, site: Site) -> None:
    run_id = site.orchestrate("broken", "a division")
    site.wait_for(run_id, "failed")
    page.goto(f"{site.ui}/dead-letters?view=list")
    page.locator(f'[data-row-id="{run_id}"]').get_by_role("link").click()
    expect(page.get_by_text("ZeroDivisionError").first).to_be_visible()
    page.get_by_role("button", name="Discard").click()
    page.get_by_role("dialog").get_by_label("Note").fill("A test.")
    confirm(page, "Discard: 1")
    wait_until(lambda: site.call("GET", f"/dead-letters/{run_id}")["state"] == "discarded" or None, "the discard")


def test_a_failed_run_leads_to_every_failure_of_its_cause(page: Page, site: Site) -> None:
    failed = [site.run_task("charge", input={"order": f"C-{number}", "amount": 1}) for number in range(2)]
    for run_id in failed:
        site.wait_for(run_id, "failed")
    page.goto(f"{site.ui}/runs/{failed[0]}")
    page.get_by_role("link", name="Attempts and traceback").click()
    expect(page.get_by_role("heading", name="Attempt 1")).to_be_visible()
    page.get_by_role("link", name=re.compile(r"^All \d+ open failures with this cause$")).click()
    expect(page.get_by_role("button", name=re.compile(r"^Replay all \d+$"))).to_have_count(1)
    expect(page.get_by_text("The card of order C-")).to_be_visible()


def test_a_schedule_is_previewed_created_fired_and_paused(page: Page, site: Site, problems: PageProblems) -> None:
    # The preview of an expression that is not valid is refused.
    problems.expected.append("422")
    page.goto(f"{site.ui}/schedules")
    page.get_by_role("button", name="New schedule").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Id").fill("nightly")
    dialog.get_by_label("Starts").select_option("task:resize")
    dialog.get_by_label("Input").fill('{"picture": "scheduled.png"}')
    dialog.get_by_label("Cron expression").fill("99 * * * *")
    expect(dialog.get_by_role("region", name="Preview of the times")).to_contain_text("99")
    dialog.get_by_label("Cron expression").fill("0 7 * * 1")
    dialog.get_by_label("Time zone").select_option("Europe/Berlin")
    preview = dialog.get_by_role("region", name="Preview of the times")
    expect(preview).to_contain_text("Monday")
    expect(preview.get_by_role("row")).to_have_count(6)
    confirm(page, "Create the schedule")
    expect(page).to_have_url(re.compile("/schedules/nightly"))
    page.get_by_role("button", name="Run now").click()
    confirm(page, "Start a run now")
    expect(page.get_by_text("manual")).to_be_visible()
    assert len(runs_of(site, "nightly")) == 1
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("dialog").get_by_label("Reason").fill("Holidays.")
    confirm(page, "Pause the schedule")
    expect(page.get_by_text("Holidays.")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    confirm(page, "Resume the schedule")
    assert site.call("GET", "/schedules/nightly")["status"] == "active"


def test_a_backfill_lists_its_slots_before_it_starts_them(page: Page, site: Site) -> None:
    body = {
        "id": "hourly",
        "target": {"kind": "task", "name": "resize"},
        "spec": [{"cron": "0 * * * *"}],
        "zone": "UTC",
    }
    site.call("POST", "/schedules", {**body, "input": {"picture": "past.png"}})
    page.goto(f"{site.ui}/schedules/hourly")
    page.get_by_role("button", name="Backfill").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("From").fill("2026-01-01T00:30")
    dialog.get_by_label("To").fill("2026-01-01T03:30")
    slots = dialog.get_by_role("list", name="Slots of the range").get_by_role("listitem")
    expect(slots).to_have_count(3)
    assert runs_of(site, "hourly") == []
    confirm(page, "Start 3 runs")
    expect(page.get_by_text("backfill").first).to_be_visible()
    # Slots of the past queue behind each other.
    wait_until(lambda: len(runs_of(site, "hourly")) == 3 or None, "the three runs")


def test_the_list_of_schedules_shows_how_their_latest_runs_ended(page: Page, site: Site) -> None:
    for name, task, given in (
        ("good", "resize", {"picture": "p.png"}),
        ("bad", "charge", {"order": "S-1", "amount": 1.0}),
    ):
        target = {"kind": "task", "name": task}
        times = {"spec": [{"cron": "0 0 1 1 *"}], "zone": "UTC"}
        site.call("POST", "/schedules", {"id": name, "target": target, **times, "input": given})
        for _ in range(2):
            run_id = site.call("POST", f"/schedules/{name}/trigger", {})["run_id"]
            site.wait_for(run_id, "completed", "failed")
    page.goto(f"{site.ui}/schedules")
    for name, word in (("good", "completed"), ("bad", "failed")):
        row = page.locator(f'[data-row-id="default/{name}"]')
        expect(row.get_by_role("img", name=f"Latest firings, oldest first: {word}, {word}")).to_be_visible()
    page.goto(f"{site.ui}/schedules/bad")
    expect(page.get_by_role("img", name="Latest firings")).to_be_visible()
    expect(page.get_by_text("failed", exact=True)).to_have_count(2)


def test_a_failed_delivery_is_looked_at_and_replayed(page: Page, site: Site) -> None:
    with receiving() as receiver:
        page.goto(f"{site.ui}/webhooks")
        page.get_by_role("button", name="New endpoint").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("URL").fill(receiver.url)
        dialog.get_by_role("button", name="Create the endpoint").click()
        # The secret is shown once, and the dialog stays until it is stored.
        expect(page.get_by_role("dialog", name="The secret of the endpoint")).to_contain_text("whsec_")
        page.get_by_label("I have stored it").check()
        page.get_by_role("button", name="Done").click()
        endpoint = site.call("GET", "/webhooks/endpoints")["endpoints"][0]["id"]
        page.goto(f"{site.ui}/webhooks/{endpoint}")
        page.get_by_role("button", name="Send a test").click()
        confirm(page, "Send the test")
        row = page.get_by_role("grid", name="Deliveries").locator("[data-row-id]").first
        expect(row).to_contain_text("failed")
        expect(row).to_contain_text("500")
        row.get_by_role("link").click()
        delivery = page.get_by_role("dialog")
        delivery.get_by_text("Request and response").click()
        expect(delivery).to_contain_text("<b>answer</b>")
        receiver.status = 200
        delivery.get_by_role("button", name="Replay").click()
        page.get_by_role("button", name="Send it again").click()
        wait_until(lambda: len(receiver.received) >= 2 or None, "the replay")
        page.goto(f"{site.ui}/webhooks/{endpoint}?status=delivered")
        expect(page.get_by_role("grid", name="Deliveries").locator("[data-row-id]")).to_have_count(1)


def test_an_endpoint_shows_the_share_of_its_messages_that_were_delivered(page: Page, site: Site) -> None:
    with receiving() as receiver:
        created = site.call("POST", "/webhooks/endpoints", {"url": receiver.url, "types": ["run.completed"]})
        endpoint = created["endpoint"]["id"]
        page.goto(f"{site.ui}/webhooks")
        row = page.locator(f'[data-row-id="{endpoint}"]')
        expect(row).to_be_visible()
        expect(row.get_by_role("meter")).to_have_count(0)
        # The receiver refuses the first message for good, and takes the others.
        receiver.status = 410
        send_message(site)
        wait_until(lambda: recent_of(site, endpoint) == (0, 1) or None, "the refused message")
        receiver.status = 200
        site.call("POST", f"/webhooks/endpoints/{endpoint}/enable", {"held": "discard"})
        for _ in range(3):
            send_message(site)
        wait_until(lambda: recent_of(site, endpoint) == (3, 1) or None, "the delivered messages")
        expect(row).to_contain_text("75%")
        expect(row.get_by_role("meter", name="Share of the latest messages")).to_have_attribute("aria-valuenow", "3")
        page.goto(f"{site.ui}/webhooks/{endpoint}")
        expect(page.get_by_text("75%")).to_be_visible()


def send_message(site: Site) -> None:
    site.wait_for(site.run_task("resize", input={"picture": "message.png"}), "completed")


def recent_of(site: Site, endpoint: str) -> tuple[int, int]:
    recent = site.call("GET", f"/webhooks/endpoints/{endpoint}")["recent"]
    return recent["delivered"], recent["failed"]
