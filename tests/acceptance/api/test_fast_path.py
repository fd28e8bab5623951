"""The fast path to accept a run answers as the usual route does, for any request."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from tests.acceptance.api.serving import API, Api

SHORT, USUAL = "application/json", "application/json; charset=utf-8"
PATH = f"{API}/tasks/greet/run"


def summary(answer: httpx2.Response) -> tuple[int, Any]:
    """An answer without what differs between two runs."""
    body = answer.json()
    for name in ("run_id", "stream_url", "status_url"):
        body.pop(name, None)
    return answer.status_code, body


async def both(api: Api, content: bytes, path: str = PATH, **headers: str) -> tuple[int, Any]:
    """Return the answer of both paths, which must be the same."""
    short, usual = [
        summary(await api.client.post(path, content=content, headers={"content-type": kind, **headers}))
        for kind in (SHORT, USUAL)
    ]
    assert short == usual
    return short


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{}", 202),
        (b'{"input": {"text": "\\u00e4"}, "priority": 5, "ordering_key": null, "on_dead": "block"}', 202),
        (b'{"delay_seconds": 60}', 202),
        (b'{"delay_seconds": 0.5, "hold": true}', 202),
        (b"", 422),
        (b"{", 400),
        (b"[]", 422),
        (b"null", 422),
        (b"\xff\xfe", 400),
        (b'{"priority": "5"}', 422),
        (b'{"priority": true}', 422),
        (b'{"priority": 5.0}', 422),
        (b'{"priority": 101}', 422),
        (b'{"hold": 1}', 422),
        (b'{"on_dead": "explode"}', 422),
        (b'{"unknown": 1}', 422),
        (b'{"input": {"text": 7}}', 422),
        (b'{"input": {"number": NaN}}', 422),
        (b'{"delay_seconds": NaN}', 422),
        (b'{"ordering_key": "\\ud800"}', 422),
        (b'{"ordering_key": ""}', 422),
        (b'{"input": {"text": "\\ud800"}}', 422),
    ],
)
async def test_bodies(idle_api: Api, content: bytes, status: int) -> None:
    assert (await both(idle_api, content))[0] == status


async def test_callers_without_permission_are_refused_the_same(idle_api: Api) -> None:
    assert (await both(idle_api, b"{}", Authorization="Bearer unknown"))[0] == 401
    viewer = f"Bearer {await idle_api.key('viewer')}"
    assert (await both(idle_api, b"{}", Authorization=viewer))[0] == 403
    assert (await both(idle_api, b"{", Authorization=viewer))[0] == 400


async def test_an_anonymous_caller_cannot_make_the_server_read_a_body(idle_api: Api) -> None:
    """The answer comes although the body, which was announced, never does."""
    port = int(idle_api.url.rsplit(":", 1)[1])
    for path in (PATH, f"{API}/runs/batch", f"{API}/keys", f"{API}/runs/run_1/resume"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1000"
        writer.write(f"{head}\r\nauthorization: Bearer sk-rl-{'0' * 64}\r\n\r\n{{".encode())
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 401"), path


async def test_keys_and_names(idle_api: Api) -> None:
    assert (await both(idle_api, b"{}", f"{API}/tasks/nothing/run"))[0] == 404
    assert (await both(idle_api, b"{}", **{"Idempotency-Key": "x" * 300}))[0] == 422
    assert (await both(idle_api, b"{}", **{"Idempotency-Key": "two words"}))[0] == 422
    headers = {"Idempotency-Key": "order-7"}
    first, usual = [
        await idle_api.client.post(PATH, content=b"{}", headers={"content-type": kind, **headers})
        for kind in (SHORT, USUAL)
    ]
    assert usual.json() == {**first.json(), "replayed": True}
    changed = {"content-type": SHORT, **headers}
    assert (await idle_api.client.post(PATH, content=b'{"priority": 1}', headers=changed)).status_code == 409


async def test_a_trace_goes_with_the_run(idle_api: Api) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"content-type": SHORT, "traceparent": parent}
    run = (await idle_api.client.post(PATH, content=b"{}", headers=headers)).json()
    database = idle_api.parts.database
    from tests.harness import Store

    rows = await Store(idle_api.parts.app.settings, database).sql(
        "select trace from run_inputs where run_id = :id", id=run["run_id"]
    )
    assert rows == [{"trace": parent}]
