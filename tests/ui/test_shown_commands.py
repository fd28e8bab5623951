"""The commands that dialogs show in place of their button: the command line accepts each of them."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Generator

import pytest
from playwright.sync_api import Page, expect

from tests.cli_commands import leaf_commands
from tests.ui.site import Site, open_site, populate

COMMANDS = dict(leaf_commands())
# The page of each dialog, with the name of a run in braces; the button that opens it; and, of a menu, the entry.
DIALOGS = [
    ("/runs/{running}", "Cancel", None),
    ("/runs/{failed}", "Retry", None),
    ("/runs/{held}", "Approve", None),
    ("/runs/{held}", "More actions", "Change the priority"),
    ("/runs/{held}", "More actions", "Change tags"),
    ("/runs/{held}", "More actions", "Move to a lane"),
    ("/runs/{broken}", "More actions", "Fork from a step"),
    ("/runs/{broken}", "More actions", "Retry on the current versions"),
    ("/runs/{report}", "More actions", "Send an event"),
    ("/runs/{report}", "Answer", None),
    ("/lanes", "New lane", None),
    ("/lanes/media", "Pause", None),
    ("/lanes/media", "Hold", None),
    ("/lanes/media", "Settings", None),
    ("/lanes/media", "Assign", None),
    ("/lanes/billing", "Delete", None),
    ("/workers", "Drain all", None),
    ("/dead-letters", "Replay", None),
    ("/dead-letters", "Acknowledge", None),
    ("/dead-letters/{failed}", "Assign", None),
    ("/dead-letters/{failed}", "Discard", None),
    ("/schedules/nightly", "Run now", None),
    ("/schedules/nightly", "Pause", None),
    ("/schedules/nightly", "Backfill", None),
    ("/schedules/nightly", "Delete", None),
    ("/webhooks", "New endpoint", None),
    ("/webhooks", "Replay failed ones", None),
    ("/memories", "New memory", None),
    ("/usage?tab=limits", "Change", None),
    ("/access", "New key", None),
    ("/access?tab=roles", "New role", None),
    ("/access?tab=tenants", "New tenant", None),
    ("/access?tab=tenants", "Change default", None),
    ("/secrets", "Set a secret", None),
    ("/secrets", "Rotate", None),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with open_site(folder, RUNLANE_SECRET_KEY=secrets.token_hex(32)) as opened:
        target = {"kind": "task", "name": "resize"}
        times = {"spec": [{"cron": "0 7 * * *"}], "zone": "UTC"}
        opened.call("POST", "/schedules", {"id": "nightly", "target": target, **times, "input": {"picture": "p.png"}})
        yield opened
        opened.server.kill()


@pytest.fixture(scope="module")
def runs(site: Site) -> dict[str, str]:
    return populate(site)


def check(line: str, where: str) -> None:
    """Let the command line parse a command, without executing it."""
    program, *words = shlex.split(line)
    assert program == "runlane", where
    path = next((tuple(words[:count]) for count in (3, 2, 1) if tuple(words[:count]) in COMMANDS), None)
    assert path is not None, f"{where}: no command in {line!r}"
    COMMANDS[path].make_context(path[-1], words[len(path) :])


def test_every_dialog_shows_a_command_that_exists(page: Page, site: Site, runs: dict[str, str]) -> None:
    for path, button, entry in DIALOGS:
        where = f"{path} {button} {entry or ''}"
        page.goto(site.ui + path.format(**runs))
        page.get_by_role("main").get_by_role("button", name=button, exact=True).first.click()
        if entry is not None:
            page.get_by_role("menuitem", name=entry).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_text("As a command").click()
        commands = dialog.locator("details code")
        expect(commands.last).to_contain_text("curl")
        lines = [line for line in commands.all_inner_texts() if line.startswith("runlane ")]
        assert lines, where
        for line in lines:
            check(line, where)
