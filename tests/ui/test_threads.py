"""Threads in the browser: their state, their runs, and an answer to what they ask."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.ui.site import Site, wait_until


def agent_server(site: Site, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{site.url}{path}", data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


@pytest.fixture(scope="module")
def thread(site: Site) -> str:
    """A thread in which an agent asks before it uses a tool."""
    thread_id = agent_server(site, "POST", "/threads", {})["thread_id"]
    message = {"role": "user", "content": "Please confirm my order."}
    agent_server(
        site, "POST", f"/threads/{thread_id}/runs", {"assistant_id": "helper", "input": {"messages": [message]}}
    )

    def asks() -> bool | None:
        return agent_server(site, "GET", f"/threads/{thread_id}")["status"] == "interrupted" or None

    wait_until(asks, "the question of the thread")
    return thread_id


def test_a_thread_is_answered_in_the_browser(page: Page, site: Site, thread: str) -> None:
    page.goto(f"{site.ui}/threads?status=interrupted")
    page.locator(f'[data-row-id="{thread}"]').get_by_role("link").first.click()
    expect(page.get_by_role("heading", name="Waits for an answer")).to_be_visible()
    page.get_by_role("button", name="Answer").click()
    page.get_by_role("dialog").get_by_role("textbox").fill('"approve"')
    page.get_by_role("button", name="Send the answer").click()
    expect(page.get_by_role("heading", name="Waits for an answer")).to_have_count(0)
    expect(page.get_by_text("sent")).not_to_have_count(0)
    page.get_by_role("navigation", name="Views of the thread").get_by_role("link", name="Runs").click()
    expect(page.get_by_role("list", name="Runs of the thread").get_by_role("link")).to_have_count(1)


def test_the_assistants_are_listed(page: Page, site: Site) -> None:
    page.goto(f"{site.ui}/threads?tab=assistants")
    expect(page.get_by_role("grid", name="Assistants")).to_contain_text("helper")
