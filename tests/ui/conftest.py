"""Fixtures for browser tests: a real Chromium, a real server with a worker, and a page that reports every problem."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request, expect, sync_playwright

from tests import forking
from tests.ui.browser import ARGUMENTS, find_chromium, with_environment
from tests.ui.site import Site, open_site, populate

WAIT_MS = 30_000
DESKTOP = {"width": 1440, "height": 900}
expect.set_options(timeout=WAIT_MS)


@dataclass
class PageProblems:
    """What went wrong in a page: errors, refused content, and requests that left the origin."""

    found: list[str] = field(default_factory=list[str])
    # Parts of messages that the test provokes.
    expected: list[str] = field(default_factory=list[str])

    def watch(self, page: Page, origin: str) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._add(f"error: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", lambda request: self._request(request, origin))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self._add(f"console: {message.text}")

    def _dialog(self, dialog: Dialog) -> None:
        self._add(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request, origin: str) -> None:
        if not request.url.startswith((origin, "data:", "blob:")):
            self._add(f"request to another origin: {request.url}")

    def _add(self, text: str) -> None:
        if not any(part in text for part in self.expected):
            self.found.append(text)


@pytest.fixture(scope="session", autouse=True)
def forked_servers() -> None:
    """Start the process that forks servers before any browser runs."""
    forking.prepare()


# The browser belongs to a module, because its event loop must not outlive the last test that uses it: other modules of
# the same process have their own.
@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    chromium = find_chromium()
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=chromium.path, args=ARGUMENTS, env=with_environment(chromium)
        )
        yield found
        found.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    """A server that is open on this machine, with a worker."""
    with open_site(tmp_path_factory.mktemp("site")) as opened:
        yield opened
        # Runs that wait for minutes would delay an orderly end.
        opened.server.kill()


@pytest.fixture(scope="module")
def runs(site: Site) -> dict[str, str]:
    """One run in each state that a reader looks at, by name."""
    return populate(site)


@pytest.fixture
def problems() -> Generator[PageProblems]:
    """Fail the test if a page has logged an error, shown a dialog or left its origin."""
    found = PageProblems()
    yield found
    assert found.found == []


OpenContext = Callable[..., BrowserContext]


@pytest.fixture
def open_context(browser: Browser) -> Generator[OpenContext]:
    """Open browser contexts: each has its own cookies, storage and tabs."""
    opened: list[BrowserContext] = []

    def make(**options: Any) -> BrowserContext:
        chosen: dict[str, Any] = {"viewport": DESKTOP, "color_scheme": "light", **options}
        context = browser.new_context(**chosen)
        context.set_default_timeout(WAIT_MS)
        opened.append(context)
        return context

    yield make
    for context in opened:
        context.close()


@pytest.fixture
def page(open_context: OpenContext, site: Site, problems: PageProblems) -> Page:
    """A page of the open site."""
    found = open_context().new_page()
    problems.watch(found, site.url)
    return found


@pytest.fixture
def phone(open_context: OpenContext, site: Site, problems: PageProblems) -> Page:
    """A page on a narrow screen."""
    found = open_context(viewport={"width": 360, "height": 740}).new_page()
    problems.watch(found, site.url)
    return found
