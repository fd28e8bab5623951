"""Tools that are web services, against a real server on loopback."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from runlane.definitions.schema.definition import Tool
from runlane.outbound import Outbound
from runlane.redaction import REDACTED, Redactor
from runlane.settings import load_settings
from runlane.tools.caller import ToolCaller, ToolFailed
from runlane.tools.http import HttpTools
from tests.integration.http_server import Answering, Request, Server, Writer, plain, redirect, serving

SECRET = "canary-secret-4711"


async def values(tenant: str, names: Collection[str]) -> Mapping[str, str]:
    stored = {"acme": {"TOKEN": SECRET, "OTHER": "x"}}.get(tenant, {})
    return {name: stored[name] for name in names if name in stored}


@asynccontextmanager
async def calling(answer: Answering, tenant: str = "acme") -> AsyncGenerator[tuple[Server, ToolCaller]]:
    async with serving(answer) as server:
        outbound = Outbound(load_settings(outbound_allow=f"127.0.0.1:{server.port}"))
        try:
            yield server, HttpTools(outbound, values).for_run(tenant, Redactor())
        finally:
            await outbound.close()


def tool(server: Server, path: str = "/", **fields: Any) -> Tool:
    return Tool.model_validate({"name": "weather", "url": server.url(path), **fields})


def answering(value: Any, status: str = "200 OK", **headers: str) -> Answering:
    return plain(json.dumps(value).encode(), status, {"content-type": "application/json", **headers})


async def failed(call: ToolCaller, made: Tool, arguments: dict[str, Any] | None = None) -> ToolFailed:
    with pytest.raises(ToolFailed) as caught:
        await call(made, arguments or {}, "k")
    assert SECRET not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_arguments_without_a_place_become_parameters(method: str) -> None:
    async with calling(answering({"t": 20})) as (server, call):
        made = tool(server, "/v1/{city}?units={units}", method=method)
        assert await call(made, {"city": "a/b", "units": None, "days": [1, 2], "x": {"y": 1}}, "run:1") == {"t": 20}
        (request,) = server.requests
        assert (request.method, request.body) == (method, b"")
        assert request.target == "/v1/a%2Fb?days=1&days=2&x=%7B%22y%22%3A1%7D"
        assert request.headers["idempotency-key"] == "run:1"
        assert "content-type" not in request.headers


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_arguments_are_sent_as_json(method: str) -> None:
    async with calling(answering([1])) as (server, call):
        arguments = {"id": 7, "text": "ä", "dry": None, "body": {"b": 1}}
        for kind in ("all", "rest", "body"):
            assert await call(tool(server, "/i/{id}", method=method, body=kind), arguments, "k") == [1]
        bodies = [json.loads(request.body) for request in server.requests]
        assert bodies == [arguments, {"text": "ä", "dry": None, "body": {"b": 1}}, {"b": 1}]
        assert {request.headers["content-type"] for request in server.requests} == {"application/json"}
        assert {request.target for request in server.requests} == {"/i/7"}
        await call(tool(server, "/i", method=method, body="body"), {}, "k")
        assert server.requests[-1].body == b""


async def test_headers_with_secrets_and_arguments() -> None:
    async with calling(answering({})) as (server, call):
        headers = {
            "Authorization": "Bearer {secret.TOKEN}",
            "X-Tenant": "{tenant}",
            "X-Absent": "{absent}",
            "Idempotency-Key": "own-{n}",
            "Accept": "text/csv",
        }
        await call(tool(server, "/?k={secret.OTHER}", headers=headers), {"tenant": "t", "n": 1, "z": 2}, "key")
        (request,) = server.requests
        assert request.headers["authorization"] == f"Bearer {SECRET}"
        assert request.headers["x-tenant"] == "t"
        assert "x-absent" not in request.headers
        assert request.headers["idempotency-key"] == "own-1"
        assert request.headers["accept"] == "text/csv"
        assert request.target == "/?k=x&z=2"


async def test_a_missing_secret_is_named_and_nothing_is_sent() -> None:
    async with calling(answering({})) as (server, call):
        made = tool(server, headers={"a": "{secret.TOKEN}", "b": "{secret.GONE}", "c": "{secret.LOST}"})
        error = await failed(call, made)
        assert (error.code, error.retryable) == ("unknown_secret", False)
        assert "GONE, LOST" in error.message
        assert not error.begun
        assert server.requests == []
    async with calling(answering({}), tenant="other") as (server, call):
        assert (await failed(call, tool(server, headers={"a": "{secret.TOKEN}"}))).code == "unknown_secret"


async def test_a_key_of_any_kind_is_a_header() -> None:
    async with calling(answering({})) as (server, call):
        await call(tool(server), {}, "run_1/step[2]#c\r\nx: yä")
        assert server.requests[0].headers["idempotency-key"] == "run_1/step[2]#c%0D%0Ax: y%C3%A4"


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (plain(b"hello"), "hello"),
        (plain(b""), None),
        (plain(b"", "204 No Content"), None),
        (plain(b'{"a": 1}', headers={"content-type": "application/problem+json; charset=utf-8"}), {"a": 1}),
        (plain(b'{"a": 1}'), '{"a": 1}'),
        (plain("ä".encode("latin-1"), headers={"content-type": "text/plain; charset=ISO-8859-1"}), "ä"),
        (plain(b"\xff\x00x", headers={"content-type": "text/plain"}), "\ufffd\ufffdx"),
        (plain(b'["\\u0000", "\\ud83d\\ude00"]', headers={"content-type": "application/json"}), ["\ufffd", "😀"]),
        (plain(b"x", headers={"content-type": "text/plain; charset=zlib_codec"}), "x"),
    ],
)
async def test_answers(answer: Answering, result: Any) -> None:
    async with calling(answer) as (server, call):
        assert await call(tool(server), {}, "k") == result


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (plain(b"{", headers={"content-type": "application/json"}), "is declared as JSON but is not valid JSON"),
        (
            plain(b"[" * 500 + b"]" * 500, headers={"content-type": "application/json"}),
            "is declared as JSON but is not valid JSON",
        ),
        (plain(b"\x89PNG", headers={"content-type": "image/png"}), "returned image/png"),
    ],
)
async def test_answers_that_are_not_a_result_are_failures(answer: Answering, expected: str) -> None:
    async with calling(answer) as (server, call):
        error = await failed(call, tool(server))
        assert (error.code, error.retryable) == ("tool_output", False)
        assert expected in error.message


async def test_an_answer_is_cut_to_its_schema_and_checked() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"t": {"type": "number"}, "list": {"type": "array", "items": {"properties": {"n": {}}}}},
        "required": ["t"],
    }
    async with calling(answering({"t": 1, "junk": 2, "list": [{"n": 1, "m": 2}]})) as (server, call):
        assert await call(tool(server, output_schema=schema), {}, "k") == {"t": 1, "list": [{"n": 1}]}
    async with calling(plain(b'{"t": 2, "x": 1}')) as (server, call):
        assert await call(tool(server, output_schema=schema), {}, "k") == {"t": 2}
    async with calling(answering({"t": "warm"})) as (server, call):
        error = await failed(call, tool(server, output_schema=schema))
        assert error.code == "tool_output"
        assert '"t" must be number, not string' in error.message


@pytest.mark.parametrize(
    ("status", "retryable"),
    [("400 Bad", False), ("404 Not", False), ("429 Slow", True), ("500 X", True), ("503 X", True)],
)
async def test_refusals_are_errors(status: str, retryable: bool) -> None:
    body = f'{{"error":\r\n\t "no such\\u0000 thing", "you sent": "{SECRET}"}}{"x" * 5000}'.encode()
    async with calling(plain(body, status, {"retry-after": "7"})) as (server, call):
        error = await failed(call, tool(server, headers={"a": "{secret.TOKEN}"}))
        assert (error.code, error.retryable) == ("tool_error", retryable)
        # A server that is asked too much has not acted: also a tool with an effect may be called again.
        assert error.begun is not status.startswith("429")
        assert error.retry_after_seconds == (7.0 if retryable else None)
        assert f'returned status {status[:3]}: {{"error": "no such' in error.message
        assert REDACTED in error.message
        assert len(error.message) < 400


@pytest.mark.parametrize(
    ("when", "least", "most"),
    [
        (timedelta(hours=1), 3000, 3700),
        (timedelta(hours=-1), 0, 0),
        ("99999999999", 86_400, 86_400),
        ("-5", 0, 0),
    ],
    ids=["in an hour", "an hour ago", "never", "before"],
)
async def test_retry_after_of_a_tool_is_returned_within_bounds(
    when: str | timedelta, least: float, most: float
) -> None:
    text = when if isinstance(when, str) else format_datetime(datetime.now(UTC) + when, usegmt=True)
    async with calling(plain(b"", "429 Slow", {"retry-after": text})) as (server, call):
        after = (await failed(call, tool(server))).retry_after_seconds
        assert after is not None
        assert least <= after <= most


@pytest.mark.parametrize("text", ["soon", "nan", "inf", "", "Mon, 99 Foo 2020"])
async def test_an_invalid_retry_after_is_ignored(text: str) -> None:
    async with calling(plain(b"", "503 X", {"retry-after": text})) as (server, call):
        assert (await failed(call, tool(server))).retry_after_seconds is None


async def test_secrets_that_come_back_are_taken_out() -> None:
    async def echo(request: Request, writer: Writer) -> None:
        await answering({"headers": request.headers, "target": request.target})(request, writer)

    async with calling(echo) as (server, call):
        made = tool(server, "/?k={secret.TOKEN}", headers={"Authorization": "Bearer {secret.TOKEN}"})
        result = await call(made, {}, "k")
        assert SECRET in server.requests[0].headers["authorization"]
        assert SECRET not in json.dumps(result)
        assert result["headers"]["authorization"] == f"Bearer {REDACTED}"


async def test_limits_of_a_tool() -> None:
    async with calling(plain(b"x" * 101)) as (server, call):
        error = await failed(call, tool(server, max_output_bytes=100))
        assert (error.code, error.retryable) == ("outbound_too_large", False)
        assert await call(tool(server, max_output_bytes=101), {}, "k") == "x" * 101

    async def silent(_request: Request, writer: Writer) -> None:
        await writer.wait_closed()

    async with calling(silent) as (server, call):
        error = await failed(call, tool(server, timeout_seconds=1))
        assert (error.code, error.retryable, error.begun) == ("tool_timeout", True, True)


async def test_tools_lead_nowhere_but_where_they_may() -> None:
    async with calling(redirect("http://169.254.169.254/latest/meta-data/")) as (server, call):
        error = await failed(call, tool(server, headers={"a": "{secret.TOKEN}"}))
        assert (error.code, error.retryable, error.begun) == ("outbound_refused", False, True), (
            "a redirect came after it"
        )
        inner = Tool.model_validate({"name": "x", "url": f"http://localhost:{server.port + 1}/"})
        error = await failed(call, inner)
        assert (error.code, error.begun) == ("outbound_refused", False)
        error = await failed(call, tool(server, "/{id}"), {"id": "../admin"})
        assert (error.code, error.begun) == ("invalid_arguments", False)
        assert len(server.requests) == 1


async def test_a_server_that_is_down_may_come_back() -> None:
    async with calling(plain()) as (server, call):
        made = tool(server)
        await call(made, {}, "k")

    async with serving(plain()) as other:
        port = other.port
    outbound = Outbound(load_settings(outbound_allow="127.0.0.1"))
    down = Tool.model_validate({"name": "down", "url": f"http://127.0.0.1:{port}/"})
    error = await failed(HttpTools(outbound, values).for_run("acme", Redactor()), down)
    assert (error.code, error.retryable, error.begun) == ("outbound_unreachable", True, False)
    await outbound.close()


async def test_an_invalid_url_is_reported() -> None:
    outbound = Outbound(load_settings())
    made = Tool.model_validate({"name": "x", "url": "https://{host}/"})
    error = await failed(HttpTools(outbound, values).for_run("acme", Redactor()), made)
    assert (error.code, error.begun) == ("invalid_url", False)


async def test_a_connection_that_breaks_after_the_request_leaves_doubt() -> None:
    async def cut(_request: Request, writer: Writer) -> None:
        writer.close()

    async with calling(cut) as (server, call):
        error = await failed(call, tool(server, method="POST"))
        assert (error.code, error.retryable, error.begun) == ("outbound_unreachable", True, True)


async def test_no_half_of_a_secret_is_left_where_an_excerpt_is_cut() -> None:
    encoded = base64.b64encode(SECRET.encode()).decode()
    async with calling(plain(("x" * 290 + encoded).encode(), "500 X")) as (server, call):
        error = await failed(call, tool(server, headers={"Authorization": "Bearer {secret.TOKEN}"}))
    assert encoded[:6] not in str(error)
