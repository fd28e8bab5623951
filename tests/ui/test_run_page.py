"""A run in the browser: what happened, why it waits, and every change of it."""

from __future__ import annotations

import json
import re

from playwright.sync_api import Locator, Page, expect

from tests.ui.conftest import PageProblems
from tests.ui.site import Site


def open_run(page: Page, site: Site, run_id: str, query: str = "") -> None:
    page.goto(f"{site.ui}/runs/{run_id}{query}")
    expect(page.get_by_role("navigation", name="Views of the run")).to_be_visible()


def row(page: Page, path: str) -> Locator:
    return page.locator(f'[data-span="{path}"]')


def test_the_timeline_shows_branches_rounds_and_inner_orchestrations(
    page: Page, site: Site, runs: dict[str, str]
) -> None:
    open_run(page, site, runs["published"])
    for path in (
        "plan",
        "collect/0/facts",
        "collect/1/figures",
        "checks/3/check",
        "sources/>look",
        "approval",
        "publish",
    ):
        expect(row(page, path)).to_have_attribute("data-outcome", "done")
    row(page, "collect/0/facts").click()
    inspector = page.get_by_role("complementary", name="Inspector")
    expect(inspector).to_contain_text("Dark since 1986")
    expect(page).to_have_url(re.compile("step=collect/0/facts"))
    page.keyboard.press("Escape")


def test_the_timeline_is_used_by_keyboard(page: Page, site: Site, runs: dict[str, str]) -> None:
    open_run(page, site, runs["broken"])
    expect(row(page, "divide")).to_have_attribute("data-outcome", "failed")
    page.get_by_role("treegrid").focus()
    page.keyboard.press("f")
    expect(row(page, "divide")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("complementary", name="Inspector")).to_contain_text("ZeroDivisionError")
    page.keyboard.press("ArrowUp")
    expect(row(page, "prepare")).to_have_attribute("aria-selected", "true")


def test_the_wheel_with_ctrl_zooms_the_timeline_and_not_the_page(
    page: Page, site: Site, runs: dict[str, str], problems: PageProblems
) -> None:
    open_run(page, site, runs["published"])
    expect(page.get_by_role("button", name="Show all")).to_be_disabled()
    page.get_by_role("treegrid", name="Steps of the run").hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    page.get_by_role("button", name="Show all").click()
    expect(page.get_by_role("button", name="Show all")).to_be_disabled()
    # The browser reports a listener that cannot keep the page from being zoomed.
    assert problems.found == []


def test_everything_about_a_run_is_downloaded(page: Page, site: Site, runs: dict[str, str]) -> None:
    # More events than one page has.
    run_id = site.run_task("talk", input={"lines": 1100})
    site.wait_for(run_id, "completed")
    open_run(page, site, run_id)
    page.get_by_role("button", name="More actions").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Download everything").click()
    found = json.loads(download.value.path().read_text())
    assert [event["seq"] for event in found["events"]] == list(range(1, site.get_run(run_id)["last_seq"] + 1))
    assert [attempt["attempt"] for attempt in found["attempts"]] == [1]


def test_the_head_says_why_a_run_failed_and_why_a_run_waits(page: Page, site: Site, runs: dict[str, str]) -> None:
    open_run(page, site, runs["failed"])
    expect(page.get_by_role("alert")).to_contain_text("The card of order A-17 was declined.")
    open_run(page, site, runs["blocked"])
    expect(page.locator("[data-why]")).to_contain_text("which holds its ordering key")
    open_run(page, site, runs["report"])
    expect(page.locator("[data-why]")).to_contain_text("Publish the report about the old lighthouse?")


def test_a_task_opens_with_the_view_that_explains_it(page: Page, site: Site, runs: dict[str, str]) -> None:
    page.goto(f"{site.ui}/runs")
    page.locator(f'[data-row-id="{runs["failed"]}"]').get_by_role("link").first.click()
    views = page.get_by_role("navigation", name="Views of the run")
    expect(views.locator("[aria-current=page]")).to_have_text(re.compile("^Attempts"))
    expect(page.get_by_role("region", name="Attempts")).to_contain_text("The card of order A-17 was declined.")
    # A view that was chosen is in the address.
    views.get_by_role("link", name="Timeline").click()
    expect(page.get_by_text("A task has no steps")).to_be_visible()
    page.reload()
    expect(page.get_by_text("A task has no steps")).to_be_visible()
    page.goto(f"{site.ui}/runs/{runs['completed']}")
    expect(page.get_by_role("region", name="Input and result")).to_contain_text("harbour.png")


def test_a_person_answers_and_the_page_follows_without_a_reload(page: Page, site: Site) -> None:
    run_id = site.orchestrate("report", "the answered one")
    open_run(page, site, run_id)
    page.locator("[data-why]").get_by_role("button", name="Answer").click()
    dialog = page.get_by_role("dialog", name="Answer: approval")
    expect(dialog).to_contain_text("The run continues with this answer.")
    expect(dialog.get_by_role("button", name="Send the answer")).to_be_disabled()
    dialog.get_by_label("decision").select_option("publish")
    dialog.get_by_label("Notes").fill("Front page.")
    dialog.get_by_role("button", name="Send the answer").click()
    expect(row(page, "publish")).to_have_attribute("data-outcome", "done")
    expect(page.locator("header", has_text="completed").first).to_be_visible()
    assert site.get_run(run_id)["state"]["approval"] == {"decision": "publish", "notes": "Front page."}


def test_the_graph_shows_the_state_of_each_step(page: Page, site: Site, runs: dict[str, str]) -> None:
    open_run(page, site, runs["report"], "?tab=graph")

    def node(step: str) -> Locator:
        return page.locator(f'[data-step="{step}"]')

    expect(node("approval")).to_have_attribute("data-outcome", "waiting")
    expect(node("check")).to_contain_text("3\u00d7")
    expect(node("publish")).to_have_attribute("data-outcome", "pending")
    node("sources").get_by_role("link", name="open").click()
    expect(node("sources/>look")).to_have_attribute("data-outcome", "done")
    page.go_back()
    expect(node("sources/>look")).to_have_count(0)
    expect(node("approval")).to_be_visible()


def test_the_conversation_has_thoughts_tool_calls_and_cost(page: Page, site: Site, runs: dict[str, str]) -> None:
    open_run(page, site, runs["agent"], "?tab=conversation")
    talk = page.get_by_role("list", name="Conversation of answer")
    expect(talk).to_contain_text("Please confirm my order.")
    expect(talk).to_contain_text("I will send a confirmation.")
    expect(talk).to_contain_text("$0.0042")
    talk.get_by_text("Thoughts").click()
    expect(talk).to_contain_text("The customer needs a confirmation by mail.")
    expect(talk).to_contain_text("May send_mail be called with these arguments?")


def test_an_approval_is_given_in_place(page: Page, site: Site) -> None:
    run_id = site.run_agent("helper", "Confirm it.")
    site.wait_for(run_id, "paused")
    open_run(page, site, run_id, "?tab=conversation")
    page.get_by_role("list", name="Conversation of answer").get_by_role("button", name="Answer").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Decision").select_option("approve")
    dialog.get_by_role("button", name="Send the answer").click()
    talk = page.get_by_role("list", name="Conversation of answer")
    expect(talk).to_contain_text("The confirmation was **sent** to ann@example.com.")
    expect(talk).to_contain_text("Answered by local.")


def test_the_state_shows_what_a_step_changed(page: Page, site: Site, runs: dict[str, str]) -> None:
    open_run(page, site, runs["published"], "?tab=state&step=collect/0/facts")
    change = page.get_by_role("group", name="Change of facts")
    expect(change).to_contain_text("Dark since 1986; lit again last night.")
    page.get_by_role("button", name="approval").click()
    expect(page.get_by_role("group", name="Change of approval")).to_contain_text('"decision": "publish"')


def test_events_are_filtered_and_opened(page: Page, site: Site, runs: dict[str, str]) -> None:
    open_run(page, site, runs["published"], "?tab=events")
    events = page.get_by_role("list", name="Events")
    expect(events.locator('[data-seq="1"]')).to_contain_text("queued")
    page.get_by_label("Type of event").select_option("model_response")
    expect(events.get_by_role("listitem")).to_have_count(2)
    events.get_by_role("listitem").first.get_by_role("button").first.click()
    expect(events).to_contain_text("cost_usd")


def test_a_fork_shows_what_is_not_executed_again(page: Page, site: Site, runs: dict[str, str]) -> None:
    open_run(page, site, runs["broken"], "?step=divide")
    page.get_by_role("button", name="Fork from here").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("1 recorded step is copied and not executed again")
    state = dialog.get_by_label("State at that step")
    expect(state).to_have_value(re.compile("Prepared a division"))
    state.fill('{"divisor": "abcd"}')
    expect(dialog).to_contain_text("Changed in the state: divisor.")
    dialog.get_by_role("button", name="Start the fork").click()
    expect(page).not_to_have_url(re.compile(runs["broken"]))
    expect(row(page, "divide")).to_have_attribute("data-outcome", "done")
    fork = page.url.rpartition("/")[2].partition("?")[0]
    site.wait_for(fork, "completed")
    assert site.get_run(fork)["forked_from"]["run_id"] == runs["broken"]


def test_changes_show_their_consequence_and_command_first(page: Page, site: Site) -> None:
    run_id = site.run_task("slow", input={}, hold=True)
    open_run(page, site, run_id)
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name="Change the priority").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Priority").fill("50")
    expect(dialog).to_contain_text("Its priority changes from 0 to 50.")
    dialog.get_by_text("As a command").click()
    expect(dialog).to_contain_text(f"runlane runs priority {run_id} 50")
    expect(dialog).to_contain_text("$RUNLANE_API_KEY")
    dialog.get_by_role("button", name="Change the priority").click()
    expect(dialog).to_be_hidden()
    assert site.get_run(run_id)["priority"] == 50

    page.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name="Change tags").click()
    page.get_by_role("dialog").get_by_label("Tags").fill("reviewed urgent")
    expect(page.get_by_role("dialog")).to_contain_text("Added: reviewed, urgent.")
    page.get_by_role("dialog").get_by_role("button", name="Change the tags").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert site.get_run(run_id)["tags"] == ["reviewed", "urgent"]

    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("dialog")).to_contain_text("queued in the lane media with priority 50")
    page.get_by_role("dialog").get_by_role("button", name="Approve the start").click()
    site.wait_for(run_id, "running")
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("Its code is interrupted")
    page.get_by_role("dialog").get_by_role("button", name="Cancel the run").click()
    site.wait_for(run_id, "cancelled")
    expect(page.locator("header").filter(has_text="cancelled").first).to_be_visible()


def test_a_failed_run_is_retried(page: Page, site: Site) -> None:
    run_id = site.run_task("charge", input={"order": "B-1", "amount": 1.0})
    site.wait_for(run_id, "failed")
    open_run(page, site, run_id, "?tab=attempts")
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("The run keeps its id")
    page.get_by_role("dialog").get_by_role("button", name="Retry the run").click()
    expect(page.get_by_role("heading", name="Attempt 2")).to_be_visible()
    second = page.get_by_role("listitem").filter(has_text="Attempt 2")
    expect(second).to_contain_text("The card of order B-1 was declined.")


def test_a_missing_run_says_how_long_runs_are_kept(page: Page, site: Site, problems: PageProblems) -> None:
    problems.expected.append("404")
    page.goto(f"{site.ui}/runs/run_{'0' * 32}")
    expect(page.get_by_text("This run does not exist")).to_be_visible()
    expect(page.get_by_text(re.compile(r"Ended runs are deleted after [\d.]+ days"))).to_be_visible()


def test_the_zoom_of_the_timeline_is_in_the_address(page: Page, site: Site, runs: dict[str, str]) -> None:
    open_run(page, site, runs["published"])
    bar = row(page, "plan").get_by_title("plan: done")
    before = bar.bounding_box()
    axis = page.get_by_title("Drag to zoom")
    box = axis.bounding_box()
    assert before is not None
    assert box is not None
    page.mouse.move(box["x"] + 2, box["y"] + 8)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 8)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"zoom=\d+\.\.\d+"))
    zoomed = bar.bounding_box()
    assert zoomed is not None
    assert zoomed["width"] > before["width"] * 2
    # A colleague who opens the link sees the same part.
    page.reload()
    expect(page.get_by_role("button", name="Show all")).to_be_enabled()
    again = bar.bounding_box()
    assert again is not None
    assert abs(again["width"] - zoomed["width"]) < zoomed["width"] / 10
    page.get_by_role("button", name="Show all").click()
    expect(page).not_to_have_url(re.compile("zoom="))
    page.goto(f"{site.ui}/runs/{runs['published']}?zoom=nonsense")
    expect(page.get_by_role("button", name="Show all")).to_be_disabled()


def test_a_fork_changes_no_number_that_the_browser_cannot_hold(page: Page, site: Site) -> None:
    number = 12345678901234567
    body = {"message": "a division", "input": {"number": number}}
    run_id = site.call("POST", "/orchestrations/broken/run", body)["run_id"]
    site.wait_for(run_id, "failed")
    open_run(page, site, run_id, "?step=divide")
    page.get_by_role("button", name="Fork from here").click()
    dialog = page.get_by_role("dialog")
    state = dialog.get_by_label("State at that step")
    expect(state).to_have_value(re.compile(str(number)))
    expect(dialog).to_contain_text("The state is not changed.")
    state.fill(state.input_value().replace("{", '{"added": 1,', 1))
    expect(dialog).to_contain_text("Changed in the state: added.")
