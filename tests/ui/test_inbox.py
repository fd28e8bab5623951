"""The inbox: questions are worked through by keyboard, and exactly one answer of two browsers is taken."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

from playwright.sync_api import Locator, Page, expect

from tests.ui.conftest import OpenContext, PageProblems
from tests.ui.site import Site


def ask(site: Site, count: int = 1) -> list[str]:
    """Start runs of the agent that asks before it sends a mail, and return them once they ask."""
    started = [site.run_agent("helper", f"Please confirm my order {number}.") for number in range(count)]
    for run_id in started:
        site.wait_for(run_id, "paused")
    return started


def close_questions(site: Site) -> None:
    """Cancel every run that asks, so that the next test has an inbox of its own."""
    for question in site.call("GET", "/inbox?limit=100")["questions"]:
        site.call("POST", f"/runs/{question['run_id']}/cancel", {})
        site.wait_for(question["run_id"], "cancelled")


def open_questions(page: Page) -> Locator:
    return page.get_by_role("list", name="Open questions").get_by_role("listitem")


def test_questions_are_answered_by_keyboard_one_after_the_other(page: Page, site: Site) -> None:
    close_questions(site)
    first, second = ask(site, 2)
    page.goto(f"{site.ui}/inbox")
    expect(open_questions(page)).to_have_count(2)
    expect(page).to_have_url(re.compile(first))
    question = page.get_by_role("article", name="Question")
    expect(question).to_contain_text("ann@example.com")
    page.keyboard.press("a")
    expect(question).to_contain_text("send_mail is called with the arguments above")
    expect(page.get_by_role("button", name="Send the answer")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(second))
    assert site.wait_for(first, "completed")["result"] is not None
    expect(open_questions(page)).to_have_count(1)
    page.keyboard.press("d")
    page.keyboard.type("Not today.")
    page.keyboard.press("Enter")
    site.wait_for(second, "completed")
    expect(page.get_by_text("No question waits for you")).to_be_visible()


def test_edited_arguments_are_shown_as_a_difference_and_sent(page: Page, site: Site) -> None:
    close_questions(site)
    (run_id,) = ask(site)
    page.goto(f"{site.ui}/inbox")
    page.get_by_role("radio", name="edit").check()
    page.get_by_label("Arguments as JSON, to edit them").fill('{"to": "bob@example.com", "subject": "Your order"}')
    difference = page.get_by_role("group", name="Changes of the arguments")
    expect(difference).to_contain_text("bob@example.com")
    page.get_by_label("Note").fill("Bob asked for it.")
    page.get_by_role("button", name="Send the answer").click()
    site.wait_for(run_id, "completed")
    events = site.call("GET", f"/runs/{run_id}/events?limit=200")["events"]
    assert any(event.get("args", {}).get("to") == "bob@example.com" for event in events)


def test_one_of_two_browsers_wins_and_the_other_sees_who_answered(
    page: Page, open_context: OpenContext, site: Site, problems: PageProblems
) -> None:
    close_questions(site)
    (run_id,) = ask(site)
    problems.expected.append("409")
    other = open_context().new_page()
    problems.watch(other, site.url)
    for browser in (page, other):
        browser.goto(f"{site.ui}/inbox")
        expect(browser.get_by_role("article", name="Question")).to_contain_text("ann@example.com")
    # The second browser does not learn of the answer before it sends its own.
    other.get_by_role("button", name=re.compile("Live")).click()
    other.get_by_role("radio", name="deny").check()
    other.get_by_label("Reason, for the model").fill("I am late.")
    page.get_by_role("radio", name="approve").check()
    page.get_by_role("button", name="Send the answer").click()
    site.wait_for(run_id, "completed")
    other.get_by_role("button", name="Send the answer").click()
    loser = other.get_by_role("article", name="Question")
    expect(loser).to_contain_text("Answered by local")
    expect(loser).to_contain_text("approve")
    # What was typed is not lost.
    expect(other.get_by_label("Reason, for the model")).to_have_value("I am late.")
    expect(other.get_by_role("button", name="Copy what you typed")).to_be_visible()
    expect(other.get_by_role("button", name="Send the answer")).to_be_hidden()


def test_an_answer_elsewhere_appears_without_a_reload(page: Page, site: Site) -> None:
    close_questions(site)
    (run_id,) = ask(site)
    page.goto(f"{site.ui}/inbox")
    expect(open_questions(page)).to_have_count(1)
    path = site.call("GET", "/inbox")["questions"][0]["path"]
    site.call("POST", f"/runs/{run_id}/resume", {"response": {"decision": "approve"}, "step": path})
    expect(page.get_by_role("article", name="Question")).to_contain_text("Answered by local")
    expect(page.get_by_text("No question waits for you")).to_be_visible()


def test_alike_questions_get_one_answer_and_others_do_not(page: Page, site: Site) -> None:
    close_questions(site)
    alike = ask(site, 2)
    step = site.orchestrate("report", "the harbour")
    site.wait_for(step, "paused")
    page.goto(f"{site.ui}/inbox")
    expect(open_questions(page)).to_have_count(3)
    for run_id in (*alike, step):
        page.get_by_role("checkbox", name=f"Select the question of {run_id}").check()
    expect(page.get_by_role("button", name="Answer them")).to_be_disabled()
    page.get_by_role("checkbox", name=f"Select the question of {step}").uncheck()
    page.get_by_role("button", name="Answer them").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("list", name="Questions that get this answer").get_by_role("listitem")).to_have_count(2)
    expect(dialog.get_by_role("radio", name="edit")).to_be_hidden()
    dialog.get_by_role("radio", name="approve").check()
    dialog.get_by_role("button", name="Answer 2 questions").click()
    for run_id in alike:
        site.wait_for(run_id, "completed")
    expect(open_questions(page)).to_have_count(1)


def test_questions_are_narrowed_down_to_those_that_have_been_open_for_long(page: Page, site: Site) -> None:
    close_questions(site)
    old, _ = ask(site, 2)
    with closing(sqlite3.connect(site.folder / "runlane.db", timeout=30)) as database:
        database.execute("update run_waits set opened_at = opened_at - 7200000000 where run_id = ?", (old,))
        database.commit()
    page.goto(f"{site.ui}/inbox")
    expect(open_questions(page)).to_have_count(2)
    page.get_by_text("More filters").click()
    page.get_by_role("combobox", name="Age").select_option("1h")
    expect(page).to_have_url(re.compile("age=1h"))
    expect(open_questions(page)).to_have_count(1)
    expect(open_questions(page)).to_contain_text(old[-8:])
    page.get_by_role("combobox", name="Age").select_option("24h")
    expect(page.get_by_text("No question matches")).to_be_visible()
    page.get_by_role("button", name="Clear the filters").click()
    expect(open_questions(page)).to_have_count(2)


def test_a_filter_keeps_its_place_in_the_url(page: Page, site: Site) -> None:
    close_questions(site)
    ask(site)
    step = site.orchestrate("report", "the lighthouse")
    site.wait_for(step, "paused")
    page.goto(f"{site.ui}/inbox")
    page.get_by_role("button", name=re.compile("Human step")).click()
    expect(open_questions(page)).to_have_count(1)
    expect(page).to_have_url(re.compile("about=step"))
    page.reload()
    expect(open_questions(page)).to_have_count(1)
    expect(page.get_by_role("article", name="Question")).to_be_visible()
