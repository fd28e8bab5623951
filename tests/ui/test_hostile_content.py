"""Content of models, tools and tenants is hostile: nothing executes, nothing leaves the origin, nothing deceives."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.ui.conftest import PageProblems
from tests.ui.site import Site

HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<svg onload='window.hacked = 1'></svg>",
    "[click](javascript:window.hacked=1)",
    "![pixel](https://evil.example/pixel.png)",
    "[data](data:text/html,<script>window.hacked=1</script>)",
    "{{constructor.constructor('window.hacked=1')()}} ${window.hacked=1}",
    "user\u202egnp.exe \u200bhidden \u0007bell \u001b[31mred",
    "x" * 20_000,
]
TEXT = "\n\n".join(HOSTILE)
SCRIPTED = {
    "id": "hostile",
    "name": "<img src=x onerror=window.hacked=1>",
    "system_prompt": "Be hostile.",
    "tools": ["send_mail"],
    "answers": [
        {"thinking": TEXT, "say": TEXT, "tool": "send_mail", "arguments": {"to": HOSTILE[0], "subject": HOSTILE[1]}}
    ],
}


def check_nothing_happened(page: Page) -> None:
    assert page.evaluate("window.hacked") is None
    assert page.locator("script:not([src])").count() == 0
    assert page.locator('a[href^="javascript:"], a[href^="data:"]').count() == 0
    assert page.locator('img:not([src*="icon"])').count() == 0


def test_a_hostile_model_does_nothing_in_the_browser(page: Page, site: Site) -> None:
    site.call("POST", "/sync", {"agents": [SCRIPTED], "source": "hostile"})
    run_id = site.run_agent("hostile", TEXT)
    site.wait_for(run_id, "paused")
    page.goto(f"{site.ui}/runs/{run_id}?tab=conversation")
    talk = page.get_by_role("list", name="Conversation of answer")
    expect(talk).to_contain_text("<script>window.hacked = 1</script>")
    expect(talk).to_contain_text("user\\u202egnp.exe")
    check_nothing_happened(page)
    # As Markdown: HTML is dropped, images are links, links show their host.
    page.get_by_role("button", name="Markdown", exact=True).first.click(force=True)
    expect(talk).to_contain_text("image: pixel (evil.example)")
    check_nothing_happened(page)
    for tab in ("timeline", "events", "io", "logs", "state"):
        page.goto(f"{site.ui}/runs/{run_id}?tab={tab}&step=answer")
        expect(page.get_by_role("navigation", name="Views of the run")).to_be_visible()
        check_nothing_happened(page)
    page.goto(f"{site.ui}/runs/{run_id}")
    page.locator("[data-why]").get_by_role("button", name="Answer").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    check_nothing_happened(page)


def test_hostile_input_and_keys_stay_text(page: Page, site: Site) -> None:
    # A tag with such characters is refused; an ordering key may be any text.
    key = "<b onmouseover=window.hacked=1>"
    run_id = site.run_task("resize", input={"picture": HOSTILE[1]}, ordering_key=key)
    site.wait_for(run_id, "completed")
    page.goto(f"{site.ui}/runs")
    expect(page.locator(f'[data-row-id="{run_id}"]')).to_be_visible()
    page.goto(f"{site.ui}/runs/{run_id}?tab=io")
    expect(page.get_by_role("tree", name="the input")).to_contain_text("onerror")
    check_nothing_happened(page)


def test_a_megabyte_without_spaces_is_cut_and_fits_the_page(page: Page, site: Site) -> None:
    word = "x" * 1_000_000
    run_id = site.run_task("resize", input={"picture": word})
    site.wait_for(run_id, "completed")
    page.goto(f"{site.ui}/runs/{run_id}?tab=io")
    shown = page.get_by_role("tree", name="the input")
    expect(shown).to_contain_text("xxxxxxxxxx")
    assert len(shown.inner_text()) < 100_000
    for tab in ("io", "events", "logs"):
        page.goto(f"{site.ui}/runs/{run_id}?tab={tab}")
        expect(page.get_by_role("navigation", name="Views of the run")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), tab
    page.goto(f"{site.ui}/runs")
    expect(page.locator(f'[data-row-id="{run_id}"]')).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_numbers_keep_every_digit(page: Page, site: Site) -> None:
    run_id = site.run_task("resize", input={"picture": "x", "width": 12345678901234567})
    site.wait_for(run_id, "completed")
    page.goto(f"{site.ui}/runs/{run_id}?tab=io")
    expect(page.get_by_role("tree", name="the result")).to_contain_text("width: 12345678901234567")


def test_the_page_refuses_inline_scripts(page: Page, site: Site, problems: PageProblems) -> None:
    problems.expected += ["Content Security Policy", "TrustedScript", "TrustedHTML"]
    page.goto(f"{site.ui}/")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    refused = page.evaluate(
        """() => {
          const made = document.createElement('script')
          const attempts = [
            () => { made.textContent = 'window.hacked = 1' },
            () => { document.body.innerHTML = '<img src=x onerror="window.hacked = 1">' },
            () => new Worker('https://example.com/worker.js'),
          ]
          const outcomes = attempts.map((attempt) => {
            try { attempt(); return 'done' } catch (error) { return error.name }
          })
          made.append('window.hacked = 1')
          document.body.append(made)
          return outcomes
        }"""
    )
    # Trusted Types refuse the strings; what reaches the document all the same is not executed.
    assert refused == ["TypeError"] * 3
    assert page.evaluate("window.hacked") is None
