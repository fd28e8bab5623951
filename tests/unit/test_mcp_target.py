"""Definitions of MCP servers with their secrets, and what is redacted in the output of servers."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from runlane.definitions.schema.definition import McpServer
from runlane.redaction import REDACTED
from runlane.tools.caller import ToolFailed
from runlane.tools.mcp.endpoint import secrets_of, target_of

REMOTE = {
    "name": "it",
    "url": "https://example.com/{secret.PATH_KEY}/mcp",
    "token": "{secret.TOKEN}",
    "headers": {"X-Key": "k {secret.KEY}"},
}
SECRETS = {"PATH_KEY": "a/b c", "TOKEN": "tok-en-value\n", "KEY": 'quote"d value'}


def server(**fields: Any) -> McpServer:
    return McpServer.model_validate({**REMOTE, **fields})


def test_secrets_are_filled_where_they_are_referenced() -> None:
    assert secrets_of(server()) == {"PATH_KEY", "TOKEN", "KEY"}
    target = target_of("default", server(), SECRETS)
    assert target.url == "https://example.com/a%2Fb%20c/mcp"
    assert target.headers == {"x-key": 'k quote"d value', "authorization": "Bearer tok-en-value"}
    assert all(value.strip() not in repr(target) for value in SECRETS.values())
    program = McpServer.model_validate(
        {
            "name": "it",
            "server_type": "stdio",
            "command": "run",
            "args": ["--key={secret.K}"],
            "env": {"K": "{secret.K}"},
        }
    )
    filled = target_of("default", program, {"K": "value"})
    assert (filled.args, filled.env) == (("--key=value",), {"K": "value"})


def test_a_token_may_bring_its_scheme() -> None:
    target = target_of("default", server(token="{secret.TOKEN}"), {**SECRETS, "TOKEN": "bearer abc"})
    assert target.headers["authorization"] == "bearer abc"


def test_targets_differ_by_tenant_definition_and_values() -> None:
    same = target_of("default", server(), SECRETS)
    assert same.key == target_of("default", server(), dict(reversed(SECRETS.items()))).key
    others = {
        target_of("other", server(), SECRETS).key,
        target_of("default", server(timeout_seconds=5), SECRETS).key,
        target_of("default", server(), {**SECRETS, "TOKEN": "newer"}).key,
    }
    assert len(others - {same.key}) == 3


@pytest.mark.parametrize("value", ["two\nlines", "nul\x00", "snow \u2603"])
def test_headers_that_cannot_be_sent_are_refused_without_their_value(value: str) -> None:
    with pytest.raises(ToolFailed) as caught:
        target_of("default", server(), {**SECRETS, "KEY": value})
    assert (caught.value.code, caught.value.begun) == ("mcp_refused", False)
    assert value not in caught.value.message


def test_secrets_that_come_back_are_hidden_in_all_their_forms() -> None:
    target = target_of("default", server(), SECRETS)
    shown = target.redact('tok-en-value, quote\\"d value, quote"d value, a%2Fb%20c, quote%22d%20value')
    assert shown == ", ".join([REDACTED] * 5)
    assert target.redact_value({"tok-en-value": ["x tok-en-value", 1, None, {"a": True}]}) == {
        REDACTED: [f"x {REDACTED}", 1, None, {"a": True}]
    }


def test_values_that_are_nested_too_deeply_are_refused() -> None:
    target = target_of("default", server(), SECRETS)
    value: Any = "x"
    for _ in range(300):
        value = [value]
    with pytest.raises(ValueError, match="nested"):
        target.redact_value(value)


def test_no_half_of_a_secret_is_left_where_a_string_is_cut() -> None:
    encoded = base64.b64encode(SECRETS["KEY"].encode()).decode()
    target = target_of("default", server(), SECRETS)
    assert encoded[:6] not in target.redact("x" * 10 + encoded, 20)
