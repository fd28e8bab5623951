"""Conversations in the browser: streaming, approvals in place, and a server that is away for a while."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page, Route, expect

from tests.server_process import serving
from tests.ui.conftest import OpenContext, PageProblems
from tests.ui.site import Site, open_site


def send(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def begin(page: Page, site: Site, text: str) -> None:
    page.goto(f"{site.ui}/chat")
    page.get_by_role("link", name="New", exact=True).click()
    send(page, text)
    expect(page).to_have_url(re.compile(r"/chat/sess_"))


def approve(page: Page) -> None:
    page.get_by_role("list", name="Messages").get_by_role("button", name="Answer").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Decision").select_option("approve")
    dialog.get_by_role("button", name="Send the answer").click()
    expect(dialog).to_be_hidden()


def test_a_turn_is_streamed_and_approved_in_place(page: Page, site: Site) -> None:
    begin(page, site, "Please confirm my order.")
    session = page.url.rsplit("/", 1)[1]
    messages = page.get_by_role("list", name="Messages")
    expect(messages).to_contain_text("Please confirm my order.")
    expect(messages).to_contain_text("I will send a confirmation.")
    approve(page)
    expect(messages).to_contain_text("The confirmation was **sent** to ann@example.com.")
    # The steps of an ended turn can be looked at again.
    page.get_by_role("button", name="Show the steps").click()
    expect(page.get_by_role("list", name="Steps of the turn")).to_contain_text("send_mail")
    expect(messages).to_contain_text("$0.0042")
    page.get_by_role("link", name="Run of turn 1").click()
    # The run leads back to its conversation.
    page.locator("dl").get_by_role("link", name=session[-8:], exact=True).click()
    expect(messages).to_contain_text("Please confirm my order.")


def test_a_message_of_another_client_appears(page: Page, site: Site) -> None:
    begin(page, site, "Please confirm my order.")
    session = page.url.rsplit("/", 1)[1]
    approve(page)
    expect(page.get_by_role("list", name="Messages")).to_contain_text("**sent**")
    site.call("POST", "/chat", {"agent": "helper", "message": "From the terminal.", "session_id": session})
    expect(page.get_by_role("list", name="Messages")).to_contain_text("From the terminal.")


def test_a_turn_is_cancelled_and_the_conversation_deleted(page: Page, site: Site) -> None:
    begin(page, site, "Please confirm my order.")
    session = page.url.rsplit("/", 1)[1]
    page.get_by_role("button", name="Cancel the turn").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("1 turn that has not ended is cancelled")
    dialog.get_by_role("button", name="Cancel the turn").click()
    expect(page.locator("[data-turn='1']")).to_contain_text("cancelled")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_label("Type delete to confirm").fill("delete")

    def answer_late(route: Route) -> None:
        """Let the page learn of the deletion from the live stream before it has the response."""
        answer = route.fetch()
        expect(page.locator(f'a[href$="/chat/{session}"]')).to_have_count(0)
        route.fulfill(response=answer)

    # A page that read the deleted conversation again would log the refusal, which fails the test.
    page.route(f"**/api/v2/chat/{session}", answer_late)
    page.get_by_role("button", name="Delete the conversation").click()
    expect(page).to_have_url(re.compile(r"/chat$"))
    assert all(entry["session_id"] != session for entry in site.call("GET", "/chat")["sessions"])


def test_a_conversation_continues_after_the_server_was_away(
    open_context: OpenContext, problems: PageProblems, tmp_path: Path
) -> None:
    with open_site(tmp_path) as site:
        page = open_context().new_page()
        # The browser logs each request that the absent server does not answer.
        problems.expected += ["ERR_CONNECTION", "ERR_INCOMPLETE_CHUNKED", "ERR_EMPTY"]
        problems.watch(page, site.url)
        begin(page, site, "Please confirm my order.")
        messages = page.get_by_role("list", name="Messages")
        expect(messages).to_contain_text("I will send a confirmation.")
        site.server.kill()
        expect(page.get_by_text(re.compile("[Nn]ot connected since")).first).to_be_visible()
        with serving(tmp_path, site.variables, "dev", "tasks:app", port=site.server.port) as again:
            approve(page)
            expect(messages).to_contain_text("**sent**")
            assert messages.get_by_text("I will send a confirmation.").count() == 1
            again.kill()
