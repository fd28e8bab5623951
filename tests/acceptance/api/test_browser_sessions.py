"""Browsers sign in with a key once and get a cookie, which works for pages of this server only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from runlane.api.auth import RequestAccess
from runlane.api.browser_access import COOKIE, SECURE_COOKIE
from runlane.api.sign_in_limit import ATTEMPTS
from runlane.app import App
from runlane.domain.browser_session import token_hash
from runlane.settings import Settings
from runlane.store.access.keys import revoke_key
from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.serving import API, Api, copy_of, serving
from tests.acceptance.api.shop import app as shop
from tests.acceptance.api.test_runs import problem_of
from tests.harness import Store, eventually

# What a page of the dashboard sends.
PAGE = {"X-Runlane-UI": "1", "Sec-Fetch-Site": "same-origin"}
SESSION = f"{API}/ui/session"
FOREIGN = "https://evil.example"


@asynccontextmanager
async def browser(api: Api, **headers: str) -> AsyncGenerator[httpx2.AsyncClient]:
    """Yield a client with a cookie jar and without a key."""
    sent = {**PAGE, **headers}
    async with httpx2.AsyncClient(base_url=api.url, headers=sent, timeout=60, trust_env=False) as client:
        yield client


async def sign_in(client: httpx2.AsyncClient, key: str) -> httpx2.Response:
    return await client.post(SESSION, json={"key": key})


async def test_a_key_becomes_a_cookie_that_scripts_cannot_read(idle_api: Api) -> None:
    key = await idle_api.key("viewer")
    async with browser(idle_api) as page:
        problem_of(await page.get(f"{API}/me"), 401, "unauthorized")
        answer = await sign_in(page, key)
        assert (answer.status_code, answer.content) == (204, b"")
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"{COOKIE}=")
        attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
        assert {"httponly", "samesite=strict", "path=/", f"max-age={7 * 86400}"} <= attributes
        assert not attributes & {"secure"}, "a loopback address without TLS"
        assert key not in cookie
        me = (await page.get(f"{API}/me")).json()
        assert (me["role"], me["tenant"]) == ("viewer", "default")
        assert "session_id" not in me
        (session,) = (await page.get(f"{API}/ui/sessions")).json()["sessions"]
        assert (session["current"], session["key_id"], session["address"]) == (True, me["key_id"], "127.0.0.1")
        audit = (await idle_api.get("/audit", params={"action": "session.create"})).json()["entries"]
        assert [entry["subject"] for entry in audit] == [session["id"]]
        gone = await page.delete(SESSION)
        assert gone.status_code == 204
        assert "max-age=0" in gone.headers["set-cookie"].lower()
        page.cookies.set(COOKIE, cookie.split(";")[0].partition("=")[2])
        problem_of(await page.get(f"{API}/me"), 401, "unauthorized")
        assert (await page.delete(SESSION)).status_code == 204


async def test_a_wrong_key_says_nothing_about_existing_ones(idle_api: Api) -> None:
    async with browser(idle_api) as page:
        for wrong in ("sk-rl-" + "0" * 64, "nonsense", "k" * 200):
            problem = problem_of(await sign_in(page, wrong), 401, "unauthorized")
            assert wrong not in problem["message"]
        problem_of(await page.post(SESSION, content=b"x" * 5000), 413, "too_large")
        problem_of(await page.post(SESSION, json={"key": "k", "tenant": "acme"}), 422, "invalid_request")


async def test_attempts_to_sign_in_are_limited(idle_api: Api) -> None:
    async with browser(idle_api) as page:
        for _ in range(ATTEMPTS):
            problem_of(await sign_in(page, "nonsense"), 401, "unauthorized")
        refused = await sign_in(page, await idle_api.key("viewer"))
        problem_of(refused, 429, "sign_in_limited")
        assert 0 < int(refused.headers["retry-after"]) <= 60


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": FOREIGN, "Sec-Fetch-Site": "cross-site"},
        {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"},
        {"Origin": FOREIGN},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "none"},
        {},
    ],
)
async def test_changes_by_pages_of_other_origins_are_refused(idle_api: Api, headers: dict[str, str]) -> None:
    key = await idle_api.key("operator")
    async with browser(idle_api) as page:
        await sign_in(page, key)
        run = await idle_api.run("greet", wait=False)
        path = f"{API}/runs/{run['run_id']}/cancel"
        bare = httpx2.AsyncClient(base_url=idle_api.url, cookies=page.cookies, timeout=60, trust_env=False)
        async with bare:
            # A fetch with the header, a fetch without it, and a form, which cannot have it.
            for sent in ({**headers, "X-Runlane-UI": "1"}, headers):
                problem_of(await bare.post(path, headers=sent), 403, "cross_site_refused")
            form = await bare.post(f"{API}/tasks/greet/run", headers=headers, data={"input": "{}"})
            problem_of(form, 403, "cross_site_refused")
            problem_of(await bare.post(SESSION, headers=headers, json={"key": key}), 403, "cross_site_refused")
            problem_of(await bare.delete(SESSION, headers=headers), 403, "cross_site_refused")
        assert (await page.get(f"{API}/runs/{run['run_id']}")).json()["status"] == "queued"


async def test_the_page_changes_runs_with_its_origin_and_header(idle_api: Api) -> None:
    async with browser(idle_api) as page:
        await sign_in(page, await idle_api.key("operator"))
        own = {"Origin": idle_api.url, "X-Runlane-UI": "1"}
        bare = httpx2.AsyncClient(base_url=idle_api.url, cookies=page.cookies, timeout=60, trust_env=False)
        async with bare:
            started = await bare.post(f"{API}/tasks/greet/run", headers=own, json={"input": {}})
            assert started.status_code == 202, started.text
            without = {"Origin": idle_api.url}
            refused = await bare.post(f"{API}/tasks/greet/run", headers=without, json={"input": {}})
            problem_of(refused, 403, "cross_site_refused")
            text = {**own, "Content-Type": "text/plain"}
            refused = await bare.post(f"{API}/tasks/greet/run", headers=text, content=b'{"input": {}}')
            problem_of(refused, 403, "cross_site_refused")


async def test_streams_need_a_page_of_this_server(idle_api: Api) -> None:
    async with browser(idle_api) as page:
        await sign_in(page, await idle_api.key("viewer"))
        run = await idle_api.run("greet", wait=False)
        await idle_api.post(f"/runs/{run['run_id']}/cancel")
        path = f"{API}/runs/{run['run_id']}/stream"
        bare = httpx2.AsyncClient(base_url=idle_api.url, cookies=page.cookies, timeout=60, trust_env=False)
        async with bare:
            for headers in ({}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "none"}):
                problem_of(await bare.get(path, headers=headers), 403, "cross_site_refused")
            for headers in ({"Sec-Fetch-Site": "same-origin"}, {"X-Runlane-UI": "1"}):
                assert "done" in (await bare.get(path, headers=headers)).text
            foreign = await bare.get(f"{API}/runs", headers={"Sec-Fetch-Site": "same-site"})
            problem_of(foreign, 403, "cross_site_refused")
            assert (await bare.get(f"{API}/runs")).status_code == 200


async def test_a_request_with_a_key_is_judged_by_the_key(idle_api: Api) -> None:
    viewer, operator = await idle_api.key("viewer"), await idle_api.key("operator")
    async with browser(idle_api) as page:
        await sign_in(page, operator)
        for header in ({"Authorization": f"Bearer {viewer}"}, {"x-api-key": viewer}):
            assert (await page.get(f"{API}/me", headers=header)).json()["role"] == "viewer"
            answer = await page.post(f"{API}/tasks/greet/run", headers=header, json={"input": {}})
            problem_of(answer, 403, "forbidden")
        problem_of(await page.get(f"{API}/me", headers={"Authorization": "Bearer no"}), 401, "unauthorized")
        # A program with a key needs no header of a page, whatever its origin.
        foreign = {"Authorization": f"Bearer {operator}", "Origin": FOREIGN, "Sec-Fetch-Site": "cross-site"}
        answer = await idle_api.client.post(f"{API}/tasks/greet/run", headers=foreign, json={"input": {}})
        assert answer.status_code == 202


async def test_revoking_the_key_ends_its_sessions_and_their_streams(idle_api: Api) -> None:
    made = (await idle_api.post("/keys", {"name": "ann", "role": "viewer"})).json()
    run = await idle_api.run("greet", wait=False)
    async with browser(idle_api) as page:
        await sign_in(page, made["key"])
        async with page.stream("GET", f"{API}/runs/{run['run_id']}/stream") as stream:
            pieces = stream.aiter_text()
            assert "queued" in await anext(pieces)
            await revoke_key(idle_api.parts.database, made["id"], actor="test")
            problem_of(await page.get(f"{API}/me"), 401, "unauthorized")
            rest = "".join([piece async for piece in pieces])
        assert ": closed:" in rest
        assert (await idle_api.get("/ui/sessions")).json()["sessions"] == []


async def test_signing_out_ends_the_streams_of_the_session(idle_api: Api) -> None:
    run = await idle_api.run("greet", wait=False)
    async with browser(idle_api) as page:
        await sign_in(page, await idle_api.key("viewer"))
        async with page.stream("GET", f"{API}/runs/{run['run_id']}/stream") as stream:
            pieces = stream.aiter_text()
            await anext(pieces)
            await page.delete(SESSION)
            rest = "".join([piece async for piece in pieces])
        assert ": closed:" in rest


async def test_sessions_are_seen_and_ended_by_their_owner_and_by_managers_of_keys(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    ann, bob, eve = await api.key("operator"), await api.key("operator"), await api.key("operator", tenant="acme")
    async with browser(api) as first, browser(api) as second, browser(api) as other:
        for client, key in ((first, ann), (second, bob), (other, eve)):
            assert (await sign_in(client, key)).status_code == 204
        ids: dict[str, str] = {}
        for name, client in (("ann", first), ("bob", second), ("eve", other)):
            (session,) = (await client.get(f"{API}/ui/sessions")).json()["sessions"]
            ids[name] = session["id"]
        for foreign in (ids["bob"], ids["eve"], "bses_none"):
            problem_of(await first.delete(f"{API}/ui/sessions/{foreign}"), 404, "not_found")
        everything = (await api.get("/ui/sessions")).json()["sessions"]
        assert {session["id"] for session in everything} == set(ids.values())
        assert (await api.client.delete(f"{API}/ui/sessions/{ids['bob']}")).status_code == 204
        problem_of(await second.get(f"{API}/me"), 401, "unauthorized")
        assert (await first.get(f"{API}/me")).status_code == 200
        assert (await first.delete(f"{API}/ui/sessions/{ids['ann']}")).status_code == 204
        problem_of(await first.get(f"{API}/me"), 401, "unauthorized")


async def test_every_server_accepts_the_session(settings: Settings) -> None:
    async with serving(copy_of(shop, settings)) as first, serving(copy_of(shop, settings)) as second:
        async with browser(first) as page:
            answer = await sign_in(page, await first.key("viewer"))
            token = answer.headers["set-cookie"].split(";")[0].partition("=")[2]
        async with browser(second) as page:
            page.cookies.set(COOKIE, token)
            assert (await page.get(f"{API}/me")).status_code == 200


@pytest.mark.parametrize(
    ("column", "seconds"), [("last_seen_at", 12 * 3600), ("created_at", 7 * 86_400)], ids=["idle", "old"]
)
async def test_a_session_ends_when_it_is_idle_and_after_a_week(idle_api: Api, column: str, seconds: int) -> None:
    store = Store(idle_api.parts.app.settings, idle_api.parts.database)

    async def pass_time(passed: int) -> None:
        await store.sql(f"update browser_sessions set {column} = {column} - {passed * 1_000_000}")

    async with browser(idle_api) as page:
        await sign_in(page, await idle_api.key("viewer"))
        await pass_time(seconds - 600)
        assert (await page.get(f"{API}/me")).status_code == 200
        # The request above was a use of the session.
        await pass_time(seconds if column == "last_seen_at" else 1200)
        problem_of(await page.get(f"{API}/me"), 401, "unauthorized")
        assert (await idle_api.get("/ui/sessions")).json()["sessions"] == []


async def test_only_the_hash_of_a_token_is_stored(idle_api: Api) -> None:
    async with browser(idle_api) as page:
        answer = await sign_in(page, await idle_api.key("viewer"))
        token = answer.headers["set-cookie"].split(";")[0].partition("=")[2]
        assert token_hash(token) is not None
        shown = (await idle_api.get("/ui/sessions")).text + (await idle_api.get("/audit")).text
        assert token not in shown
        assert str(token_hash(token)) not in shown


def behind_proxy(settings: Settings, **more: Any) -> App:
    return copy_of(shop, settings.model_copy(update={"trusted_proxies": "127.0.0.1", **more}))


async def test_over_tls_the_cookie_is_bound_to_the_host(settings: Settings) -> None:
    proxied = {
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "runs.example",
        "X-Forwarded-For": "9.9.9.9, 127.0.0.1",
    }
    async with serving(behind_proxy(settings)) as api, browser(api, **proxied) as page:
        answer = await sign_in(page, await api.key("viewer"))
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"{SECURE_COOKIE}=")
        assert {"secure", "httponly", "samesite=strict", "path=/"} <= {p.strip().lower() for p in cookie.split(";")[1:]}
        assert "domain" not in cookie.lower()
        token = cookie.split(";")[0].partition("=")[2]
        sent = {"Cookie": f"{SECURE_COOKIE}={token}"}
        assert (await page.get(f"{API}/me", headers=sent)).status_code == 200
        # A cookie of the plain name may come from another host of the domain, so it does not count over TLS.
        problem_of(await page.get(f"{API}/me", headers={"Cookie": f"{COOKIE}={token}"}), 401, "unauthorized")
        change = {**sent, "Origin": "https://runs.example"}
        started = await page.post(f"{API}/tasks/greet/run", headers=change, json={"input": {}})
        problem_of(started, 403, "forbidden")
        wrong = {**sent, "Origin": "http://runs.example"}
        problem_of(await page.post(f"{API}/tasks/greet/run", headers=wrong, json={}), 403, "cross_site_refused")
        (session,) = (await api.get("/ui/sessions")).json()["sessions"]
        assert session["address"] == "9.9.9.9"


async def test_forwarded_headers_of_clients_are_ignored(idle_api: Api) -> None:
    forged = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "evil.example", "X-Forwarded-For": "9.9.9.9"}
    async with browser(idle_api, **forged) as page:
        answer = await sign_in(page, await idle_api.key("viewer"))
        assert answer.headers["set-cookie"].startswith(f"{COOKIE}=")
        (session,) = (await page.get(f"{API}/ui/sessions")).json()["sessions"]
        assert session["address"] == "127.0.0.1"
        wrong = {"Origin": "https://evil.example"}
        problem_of(await page.post(f"{API}/tasks/greet/run", headers=wrong, json={}), 403, "cross_site_refused")


async def test_an_open_server_has_no_sign_in(settings: Settings) -> None:
    served = serving(copy_of(shop, settings), access=RequestAccess.OPEN_ON_LOOPBACK, key=False)
    async with served as api, browser(api) as page:
        problem_of(await sign_in(page, "sk-rl-" + "0" * 64), 409, "conflict")
        info = (await page.get(f"{API}/info")).json()
        assert (info["sign_in_required"], info["features"]["worker"]) == (False, False)


async def test_info_shows_details_to_valid_keys_only(idle_api: Api) -> None:
    async with browser(idle_api) as page:
        public = (await page.get(f"{API}/info")).json()
        assert public["sign_in_required"] is True
        assert {name for name, value in public.items() if value is not None} == {
            "version",
            "sign_in_required",
            "server_time",
        }
        await sign_in(page, await idle_api.key("viewer"))
        known = (await page.get(f"{API}/info")).json()
        assert known["limits"]["page"] == 1000
        assert known["retention"]["runs_days"] == 30
        assert known["features"]["wakeups"] in ("redis", "none")
        assert known["base_path"] == ""
    problem_of(await idle_api.get("/info", headers={"Authorization": "Bearer x"}), 401, "unauthorized")


async def test_a_stream_of_a_session_counts_as_one_of_its_key(idle_api: Api) -> None:
    run = await idle_api.run("greet", wait=False)
    async with browser(idle_api) as page:
        await sign_in(page, await idle_api.key("viewer"))

        async def follow() -> None:
            async with page.stream("GET", f"{API}/runs/{run['run_id']}/stream") as stream:
                async for _ in stream.aiter_text():
                    pass

        reading = asyncio.create_task(follow())
        await eventually(lambda: idle_api.parts.tail.followers == 1, "the reader")
        await idle_api.post(f"/runs/{run['run_id']}/cancel")
        await reading
