"""Credentials in definitions are refused, with the cure, and never repeated."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.definitions.loader import check_loaded, parse_bodies
from runlane.definitions.secret_references import is_sensitive, secret_name, secret_names

VALUE = "hunter2hunter2hunter2"


def problems(folder: str, **fields: Any) -> list[str]:
    least = {"tools": {"url": "https://example.com"}, "mcp_servers": {"url": "https://example.com"}}
    body = {"name": "x", **least[folder], **fields}
    loaded = check_loaded(parse_bodies({folder: [body]}), ())
    return [str(problem) for problem in loaded.errors]


@pytest.mark.parametrize(
    ("folder", "fields", "expected"),
    [
        ("tools", {"headers": {"Authorization": f"Bearer {VALUE}"}}, "headers.Authorization"),
        ("tools", {"headers": {"Authorization": VALUE}}, "write {secret.AUTHORIZATION}"),
        ("tools", {"headers": {"X-Api-Key": VALUE}}, "write {secret.X_API_KEY}"),
        ("tools", {"headers": {"Authorization": f"Bearer {{secret.A}}{VALUE}"}}, "looks like a credential"),
        ("tools", {"headers": {"Cookie": f"session={VALUE}"}}, "headers.Cookie"),
        ("tools", {"headers": {"X-Custom": f"Bearer {VALUE}"}}, "This looks like a credential"),
        ("tools", {"headers": {"X-Token": "{secret.a b}"}}, "This is not a valid reference. Write {secret.NAME}"),
        ("tools", {"headers": {"X-Token": "{ secret.A }"}}, "This is not a valid reference. Write {secret.NAME}"),
        ("tools", {"url": f"https://user:{VALUE}@example.com"}, "field url: The URL contains a credential"),
        ("tools", {"url": f"https://example.com?api_key={VALUE}&x=1"}, 'The URL contains a credential ("api_key")'),
        ("tools", {"tool_type": "python", "code": f"key = 'sk-{VALUE}'"}, "field code: This contains a credential"),
        ("mcp_servers", {"token": VALUE}, "field token"),
        ("mcp_servers", {"env": {"GITHUB_TOKEN": VALUE}}, "write {secret.GITHUB_TOKEN}"),
        ("mcp_servers", {"env": {"OPENAI_KEY": "${OPENAI_KEY}"}}, "env.OPENAI_KEY"),
        ("mcp_servers", {"env": {"DB_PASSWORD": "x"}}, "env.DB_PASSWORD"),
        ("mcp_servers", {"env": {"PAT": "x"}}, "env.PAT"),
        ("mcp_servers", {"headers": {"Authorization": VALUE}}, "headers.Authorization"),
        ("mcp_servers", {"args": [f"--token={VALUE}"]}, "args[0]"),
        ("mcp_servers", {"args": ["--api-key", VALUE]}, "write {secret.API_KEY}"),
        ("mcp_servers", {"label": f"ghp_{'a1' * 18}"}, "field label: This contains a credential"),
    ],
)
def test_credentials_are_refused_and_not_repeated(folder: str, fields: dict[str, Any], expected: str) -> None:
    messages = problems(folder, **fields)
    assert len(messages) == 1, messages
    assert expected in messages[0]
    assert VALUE not in messages[0]


@pytest.mark.parametrize(
    ("folder", "fields"),
    [
        ("tools", {"headers": {"Authorization": "Bearer {secret.GITHUB}", "Accept": "application/json"}}),
        ("tools", {"headers": {"Authorization": "", "X-Keyboard": "qwerty", "Monkey": "george"}}),
        ("tools", {"headers": {"X-Api-Key": "{secret.A}"}, "url": "https://example.com/{user}?token={secret.T}"}),
        ("tools", {"url": "https://example.com?api_key={key}&q={query}"}),
        ("mcp_servers", {"token": "{secret.T}", "env": {"HOME": "/tmp", "A_KEY": "{secret.A}"}}),
        ("mcp_servers", {"args": ["--root", "/data", "--token={secret.T}", "--token", "{secret.T}"]}),
    ],
)
def test_references_and_ordinary_values_are_fine(folder: str, fields: dict[str, Any]) -> None:
    assert problems(folder, **fields) == []


def test_credentials_in_prompts_and_code_are_refused() -> None:
    step = {"id": "s", "type": "llm", "prompt_template": f"use xoxb-{'1' * 12}-abc"}
    loaded = check_loaded(parse_bodies({"orchestrations": [{"id": "o", "steps": [step]}]}), ())
    assert [problem.location.field for problem in loaded.errors] == ["steps[0].prompt_template"]


def test_the_secrets_that_a_definition_refers_to() -> None:
    body = {
        "name": "x",
        "url": "https://example.com/?k={secret.URL}",
        "token": "{secret.T}",
        "env": {"A": "{secret.A}!"},
    }
    (parsed,) = parse_bodies({"mcp_servers": [body]}).definitions
    assert secret_names(parsed.definition) == {"URL", "T", "A"}


def test_names() -> None:
    assert [secret_name(name) for name in ("X-Api-Key", "GITHUB_TOKEN", "2fa", "--", "é")] == [
        "X_API_KEY", "GITHUB_TOKEN", "SECRET_2FA", "SECRET", "SECRET",
    ]  # fmt: skip
    assert all(is_sensitive(name) for name in ("Authorization", "api_key", "API-KEY", "apikey", "x-auth", "Set-Cookie"))
    assert not any(is_sensitive(name) for name in ("monkey", "Accept", "keyboard", "author", "path"))
