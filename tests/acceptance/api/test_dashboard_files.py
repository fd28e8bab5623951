"""The dashboard is served from the package, with headers that keep hostile content harmless."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx2
import pytest

from runlane.api.dashboard.assets import load_dashboard
from runlane.api.describe import describe
from runlane.app import App
from runlane.settings import Settings
from tests.acceptance.api.serving import Api, copy_of, serving
from tests.acceptance.api.shop import app as shop
from tests.acceptance.api.test_runs import problem_of

SCRIPT = b"console.log('runlane');" * 50
PAGE = (
    '<!doctype html><html lang="en"><head><base href="/wrong/"><meta property="csp-nonce" nonce="__CSP_NONCE__">'
    '<script type="module" src="./assets/entry-1a2b3c.js"></script></head><body></body></html>'
)
HTML = {"Accept": "text/html,*/*"}


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """Return a folder as the build of the dashboard writes it."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text(PAGE)
    (tmp_path / "favicon.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    entry = tmp_path / "assets" / "entry-1a2b3c.js"
    entry.write_bytes(SCRIPT)
    entry.with_suffix(".js.gz").write_bytes(gzip.compress(SCRIPT))
    entry.with_suffix(".js.br").write_bytes(b"brotli")
    return tmp_path


# The files do not depend on the database.
@pytest.fixture
async def served(sqlite_settings: Settings, built: Path) -> AsyncGenerator[Api]:
    async with serving(copy_of(shop, sqlite_settings)) as api:
        api.application.state.dashboard = load_dashboard(built)
        yield api


@pytest.fixture
def sqlite_settings(sqlite_url: str) -> Settings:
    from tests.harness import settings_for

    return settings_for(sqlite_url)


def policy_of(answer: httpx2.Response) -> dict[str, str]:
    parts = (part.strip().partition(" ") for part in answer.headers["content-security-policy"].split(";"))
    return {name: value for name, _, value in parts}


async def test_every_address_of_the_page_is_the_page(served: Api) -> None:
    for path in ("/ui/", "/ui/runs", "/ui/runs/run_0192/timeline"):
        answer = await served.client.get(path, headers={"Authorization": ""})
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert answer.headers["cache-control"] == "no-store"
        assert '<base href="/ui/">' in answer.text
        assert "/wrong/" not in answer.text
        assert answer.headers["etag"]
    head = await served.client.head("/ui/runs")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 0


async def test_the_policy_allows_nothing_but_this_server(served: Api) -> None:
    first, second = [await served.client.get("/ui/") for _ in range(2)]
    policy = policy_of(first)
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert (policy["frame-ancestors"], policy["base-uri"], policy["form-action"]) == ("'none'", "'self'", "'self'")
    assert (policy["require-trusted-types-for"], policy["trusted-types"]) == ("'script'", "default")
    assert "unsafe" not in first.headers["content-security-policy"]
    nonce = re.search(r"'nonce-([^']+)'", policy["style-src"])
    assert nonce is not None
    assert f'nonce="{nonce.group(1)}"' in first.text
    assert nonce.group(1) not in second.text, "a nonce is used once"
    for answer in (first, await served.client.get("/ui/assets/entry-1a2b3c.js")):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "camera=()" in answer.headers["permissions-policy"]


async def test_files_are_compressed_and_cached_forever(served: Api) -> None:
    path = "/ui/assets/entry-1a2b3c.js"
    for accepted, encoding in (("gzip", "gzip"), ("identity", None), ("br;q=0, gzip;q=0", None)):
        answer = await served.client.get(path, headers={"Accept-Encoding": accepted})
        assert answer.headers.get("content-encoding") == encoding
        assert answer.content == SCRIPT
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["vary"] == "Accept-Encoding"
        assert answer.headers["content-type"].startswith("text/javascript")
    async with served.client.stream("GET", path, headers={"Accept-Encoding": "gzip, br"}) as best:
        assert best.headers["content-encoding"] == "br"
        assert b"".join([piece async for piece in best.aiter_raw()]) == b"brotli"
    etag = answer.headers["etag"]
    for copy in (etag, f"W/{etag}"):
        assert (await served.client.get(path, headers={"If-None-Match": copy})).status_code == 304
    icon = await served.client.get("/ui/favicon.svg")
    assert (icon.headers["content-type"], icon.headers["cache-control"]) == ("image/svg+xml", "no-cache")


@pytest.mark.parametrize(
    "path", ["/ui/assets/entry-old.js", "/ui/assets/../index.html", "/ui/..%2f..%2fsettings.py", "/ui/index.html.gz"]
)
async def test_an_unknown_file_is_not_found(served: Api, path: str) -> None:
    answer = await served.client.get(path)
    problem_of(answer, 404, "not_found")


async def test_browsers_are_sent_to_the_dashboard(served: Api) -> None:
    for path in ("/", "/ui"):
        answer = await served.client.get(path, headers=HTML)
        assert (answer.status_code, answer.headers["location"]) == (307, "/ui/")
    problem_of(await served.client.get("/", headers={"Accept": "*/*"}), 404, "not_found")


@pytest.mark.parametrize("stripped", [True, False])
async def test_a_prefix_of_the_dashboard(sqlite_settings: Settings, built: Path, stripped: bool) -> None:
    settings = sqlite_settings.model_copy(update={"ui_base_path": "/tools/runlane"})
    async with serving(copy_of(shop, settings)) as api:
        api.application.state.dashboard = load_dashboard(built)
        seen = "" if stripped else "/tools/runlane"
        answer = await api.client.get(f"{seen}/ui/runs")
        assert '<base href="/tools/runlane/ui/">' in answer.text
        assert (await api.client.get(f"{seen}/ui/assets/entry-1a2b3c.js")).content == SCRIPT
        assert (await api.client.get(f"{seen}/ui", headers=HTML)).headers["location"] == "/tools/runlane/ui/"
        assert (await api.client.get(f"{seen}/api/v2/info")).json()["base_path"] == "/tools/runlane"
        problem_of(await api.client.get("/tools/runlanes/ui/"), 404, "not_found")


async def test_a_prefix_counts_if_a_trusted_proxy_reports_it(sqlite_settings: Settings, built: Path) -> None:
    forwarded = {"X-Forwarded-Prefix": "/runlane/"}
    for trusted, base in (("127.0.0.0/8", "/runlane/ui/"), ("10.0.0.0/8", "/ui/"), (None, "/ui/")):
        settings = sqlite_settings.model_copy(update={"trusted_proxies": trusted})
        async with serving(copy_of(shop, settings)) as api:
            api.application.state.dashboard = load_dashboard(built)
            assert f'<base href="{base}">' in (await api.client.get("/ui/", headers=forwarded)).text
            for hostile in ('/"><script>', "//evil.example", "https://evil.example"):
                page = (await api.client.get("/ui/", headers={"X-Forwarded-Prefix": hostile})).text
                assert '<base href="/ui/">' in page


async def test_a_package_without_the_dashboard_says_how_to_build_it(sqlite_settings: Settings) -> None:
    async with serving(copy_of(shop, sqlite_settings)) as api:
        api.application.state.dashboard = None
        answer = await api.client.get("/ui/runs")
        assert answer.status_code == 503
        assert "make ui" in answer.text
        assert policy_of(answer)["default-src"] == "'none'"
        assert (await api.get("/runs")).status_code == 200


async def test_the_dashboard_can_be_switched_off(sqlite_settings: Settings) -> None:
    app: App = copy_of(shop, sqlite_settings.model_copy(update={"ui": False}))
    async with serving(app) as api:
        for path in ("/ui", "/ui/", "/ui/runs", "/"):
            problem_of(await api.client.get(path, headers=HTML), 404, "not_found")
        assert (await api.get("/runs")).status_code == 200


async def test_answers_to_a_session_are_not_cached(served: Api) -> None:
    answer = await served.get("/runs", headers={"Cookie": "runlane_session=x"})
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "cache-control" not in (await served.get("/runs")).headers


def test_the_description_of_the_api_depends_on_the_version_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNLANE_UI", "false")
    monkeypatch.setenv("RUNLANE_DATABASE_URL", "postgresql://secret@example.invalid/x")
    text = describe()
    described = json.loads(text)
    assert text == json.dumps(described, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    assert {"/api/v2/live", "/api/v2/ui/session", "/api/v2/info"} <= described["paths"].keys()
    assert "example.invalid" not in text
