"""Stream tokens: a browser reads one run, conversation or thread without a key, until the token or its key ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from runlane.access.keyring import Keyring, new_key
from runlane.access.stream_tokens import StreamGrant, StreamScope, open_token, sign_token
from runlane.app import App
from runlane.client import Client
from runlane.errors import NoSecretKey, RunlaneError, Unauthorized, UnknownThread
from runlane.settings import Settings
from runlane.store.access.keys import create_key, revoke_key
from tests.acceptance.api.agent_client import host
from tests.acceptance.api.auth_modules import with_auth
from tests.acceptance.api.serving import API, Api, copy_of, serving
from tests.acceptance.api.shop import app as shop
from tests.acceptance.api.test_chat import bring, idle, say
from tests.harness import settings_for


@pytest.fixture
def own_app(settings: Settings) -> App:
    return copy_of(shop, settings.model_copy(update={"secret_key": SecretStr(new_key())}))


def _anonymous(api: Api) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=api.url, timeout=60, trust_env=False)


async def _token(api: Api, **subject: Any) -> str:
    answer = await api.post("/stream-tokens", subject)
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()["token"]


async def test_a_token_opens_the_streams_of_one_run(api: Api) -> None:
    run = await api.run("greet")
    other = await api.run("greet")
    token = await _token(api, run_id=run["run_id"])
    sent = {"stream_token": token}
    async with _anonymous(api) as browser:
        for root in ("/runs", "/orchestrations/runs"):
            answer = await browser.get(f"{API}{root}/{run['run_id']}/stream", params=sent)
            assert answer.status_code == 200
            assert '"type":"done"' in answer.text
        for method, path, status in (
            ("GET", f"{API}/runs/{other['run_id']}/stream", 403),
            ("GET", f"{API}/runs/{run['run_id']}", 403),
            ("GET", f"{API}/runs", 403),
            ("POST", f"{API}/runs/{run['run_id']}/cancel", 401),
            ("POST", f"{API}/stream-tokens", 401),
        ):
            answer = await browser.request(method, path, params=sent)
            assert answer.status_code == status, (path, answer.text)
        changed = token[:-4] + ("AAAA" if token[-4:] != "AAAA" else "BBBB")
        for wrong in (changed, "", "st-rl-x", "st-rl-a.b.c", token + "é", "x" * 5000):
            answer = await browser.get(f"{API}/runs/{run['run_id']}/stream", params={"stream_token": wrong})
            assert answer.status_code == 401, wrong
        twice = await browser.get(f"{API}/runs/{run['run_id']}/stream?stream_token={token}&stream_token={token}")
        assert twice.status_code == 401


async def test_threads_have_tokens(idle_api: Api) -> None:
    await host(idle_api)
    thread = (await idle_api.client.post("/threads", json={})).json()["thread_id"]
    other = (await idle_api.client.post("/threads", json={})).json()["thread_id"]
    run = (await idle_api.client.post(f"/threads/{thread}/runs", json={"assistant_id": "three"})).json()["run_id"]
    await idle_api.client.post(f"/threads/{thread}/runs/{run}/cancel")
    sent = {"stream_token": await _token(idle_api, thread_id=thread)}
    of_run = {"stream_token": await _token(idle_api, run_id=run)}
    async with _anonymous(idle_api) as browser:
        for token in (sent, of_run):
            answer = await browser.get(f"/threads/{thread}/runs/{run}/stream", params=token)
            assert "event: end" in answer.text, answer.text
        async with browser.stream("GET", f"/threads/{thread}/stream", params=sent) as answer:
            assert answer.status_code == 200
        assert (await browser.get(f"/threads/{other}/stream", params=sent)).status_code == 403
        assert (await browser.get(f"/threads/{thread}/state", params=sent)).status_code == 403
        leaving = {**sent, "cancel_on_disconnect": "true"}
        assert (await browser.get(f"/threads/{thread}/runs/{run}/stream", params=leaving)).status_code == 403


async def test_a_conversation_has_a_token(api: Api) -> None:
    await bring(api)
    session = (await say(api, "hi"))["session_id"]
    await idle(api, session)
    sent = {"stream_token": await _token(api, session_id=session)}
    async with _anonymous(api) as browser:
        answer = await browser.get(f"{API}/chat/{session}/stream", params=sent)
        assert '"type":"done"' in answer.text
        assert (await browser.get(f"{API}/chat/{session}/status", params=sent)).status_code == 403
    assert (await api.post("/stream-tokens", {"session_id": "sess_unknown"})).status_code == 404


async def test_the_end_of_the_key_is_the_end_of_its_tokens(api: Api) -> None:
    run = await api.run("greet")
    key, raw = await create_key(api.parts.database, "page", "viewer", actor="test")
    async with Client(api.url, raw) as client:
        token = await client.stream_token(run["run_id"], ttl_seconds=60)
        assert token.token not in repr(token)
        with pytest.raises(UnknownThread):
            await client.stream_token(thread_id="00000000-0000-0000-0000-000000000000")
        with pytest.raises(RunlaneError, match="ttl_seconds"):
            await client.stream_token(run["run_id"], ttl_seconds=3601)
        with pytest.raises(RunlaneError, match="send one of"):
            await client.stream_token(run["run_id"], session_id="s")
    path = f"{API}/runs/{run['run_id']}/stream"
    async with _anonymous(api) as browser:
        assert (await browser.get(path, params={"stream_token": token.token})).status_code == 200
        await revoke_key(api.parts.database, key.id, actor="test")
        assert (await browser.get(path, params={"stream_token": token.token})).status_code == 401


async def test_an_open_stream_ends_with_its_token(api: Api) -> None:
    run = await api.run("wait", wait=False)
    keyring = api.parts.connection.vault.keyring
    me = (await api.get("/me")).json()
    path = f"{API}/runs/{run['run_id']}/stream"
    answer = None
    async with _anonymous(api) as browser:
        # On a busy machine a token may expire before its request arrives; then a longer one is tried.
        for seconds in (2, 10, 60):
            grant = StreamGrant(me["key_id"], me["tenant"], StreamScope.RUN, run["run_id"], int(time.time()) + seconds)
            answer = await browser.get(path, params={"stream_token": sign_token(keyring, grant)})
            if answer.status_code == 200:
                break
    assert answer is not None
    assert ": closed:" in answer.text
    assert '"type":"done"' not in answer.text
    await api.post(f"/runs/{run['run_id']}/cancel")


async def test_tokens_work_beside_an_auth_module(own_app: App, tmp_path: Path) -> None:
    async with serving(with_auth(own_app, tmp_path)) as api, _anonymous(api) as browser:
        alice = {"Authorization": "Bearer alice"}
        thread = (await browser.post("/threads", json={}, headers=alice)).json()["thread_id"]
        sent = {"stream_token": await _token(api, thread_id=thread)}
        async with browser.stream("GET", f"/threads/{thread}/stream", params=sent) as answer:
            assert answer.status_code == 200
        assert (await browser.get(f"/threads/{thread}", params=sent)).status_code == 403


def test_tokens_outlive_a_rotation_and_not_their_time(sqlite_url: str) -> None:
    old, new = new_key(), new_key()
    grant = StreamGrant("key", "default", StreamScope.RUN, "run_1", 1000)

    def keyring(*keys: str) -> Keyring:
        return Keyring(settings_for(sqlite_url, secret_key=" ".join(keys)))

    token = sign_token(keyring(old), grant)
    assert open_token(keyring(new, old), token, 999.0) == grant
    for ring, now in ((keyring(new), 999.0), (keyring(old), 1000.0)):
        with pytest.raises(Unauthorized):
            open_token(ring, token, now)


def test_a_server_without_a_secret_key_issues_none(sqlite_url: str) -> None:
    keyless = settings_for(sqlite_url).model_copy(update={"secret_key": None, "secret_key_file": None})
    with pytest.raises(NoSecretKey):
        sign_token(Keyring(keyless), StreamGrant("key", "default", StreamScope.RUN, "run_1", 1000))
