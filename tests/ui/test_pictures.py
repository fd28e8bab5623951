"""Pictures of every screen in both themes. With TEST_PICTURES=1 they replace those of the documentation.

They are compared by size and content only: fonts differ between machines.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.ui.conftest import OpenContext, PageProblems
from tests.ui.site import Site
from tests.ui.test_accessibility import SCREENS, open_screen

DOCS = Path(__file__).resolve().parents[2] / "docs" / "pictures"
# The documentation shows these; the others are only checked.
SHOWN = {
    "overview": "light",
    "runs": "light",
    "run-timeline": "light",
    "run-graph": "dark",
    "run-conversation": "light",
    "inbox": "light",
    "dead-letters": "light",
}
LEAST_BYTES = 8_000


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_screen_has_a_picture(
    open_context: OpenContext,
    problems: PageProblems,
    site: Site,
    runs: dict[str, str],
    theme: str,
    tmp_path: Path,
) -> None:
    page = open_context(color_scheme=theme, viewport={"width": 1280, "height": 800}).new_page()
    problems.watch(page, site.url)
    for name in SCREENS:
        open_screen(page, site, runs, name)
        picture = tmp_path / f"{name}.png"
        page.screenshot(path=picture)
        assert picture.stat().st_size > LEAST_BYTES, name
        # Nothing is wider than the page.
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        if os.environ.get("TEST_PICTURES") == "1" and SHOWN.get(name) == theme:
            DOCS.mkdir(exist_ok=True)
            picture.replace(DOCS / f"{name}.png")


def test_every_screen_fits_a_narrow_page(
    open_context: OpenContext, problems: PageProblems, site: Site, runs: dict[str, str]
) -> None:
    page = open_context(viewport={"width": 360, "height": 740}).new_page()
    problems.watch(page, site.url)
    for name in SCREENS:
        open_screen(page, site, runs, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
