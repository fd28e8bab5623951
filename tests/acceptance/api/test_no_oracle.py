"""No answer to a caller depends on a secret: neither without a key, nor where it repeats what the caller sent."""

from __future__ import annotations

import secrets
from urllib.parse import quote

import httpx2
import pytest
from pydantic import SecretStr

from runlane.access.secrets import SecretVault
from runlane.redaction import LOGS, REDACTED
from runlane.settings import Settings, redact_settings
from tests.acceptance.api.serving import API, Api

TOKEN = "secret-of-a-tenant"
PASSWORD = "password-of-the-database"


@pytest.fixture
async def guesses(idle_api: Api) -> dict[str, str]:
    """Return values that a caller may guess, each of them a secret of the process."""
    settings = idle_api.parts.app.settings
    assert settings.secret_key is not None
    await SecretVault(idle_api.parts.database, settings).set("default", "TOKEN", TOKEN, actor="test")
    redact_settings(Settings(database_url=SecretStr(f"postgresql://app:{PASSWORD}@db.local/shop")))
    redact_settings(settings)
    known = {"master key": settings.secret_key.get_secret_value(), "password": PASSWORD, "secret": TOKEN}
    assert all(LOGS.occurs(value) for value in known.values())
    return known | {"begin of the password": PASSWORD[:9]}


def like(guess: str) -> str:
    """Return a string of the same form that is not a secret."""
    return "".join(secrets.choice("bcdfghjk") if letter.isalnum() else letter for letter in guess)


def asked(guess: str) -> list[tuple[str, str, dict[str, str], bytes | None]]:
    """Requests with the guess in everything that an answer may repeat."""
    path = quote(guess, safe="")
    return [
        ("GET", f"/{path}", {}, None),
        ("GET", f"/{path}/{path}?q={path}", {}, None),
        ("DELETE", f"/{path}", {}, None),
        ("PATCH", "/health", {"X-Guess": guess}, None),
        ("GET", f"{API}/runs/{path}", {}, None),
        ("GET", f"{API}/runs", {"Authorization": f"Bearer {guess}"}, None),
        ("GET", f"{API}/runs", {"Authorization": guess, "X-Request-Id": guess}, None),
        ("POST", f"{API}/tasks/{path}/run", {}, b'{"input": "' + guess.encode() + b'"}'),
        ("POST", f"{API}/tasks/greet/run", {}, b"{" + guess.encode()),
        ("GET", "/health", {"X-Guess": guess}, None),
        ("GET", "/ready", {"X-Guess": guess}, None),
    ]


async def answers(url: str, guess: str, headers: dict[str, str]) -> list[tuple[int, str]]:
    """Return what the server answers, with the guess taken out."""
    found: list[tuple[int, str]] = []
    async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
        for method, path, more, body in asked(guess):
            answer = await client.request(method, path, headers=headers | more, content=body)
            assert REDACTED not in answer.text
            text = answer.text.replace(quote(guess, safe=""), "GUESS").replace(guess, "GUESS")
            found.append((answer.status_code, text))
    return found


async def test_answers_without_a_key_are_the_same_for_every_guess(idle_api: Api, guesses: dict[str, str]) -> None:
    for name, guess in guesses.items():
        right, wrong = [await answers(idle_api.url, text, {}) for text in (guess, like(guess))]
        assert {status for status, _ in wrong} >= {401, 404}
        assert any("GUESS" in text for _, text in wrong)
        assert right == wrong, name


async def test_answers_to_a_tenant_are_the_same_for_every_guess(idle_api: Api, guesses: dict[str, str]) -> None:
    """Not even its own secrets: they are redacted in output of runs, and answers repeat only what the caller sent."""
    headers = {"Authorization": f"Bearer {await idle_api.key('operator')}"}
    for name, guess in guesses.items():
        right, wrong = [await answers(idle_api.url, text, headers) for text in (guess, like(guess))]
        assert right == wrong, name


async def test_a_secret_too_many_is_refused_with_the_cure(idle_api: Api) -> None:
    quota = idle_api.parts.app.settings.max_secrets
    store = idle_api.parts.connection.vault
    for number in range(quota):
        await store.set("default", f"S{number}", TOKEN, actor="test")
    answer = await idle_api.client.put(f"{API}/secrets/ONE_MORE", json={"value": TOKEN})
    assert (answer.status_code, answer.json()["code"]) == (409, "secret_quota_exceeded")
    assert "runlane secrets delete NAME" in answer.json()["message"]
    assert TOKEN not in answer.text
